"""Correct rounding of rational numbers to any format."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from mcf.kernels.formats import Format

# A finite number is a Fraction; infinities and NaN are Python floats, which Fractions mix with.
Number = Fraction | float


def is_finite(x: Number) -> bool:
    """Whether x is neither an infinity nor NaN."""
    return isinstance(x, Fraction)


def exponent(x: Fraction) -> int:
    """floor(log2 |x|) of a number other than 0."""
    n, d = abs(x.numerator), x.denominator
    e = n.bit_length() - d.bit_length()
    return e if (n << max(-e, 0)) >= (d << max(e, 0)) else e - 1


def _power_of_two(e: int) -> Fraction:
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


@functools.cache
def rounding(fmt: Format) -> Callable[[Number], Number]:
    """The function x -> x rounded to nearest even in `fmt`, with gradual underflow.

    Overflow gives an infinity, as IEEE 754 has it: for |x| >= (2 - 2**-p) * 2**emax. Infinities
    and NaN are returned as they are. Zero has no sign.
    """
    largest = fmt.max

    def rn(x: Number) -> Number:
        if not isinstance(x, Fraction):
            return x
        if x == 0:
            return x
        ulp = _power_of_two(max(exponent(x), fmt.emin) - fmt.p + 1)
        # Python rounds a Fraction to the nearest integer, ties to even.
        y = round(x / ulp) * ulp
        if abs(y) > largest:
            return math.inf if y > 0 else -math.inf
        return y

    return rn


def square_root(x: Number, fmt: Format) -> Number:
    """sqrt(x) rounded once to `fmt`; NaN for x < 0."""
    if not isinstance(x, Fraction):
        return x if x > 0 else math.nan
    if x <= 0:
        return x if x == 0 else math.nan
    # At least p + 2 bits of the root: what is cut off cannot reach a midpoint of the format, so
    # any value strictly between two neighbouring roots stands for it.
    shift = max(0, fmt.p + 2 - exponent(x) // 2)
    scaled = (x.numerator << 2 * shift) // x.denominator
    root = math.isqrt(scaled)
    exact = root * root * x.denominator == x.numerator << 2 * shift
    between = Fraction(2 * root + (not exact), 2 << shift)
    return rounding(fmt)(between)
