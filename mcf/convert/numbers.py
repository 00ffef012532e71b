"""Exact numbers as expansions, one at a time: the nearest expansion of a rational."""

from __future__ import annotations

import math
from fractions import Fraction

from mcf.kernels.exact.rounding import rounding
from mcf.kernels.formats import Format


def components_of(value: int | float | Fraction, fmt: Format, terms: int) -> tuple[float, ...]:
    """The nearest expansion of a number: x0 = RN(v), x1 = RN(v - x0), and so on.

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
    rest = Fraction(value)
    rn = rounding(fmt)
    out = []
    for _ in range(terms):
        x = rn(rest)
        if not isinstance(x, Fraction):
            return (x, *zeros)
        out.append(float(x))
        rest -= x
    if out[0] == 0:
        out[0] = math.copysign(0.0, value)
    return tuple(out)
