"""Factor lengths: the radices of a transform, and the limit of Bluestein's algorithm."""

from __future__ import annotations

import functools

# A transform of at most this length is one matrix product.
WHOLE = 32
# The largest composite radix of longer transforms.
RADIX = 16
# A longer prime is computed as a convolution (Bluestein).
PRIME = 127


@functools.cache
def factors(n: int) -> tuple[int, ...]:
    """Return the prime factors, smallest first."""
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1 if p == 2 else 2
        if p * p > n > 1:
            found.append(n)
            break
    return tuple(found)


@functools.cache
def radices(n: int) -> tuple[int, ...]:
    """Return numbers whose product is n, each at most 16 or prime; n itself up to 32."""
    if n <= WHOLE:
        return (n,)
    found: list[int] = []
    for p in reversed(factors(n)):
        for k, r in enumerate(found):
            if r * p <= RADIX:
                found[k] = r * p
                break
        else:
            found.append(p)
    return tuple(sorted(found, reverse=True))


def convolution(n: int) -> int:
    """Return the power of two at which n numbers are convolved without wrapping around."""
    return 1 << (2 * n - 2).bit_length()
