"""The quotient of complex expansions in registers; arguments and results are parts.

x / y = x conj(y) / |y|^2, with x and y scaled by powers of two to below 1, so that no intermediate
result overflows. The numerator has the error of a product, relative to |x y|; |y|^2 is a sum of
squares, and each part is divided once.
"""

from __future__ import annotations

from types import FunctionType

from mcf.kernels.algorithms import binary_scaling, ieee
from mcf.kernels.algorithms.families import filled, written
from mcf.kernels.algorithms.primitives import ZERO, div, neg, rn, where


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


_SCALED = """
down = exponent(larger_size(c[0], d[0]))
p, q = multiplied(a, neg(up)), multiplied(b, neg(up))
r, s = multiplied(c, neg(down)), multiplied(d, neg(down))
size = add(squared(r), squared(s))
x = multiplied(over(add(mul(p, r), mul(q, s)), size), up - down)
y = multiplied(over(sub(mul(q, r), mul(p, s)), size), up - down)
""".strip().splitlines()


def _quotient(terms: int, width: int) -> FunctionType:
    """Return the algorithm for parts of `terms` components in float64 or float32 registers."""
    normal, power, exponent = (
        vars(binary_scaling)[f"{name}{width}"] for name in ("normal", "power", "exponent")
    )
    factors = filled(
        binary_scaling.factors, f"factors{width}", "As `factors`.", normal=normal, power=power
    )
    multiplied = filled(
        vars(binary_scaling)[f"multiplied{terms}"],
        f"multiplied{terms}_{width}",
        "x 2^k.",
        factors=factors,
    )
    results = ["by_zero, vanishes = exceptions(a[0], b[0], c[0], d[0])"]
    for part, over in (("x", "a"), ("y", "b")):
        plain = f"rn(div({over}[0], c[0]))"
        results.append(f"{part}0 = where(by_zero, {plain}, where(vanishes, ZERO, {part}[0]))")
        for k in range(1, terms):
            results.append(f"{part}{k} = where(by_zero | vanishes, ZERO, {part}[{k}])")
    return written(
        f"complex_over_{terms}_{width}",
        "a, b, c, d",
        [
            "up = exponent(larger_size(a[0], b[0]))",
            *_SCALED,
            *results,
            f"return {', '.join(f'{part}{k}' for part in 'xy' for k in range(terms))}",
        ],
        "(a + ib) / (c + id).",
        exponent=exponent,
        multiplied=multiplied,
        larger_size=larger_size,
        exceptions=exceptions,
        neg=neg,
        where=where,
        rn=rn,
        ZERO=ZERO,
        squared=ieee.SQUARE[terms],
        div=div,
        over=ieee.DIV[terms],
        **{name: vars(ieee)[name.upper()][terms] for name in ("add", "sub", "mul")},
    )


DIV = tuple(_quotient(n, 64) for n in range(1, 5))
DIV_NARROW = tuple(_quotient(n, 32) for n in range(1, 5))
