"""The discrete Fourier transform of component tuples, by expansion operations and products.

With w = exp(-2 pi i / n) the transform is y_k = sum over j of x_j w^(jk). A length n = r m takes a
matrix product with the r-th roots over the first index of j = m j1 + j2, a product with w^(j2 k1),
and a transform of length m over j2 (Cooley, Tukey 1965, doi:10.1090/S0025-5718-1965-0178586-1), for
all columns at once. Exchanging the first two indices in each step leaves the result in order
(Stockham). Primes above 127 use chirps (Bluestein 1970, doi:10.1109/TAU.1970.1162132). Roots of
unity are correctly rounded. Numbers are stored as components [2, n, columns]: real part, imaginary
part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.elementary import fixed
from mcf.kernels import operations
from mcf.kernels.components import Components
from mcf.linalg.parts import each
from mcf.reductions.products import matmul
from mcf.reductions.rows import operator

# Bits of the fixed-point numbers; the guard bits absorb the errors of some millions of products.
_BITS, _GUARD = 340, 40


def _first(n: int) -> tuple[int, int]:
    """Return cos and sin of 2 pi / n in fixed point, by their series."""
    angle = (2 * fixed.pi() // n) >> (fixed.BITS - _BITS)
    parts, term, k = [0, 0], 1 << _BITS, 0
    while term:
        parts[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = (term * angle >> _BITS) // k
    return parts[0], parts[1]


def _times(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    return (x[0] * y[0] - x[1] * y[1]) >> _BITS, (x[0] * y[1] + x[1] * y[0]) >> _BITS


def _powers(x: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """Return the powers 1, x, x^2, ..., `count` of them."""
    found = [(1 << _BITS, 0)]
    while len(found) < count:
        found.append(_times(found[-1], x))
    return found


def _circle(n: int, count: int) -> list[tuple[int, int]]:
    """Return exp(2 pi i k / n) for k < count in fixed point, each as a product of two powers."""
    step = math.isqrt(count) + 1
    near = _powers(_first(n), step + 1)
    far = _powers(near[step], count // step + 1)
    return [_times(far[k // step], near[k % step]) for k in range(count)]


def _components(values: list[int]) -> list[Tensor]:
    """Return fixed-point numbers as four float64 components, each rounding the remainder."""
    # Dropping the guard bits makes 0, 1/2 and 1 exact again.
    rest = [((v >> (_GUARD - 1)) + 1) >> 1 for v in values]
    scale = 2.0 ** (_GUARD - _BITS)
    columns = []
    for _ in range(4):
        # Python rounds an integer to the nearest float64.
        column = [float(v) for v in rest]
        rest = [v - int(c) for v, c in zip(rest, column, strict=True)]
        columns.append(torch.from_numpy(np.array(column) * scale))
    return columns


@functools.lru_cache(maxsize=16)
def _table(n: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return cos and sin of 2 pi k / n for k < n, in four float64 components.

    The values come from 340-bit integers: each component is that of the exact number, unless about
    a hundred bits after the last one are all 0 or all 1.
    """
    if n % 8:
        circle = _circle(n, n // 2 + 1)
        whole = [_components([v[k] for v in circle]) for k in (0, 1)]
        # The other half is the conjugate.
        back = torch.arange((n - 1) // 2, 0, -1, device="cpu")
        return (
            tuple(torch.cat((c, c[back])) for c in whole[0]),
            tuple(torch.cat((s, -s[back])) for s in whole[1]),
        )
    eighth = _circle(n, n // 8 + 1)
    near, up = (_components([v[k] for v in eighth]) for k in (0, 1))
    cosines, sines = [], []
    for c, s in zip(near, up, strict=True):
        # Extend to a quarter by exchanging sine and cosine, and to the full circle by signs.
        quarter = torch.cat((c, s[:-1].flip(0)))
        other = torch.cat((s, c[:-1].flip(0)))
        half = torch.cat((quarter, -quarter[:-1].flip(0)))
        upper = torch.cat((other, other[:-1].flip(0)))
        cosines.append(torch.cat((half, half[1:-1].flip(0))))
        sines.append(torch.cat((upper, -upper[1:-1].flip(0))))
    return tuple(cosines), tuple(sines)


@functools.lru_cache(maxsize=32)
def roots(n: int, dtype: torch.dtype, terms: int, device: torch.device) -> Components:
    """Return cos and sin of 2 pi k / n for k < n: components [2, n], the nearest expansions.

    The tensors are cached and must not be written to.
    """
    both = tuple(torch.stack(parts) for parts in zip(*_table(n), strict=True))
    # Round on the CPU, which always has float64.
    return tuple(c.to(device) for c in convert(both, dtype, terms))


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


Format = tuple[torch.dtype, int, torch.device]


@operator(
    "fourier(Tensor[] x, int sign)", lambda x, sign: [c.new_empty(2, *c.shape[1:]) for c in x]
)
def opaque_transform(x: list[Tensor], sign: int) -> list[Tensor]:
    """Return `transform` by one operator, whose results do not alias the operands."""
    found = transform(tuple(x), sign)
    # A transform of length 1 may return its argument, so it must be copied.
    return [c.clone() if x[0].shape[1] == 1 else c.contiguous() for c in found]


def transform(x: Components, sign: int) -> Components:
    """Return the transform with exp(sign 2 pi i / n) along the second dimension.

    Args:
        x: components [2, n, columns], or [1, n, columns] of a real sequence.
        sign: -1 for the transform, 1 for the inverse times n.

    Returns:
        Components [2, n, columns]. In the 2-norm the error is at most `mcf.bound("fft", ...)`.
    """
    n, columns = x[0].shape[1:]
    for r in radices(n):
        x = _step(x, r, sign)
    return each(lambda c: c.reshape(2, n, columns), x)


def _step(x: Components, r: int, sign: int) -> Components:
    """Transform length r: [parts, left, done] becomes [2, left / r, r done]."""
    parts, left, done = x[0].shape
    left //= r
    y = _radix(each(lambda c: c.reshape(parts, r, left * done), x), r, sign)
    y = each(lambda c: c.reshape(2, r, left, done), y)
    if left > 1:
        y = product(y, _twiddles(r, left, sign, _format(x)))
    return each(lambda c: c.transpose(1, 2).reshape(2, left, r * done), y)


@functools.lru_cache(maxsize=16)
def _cached_turns(n: int, sign: int, form: Format) -> Components:
    cosine, sine = ([c[k, : n // 2 + 1, None] for c in roots(n, *form)] for k in (0, 1))
    parts = zip(sine, cosine, strict=True)
    return tuple(torch.stack((-s, c if sign > 0 else -c)) for s, c in parts)


@operator(
    "fourier_turns(Tensor[] like, int n, int sign)",
    lambda like, n, sign: [c.new_empty(2, n // 2 + 1, 1) for c in like],
)
def turns(like: list[Tensor], n: int, sign: int) -> list[Tensor]:
    """Return sign i exp(sign 2 pi i k / n), k = 0 ... n / 2, as [2, n / 2 + 1, 1].

    Tracing this operator instead of its tables keeps tensors without numbers out of the caches.
    """
    # Copy, since a CUDA graph might write to the cached tensors.
    return [c.clone() for c in _cached_turns(n, sign, _format(like))]


def _format(x: Sequence[Tensor]) -> Format:
    return x[0].dtype, len(x), x[0].device


def product(x: Components, w: Components) -> Components:
    """Return x w of complex numbers [2, ...] and [4, ...] = cos, sin, -sin, cos, which broadcast.

    It computes (xr cos, xr sin) + (xi (-sin), xi cos), in two operations.
    """
    real, imag = each(lambda c: c[:1], x), each(lambda c: c[1:], x)
    first, second = each(lambda c: c[:2], w), each(lambda c: c[2:], w)
    return operations.fma(imag, second, operations.mul(real, first))


def _both(w: Components) -> Components:
    """Return cos, sin, -sin, cos from cos, sin [2, ...]."""
    return each(lambda c: torch.stack((c[0], c[1], -c[1], c[0])), w)


@functools.lru_cache(maxsize=16)
def _twiddles(r: int, m: int, sign: int, form: Format) -> Components:
    """Return w^(j2 k1) as [4, r, m, 1], with w the root of order r m."""
    index = torch.arange(r, device=form[2])[:, None] * torch.arange(m, device=form[2])
    return _both(each(lambda c: c[:, index % (r * m), None], _turned(r * m, sign, form)))


def _turned(n: int, sign: int, form: Format) -> Components:
    """Return exp(sign 2 pi i k / n) as [2, n]."""
    found = roots(n, *form)
    if sign > 0:
        return found
    return each(lambda c: torch.stack((c[0], -c[1])), found)


@functools.lru_cache(maxsize=32)
def _matrix(r: int, sign: int, real: bool, form: Format) -> Components:
    """Return a transform's real matrix: [2 r, 2 r] for complex numbers, [2 r, r] for real ones."""
    k = torch.arange(r, device=form[2])
    w = each(lambda c: c[:, k[:, None] * k % r], _turned(r, sign, form))
    if real:
        return each(lambda c: c.reshape(2 * r, r).contiguous(), w)
    return each(lambda c: torch.cat((torch.cat((c[0], -c[1]), 1), torch.cat((c[1], c[0]), 1))), w)


def _radix(x: Components, r: int, sign: int) -> Components:
    """Return the transform of length r along the second dimension, without twiddle factors."""
    if r > PRIME:
        return _chirped(x, r, sign)
    parts, _, columns = x[0].shape
    if r == 1:
        zero = each(torch.zeros_like, x)
        return x if parts == 2 else tuple(map(torch.cat, zip(x, zero, strict=True)))
    matrix = _matrix(r, sign, parts == 1, _format(x))
    found = matmul(matrix, each(lambda c: c.reshape(parts * r, columns), x))
    return each(lambda c: c.reshape(2, r, columns), found)


def _chirped(x: Components, r: int, sign: int) -> Components:
    """Transform by jk = (j^2 + k^2 - (k - j)^2) / 2: a convolution of chirps at a power of two."""
    form, columns = _format(x), x[0].shape[2]
    chirp, kernel = chirps(r, sign, form)
    size = convolution(r)
    if x[0].shape[0] == 1:
        x = tuple(map(torch.cat, zip(x, each(torch.zeros_like, x), strict=True)))
    a = product(x, chirp)
    zeros = each(lambda c: c.new_zeros(2, size - r, columns), a)
    a = tuple(torch.cat(both, 1) for both in zip(a, zeros, strict=True))
    found = transform(product(transform(a, -1), kernel), 1)
    return product(each(lambda c: c[:, :r], found), chirp)


@functools.lru_cache(maxsize=32)
def chirps(r: int, sign: int, form: Format) -> tuple[Components, Components]:
    """Return the chirp exp(sign pi i k^2 / r) [4, r, 1], and its conjugate's scaled transform.

    The transform is computed on the CPU in float64, with one more component if possible.
    """
    dtype, terms, device = form
    k = torch.arange(r, device="cpu")
    place = k * k % (2 * r)
    cpu = k.device
    chirp = _both(each(lambda c: c[:, place, None], _turned(2 * r, sign, (dtype, terms, cpu))))
    wide = (torch.float64, min(4, terms + 1) if dtype is torch.float64 else 2, cpu)
    own = each(lambda c: c[:, place], _turned(2 * r, -sign, wide))
    size = convolution(r)
    gap = own[0].new_zeros(2, size - 2 * r + 1)
    circle = each(lambda c: torch.cat((c, gap, c[:, 1:].flip(1)), 1)[..., None], own)
    scaled = each(lambda c: c / size, transform(circle, -1))
    kernel = _both(tuple(convert(scaled, dtype, terms)))
    return each(lambda c: c.to(device), chirp), each(lambda c: c.to(device), kernel)
