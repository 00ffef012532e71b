"""Decimal digits of expansions, from exact integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from mcf.convert.few import ratio
from mcf.convert.numbers import nearest
from mcf.kernels.formats import Format

# Digits as an integer, and the power of ten of the first digit: 0.125 to two digits is (12, -1).
Digits = tuple[int, int]
# Further digits are zeros: numbers of these formats have at most 1400, before and after the point.
MOST = 1500
_LOG = math.log10(2)
# 2**-_FINE of a unit is far below the last place of every format.
_FINE = 1200


@functools.lru_cache(maxsize=4096)
def ten(power: int) -> int:
    """10**power."""
    value: int = 10**power
    return value


def _quotient(n: int, d: int, count: int) -> tuple[int, int, int, int]:
    """Return digits of n / d > 0, the remainder, its divisor and the first digit's power."""
    power = math.floor(math.log10(n) - math.log10(d))
    while True:
        shift = count - 1 - power
        top, bottom = (n * ten(shift), d) if shift >= 0 else (n, d * ten(-shift))
        q, rest = divmod(top, bottom)
        # The estimate by logarithms may be off by one.
        if q >= ten(count):
            power += 1
        elif q < ten(count - 1):
            power -= 1
        else:
            return q, rest, bottom, power


def significant(n: int, d: int, count: int) -> Digits:
    """Return n / d > 0 rounded to `count` decimal digits, ties to even."""
    q, rest, bottom, power = _quotient(n, d, count)
    if 2 * rest > bottom or (2 * rest == bottom and q & 1):
        q += 1
        if q == ten(count):
            return ten(count - 1), power + 1
    return q, power


def held(n: int, d: int, fmt: Format, terms: int) -> int:
    """Return how many decimal digits the expansions around n / d > 0 can hold.

    Every decimal number of so many digits survives rounding to the nearest expansion and back:
    floor((b - 1) log10(2)) digits for b bits (Matula 1968, doi:10.1145/362851.362887). b is `terms`
    p, or less near the smallest number of the format.
    """
    room = n.bit_length() - d.bit_length() - (fmt.emin - fmt.p + 1) + 1
    return max(1, math.floor((min(terms * fmt.p, room) - 1) * _LOG))


def shortest(parts: Sequence[float], fmt: Format) -> Digits:
    """Return the fewest digits that read back to the nearest expansion of the positive sum.

    Of the numbers of so many digits beside the sum it is the nearer one, if that reads back.

    Args:
        parts: the components.
        fmt: their format.
    """
    n, d = ratio(parts)
    terms = len(parts)
    target = nearest(n, d, fmt, terms)
    if not math.isfinite(target[0]):
        # The sum is half a unit beyond the largest number, or more. The next smaller decimals may
        # have these components.
        target = tuple(parts)
        if nearest((n << _FINE) - 1, d << _FINE, fmt, terms) != target:
            return significant(n, d, held(n, d, fmt, terms))

    def found(count: int) -> Digits | None:
        # If any number of `count` digits reads back, one of the two neighbours of the sum does.
        q, rest, bottom, power = _quotient(n, d, count)
        near = q + (2 * rest > bottom or (2 * rest == bottom and q & 1))
        shift = power - count + 1
        # The sum itself reads back, unless it is beyond the largest number.
        for number in (near, near - 1 if rest == 0 else 2 * q + 1 - near):
            if nearest(number * ten(max(shift, 0)), ten(max(-shift, 0)), fmt, terms) == target:
                return (number, power) if number < ten(count) else (ten(count - 1), power + 1)
        return None

    # Start at the number of digits whose spacing is about the last unit of the last component.
    mantissa, exponent = math.frexp(target[-1])
    lowest = fmt.emin - fmt.p + 1
    unit = max(exponent - fmt.p, lowest) if mantissa else lowest
    count = max(1, math.ceil(math.log10(n) - math.log10(d) - unit * _LOG))
    while (best := found(count)) is None:
        count += 1
    # The number without trailing zeros reads back, too. Usually one more trial shows that it is
    # minimal.
    high, low = len(str(best[0]).rstrip("0")), 0
    best = best[0] // ten(count - high), best[1]
    middle = high - 1
    while middle > low:
        fewer = found(middle)
        if fewer is None:
            low = middle
        else:
            high, best = middle, fewer
        middle = (low + high) // 2
    return best
