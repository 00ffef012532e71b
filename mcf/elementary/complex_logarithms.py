"""Complex expm1 and log1p, and logarithms to other bases.

Errors are relative to the modulus of the result, also if it is small: a cancellation in a part is
no larger than the result. Signed zeros and infinities follow from the composing functions; C99
defines none of these.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from mcf.elementary import complex_functions as functions
from mcf.elementary import fixed
from mcf.elementary.complex_functions import (
    Parts,
    complex_function,
    half,
    held,
    real,
    squared,
    turned,
)
from mcf.elementary.tables import Components, constant
from mcf.elementary.working import head, minus, select, special
from mcf.kernels import operations as ex


@complex_function
def expm1(x: Components, y: Components) -> Parts:
    """Return e^z - 1 = (e^x - 1) cos y - 2 sin(y / 2)^2 + i e^x sin y, with small terms."""
    angle = turned(x, y)
    grown, sine = real("expm1", x), real("sin", half(angle))
    size = ex.mul(grown, real("cos", angle))
    twice = tuple(2.0 * c for c in squared(sine))
    first = select(y[0] == 0, size, ex.add(size, minus(twice)))
    return first, held(y, ex.mul(real("exp", x), real("sin", angle)))


@complex_function
def log1p(x: Components, y: Components) -> Parts:
    """Return log(1 + z); near 0 the real part is log(1 + x (2 + x) + y^2) / 2.

    Near means |x| <= 1/2 and |y| <= 1.
    """
    near = (x[0].abs() <= 0.5) & (y[0].abs() <= 1.0)
    one = head((torch.ones_like(x[0]),), len(x))
    a, b = select(near, x, 0.5), select(near, y, 0.0)
    size = ex.add(ex.mul(a, ex.add(a, tuple(2.0 * c for c in one))), squared(b))
    beyond, angle = functions.log(ex.add(one, x), y)
    unknown = x[0].isnan() | y[0].isnan()
    first = select(near, half(real("log1p", size)), beyond)
    zero = (x[0] == 0) & (y[0] == 0)
    infinite = x[0].isinf() | y[0].isinf()
    first = special(zero, x[0], special(unknown & ~infinite, math.nan, first))
    return first, angle


def _to_base(x: Components, y: Components, log_base: int) -> Parts:
    inverse = constant(Fraction(fixed.ONE, log_base), len(x), x[0].device)
    factor = tuple(c.expand(x[0].shape) for c in inverse)
    first, second = functions.log(x, y)
    return ex.mul(first, factor), held(second, ex.mul(second, factor))


@complex_function
def log2(x: Components, y: Components) -> Parts:
    """Return log(z) / log(2)."""
    return _to_base(x, y, fixed.ln2())


@complex_function
def log10(x: Components, y: Components) -> Parts:
    """Return log(z) / log(10)."""
    return _to_base(x, y, fixed.ln10())
