"""Decimal digits of expansions, from exact integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

from mcf.convert.numbers import components_of
from mcf.kernels.formats import Format

# Digits as an integer, and the power of ten of the first digit: 0.125 to two digits is (12, -1).
Digits = tuple[int, int]
# Further digits are zeros: numbers of these formats have at most 1400, before and after the point.
MOST = 1500
_LOG = math.log10(2)


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


def whole(parts: Sequence[float]) -> tuple[int, int]:
    """Return integers n and d, d a power of two, with n / d the sum of finite floats."""
    terms = [(int(m * 2.0**53), e - 53) for m, e in map(math.frexp, parts) if m]
    low = min((e for _, e in terms), default=0)
    low = min(low, 0)
    return sum(m << (e - low) for m, e in terms), 1 << -low


def held(n: int, d: int, fmt: Format, terms: int) -> int:
    """Return how many decimal digits the expansions around n / d > 0 can hold.

    Every decimal number of so many digits survives rounding to the nearest expansion and back:
    floor((b - 1) log10(2)) digits for b bits (Matula 1968, doi:10.1145/362851.362887). b is `terms`
    p, or less near the smallest number of the format.
    """
    room = n.bit_length() - d.bit_length() - (fmt.emin - fmt.p + 1) + 1
    return max(1, math.floor((min(terms * fmt.p, room) - 1) * _LOG))


def _interval(parts: Sequence[float], fmt: Format) -> tuple[int, int, int, bool, bool, int]:
    """Return the interval of numbers whose nearest expansion has these components (first > 0).

    It is the intersection of the rounding intervals of the components, each shifted by the sum of
    those before it.

    Returns:
        The value, the two ends, whether each end belongs to the interval (all in units of 1 / d),
            and d,
        a power of two.
    """
    lowest = fmt.emin - fmt.p + 1
    ends = []
    for x in parts:
        m, e = math.frexp(x)
        unit = max(e - fmt.p, lowest) if m else lowest
        # Half a unit on either side; below a power of two the gap is half as wide.
        narrow = abs(m) == 0.5 and e - 1 > fmt.emin
        even = math.ldexp(m, e - unit) % 2 == 0
        ends.append((int(m * 2.0**53), e - 53, unit, narrow, even))
    low = min(0, *(min(e, unit - 2) for m, e, unit, _, _ in ends if m), ends[-1][2] - 2)
    if any(not m for m, *_ in ends):
        low = min(low, lowest - 2)
    above = 0
    found: tuple[list[int], list[int]] = ([], [])
    sides: tuple[list[bool], list[bool]] = ([], [])
    for m, e, unit, narrow, even in ends:
        above += m << (e - low) if m else 0
        half = 1 << (unit - 1 - low)
        below = half >> 1 if narrow and m > 0 else half
        beyond = half >> 1 if narrow and m < 0 else half
        for side, end in enumerate((above - below, above + beyond)):
            found[side].append(end)
            sides[side].append(even)
    first, last = max(found[0]), min(found[1])
    left = all(even for end, even in zip(found[0], sides[0], strict=True) if end == first)
    right = all(even for end, even in zip(found[1], sides[1], strict=True) if end == last)
    return above, first, last, left, right, 1 << -low


def shortest(parts: Sequence[float], fmt: Format) -> Digits:
    """Return the fewest digits that read back to the nearest expansion of the positive sum.

    Of the numbers of so many digits beside the sum it is the nearer one, if that reads back.

    Args:
        parts: the components.
        fmt: their format.
    """
    x, first, last, left, right, d = _interval(parts, fmt)
    if not first <= x <= last or (x == first and not left) or (x == last and not right):
        # The components are not canonical; those of the nearest expansion have the same sum.
        n, size = whole(parts)
        nearest = components_of(Fraction(n, size), fmt, len(parts))
        if math.isfinite(nearest[0]):
            x, first, last, left, right, d = _interval(nearest, fmt)
        elif not first < x <= last:
            return significant(n, size, held(n, size, fmt, len(parts)))
        # Otherwise x is half a unit beyond the largest number and reads back as infinity: the next
        # smaller decimal has these components.

    def found(count: int) -> Digits | None:
        # If any number of `count` digits reads back, one of the two neighbours of x does.
        q, rest, bottom, power = _quotient(x, d, count)
        near = q + (2 * rest > bottom or (2 * rest == bottom and q & 1))
        # x itself reads back, unless it is the end of the interval that reads as infinity.
        for number in (near, near - 1 if rest == 0 else 2 * q + 1 - near):
            shift = power - count + 1
            scale = ten(-shift) if shift < 0 else 1
            given = number * d if shift < 0 else number * ten(shift) * d
            low, high = first * scale, last * scale
            if (low < given or (left and low == given)) and (
                given < high or (right and given == high)
            ):
                return (number, power) if number < ten(count) else (ten(count - 1), power + 1)
        return None

    # Start at the number of digits whose spacing is about the length of the interval.
    count = max(1, math.ceil(math.log10(x) - math.log10(last - first)) + 1)
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
