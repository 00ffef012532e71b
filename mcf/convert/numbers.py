"""Convert exact numbers to expansions, one at a time: the nearest expansion of a rational."""

from __future__ import annotations

import math
from fractions import Fraction

from mcf.kernels.formats import FP64, Format

# Every number of a format, and every midpoint of two, is a multiple of 2**-_LOWEST.
_LOWEST = -FP64.emin + FP64.p
# Numerators and denominators up to this length are divided without shortening.
_LONG = 4 * _LOWEST


def components_of(value: int | float | Fraction, fmt: Format, terms: int) -> tuple[float, ...]:
    """Return the nearest expansion of a number: x0 = RN(v), x1 = RN(v - x0), and so on.

    Args:
        value: a number; infinities, NaN and the sign of a float zero are kept.
        fmt: the components' format.
        terms: their number.

    Returns:
        `terms` floats, each a number of the format. A value that overflows gives an infinity.
    """
    zeros = (0.0,) * (terms - 1)
    if isinstance(value, float) and (value == 0 or not math.isfinite(value)):
        return (value, *zeros)
    if isinstance(value, complex):
        raise TypeError(f"expansion tensors are real, got the complex number {value!r}")
    if isinstance(value, float) and fmt is FP64:
        return (value, *zeros)
    return nearest(*value.as_integer_ratio(), fmt, terms)


def nearest(n: int, d: int, fmt: Format, terms: int) -> tuple[float, ...]:
    """Return the nearest expansion of n / d with d > 0."""
    negative = n < 0
    if n.bit_length() - d.bit_length() > fmt.emax + 2:
        return (-math.inf if negative else math.inf, *(0.0,) * (terms - 1))
    n, d = shortened(n, d)
    out: list[float] = []
    while len(out) < terms:
        x, n, d = _rounded(n, d, fmt)
        if math.isinf(x):
            return (x, *(0.0,) * (terms - 1))
        out.append(x)
        if not n:
            out += [0.0] * (terms - len(out))
    if out[0] == 0 and negative:
        out[0] = -0.0
    return tuple(out)


def shortened(n: int, d: int) -> tuple[int, int]:
    """Return a shorter fraction that rounds and compares like n / d.

    It is n / d rounded to odd far below the last place of every format: on the same side of every
    number of a format, and of every midpoint of two.
    """
    if d.bit_length() <= _LONG:
        return n, d
    quotient, rest = divmod(n << _LOWEST, d)
    return 2 * quotient + (rest != 0), 2 << _LOWEST


def _rounded(n: int, d: int, fmt: Format) -> tuple[float, int, int]:
    """Return RN(n / d), and n / d - RN(n / d) as a fraction."""
    if fmt is FP64:
        try:
            # Python rounds quotients of integers to nearest even, also subnormal ones.
            x = n / d + 0.0
        except OverflowError:
            return (math.inf if n > 0 else -math.inf), n, d
        a, b = x.as_integer_ratio()
        return (x, n - a * (d // b), d) if d % b == 0 else (x, n * b - a * d, d * b)
    size = abs(n)
    e = size.bit_length() - d.bit_length()
    if size << max(-e, 0) < d << max(e, 0):
        e -= 1
    # The exponent of a unit in the last place. Fractions stay unreduced: gcd takes longer.
    unit = max(e, fmt.emin) - fmt.p + 1
    up, down = max(unit, 0), max(-unit, 0)
    divisor = d << up
    q, rest = divmod(n << down, divisor)
    if 2 * rest > divisor or (2 * rest == divisor and q & 1):
        q, rest = q + 1, rest - divisor
    if q.bit_length() - 1 + unit > fmt.emax:
        return math.copysign(math.inf, q), rest, d
    return math.ldexp(q, unit), rest, d << down
