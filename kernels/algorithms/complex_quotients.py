"""The quotient of complex expansions in registers; arguments and results are parts.

x / y = x conj(y) / |y|^2, with x and y scaled by powers of two to below 1, so that no intermediate
result overflows. The numerator has the error of a product, relative to |x y|; |y|^2 is a sum of
squares, and each part is divided once.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms import binary_scaling, ieee
from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, where
from mcf.kernels.statements import Family, kept, recorded


def larger_size(x0, y0):
    """Return the larger magnitude of two leading components."""
    x0, y0 = where(x0 < ZERO, neg(x0), x0), where(y0 < ZERO, neg(y0), y0)
    return where(x0 < y0, y0, x0)


def is_infinite(x0):
    """Return whether x0 is an infinity."""
    return (x0 == x0) & (rn(x0 - x0) != ZERO)


def exceptions(a0, b0, c0, d0):
    """Return whether the divisor is 0, and whether it is infinite while the dividend is finite."""
    finite = (rn(a0 - a0) == ZERO) & (rn(b0 - b0) == ZERO)
    infinite = is_infinite(c0) | is_infinite(d0)
    return (c0 == ZERO) & (d0 == ZERO), infinite & finite


def _quotient(width: int, terms: int) -> FunctionType:
    """Return the algorithm for parts of `terms` components in float64 or float32 registers."""
    exponent = binary_scaling.EXPONENT[width]
    scaled = binary_scaling.MULTIPLIED[width]
    multiplied, squared, over, add, sub, mul = (
        kept(f[terms], terms) for f in (scaled, ieee.SQUARE, ieee.DIV, ieee.ADD, ieee.SUB, ieee.MUL)
    )

    def form(a: Any, b: Any, c: Any, d: Any) -> Any:
        up, down = (exponent(larger_size(x[0], y[0])) for x, y in ((a, b), (c, d)))
        p, q = multiplied(a, neg(up)), multiplied(b, neg(up))
        r, s = multiplied(c, neg(down)), multiplied(d, neg(down))
        size = add(squared(r), squared(s))
        x = multiplied(over(add(mul(p, r), mul(q, s)), size), up - down)
        y = multiplied(over(sub(mul(q, r), mul(p, s)), size), up - down)
        by_zero, vanishes = exceptions(a[0], b[0], c[0], d[0])
        found = []
        for part, dividend in ((x, a), (y, b)):
            plain = rn(div(dividend[0], c[0]))
            found.append(where(by_zero, plain, where(vanishes, ZERO, part[0])))
            found += [where(by_zero | vanishes, ZERO, low) for low in part[1:]]
        return tuple(found)

    name, doc = f"complex_over_{terms}_{width}", "(a + ib) / (c + id)."
    return recorded(name, form, dict.fromkeys("abcd", terms), doc)


# Quotients in float64 registers, and in float32 registers.
DIV, DIV_NARROW = (Family(functools.partial(_quotient, width), range(1, 5)) for width in (64, 32))
