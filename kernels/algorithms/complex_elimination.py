"""Formulas of Gaussian elimination on complex expansions, by number of components of a part.

They correspond to those of `elimination` on real numbers. A number is one tuple: the components of
its real part, then those of its imaginary part.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms import complex_numbers, complex_quotients
from mcf.kernels.algorithms.elimination import (
    POSITIVE_OR_ONE,
    first_not_positive,
    first_zero,
    signed,
    still_flat,
)
from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.ieee import DIV, FMA, MINUS, SQRT, SUB, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, rn, where
from mcf.kernels.algorithms.reflection import CHOSEN

TERMS = (1, 2, 3, 4)
Family = dict[int, FunctionType]


def half(x: str, n: int, k: int) -> str:
    """Return the source of a number's real (0) or imaginary (1) part."""
    return "(" + "".join(f"{x}[{k * n + c}], " for c in range(n)) + ")"


def whole(real: str, imag: str, n: int) -> str:
    """Return the source of a number with these two parts."""
    return ", ".join(f"{p}[{c}]" for p in (real, imag) for c in range(n))


def family(name: str, parameters: str, body: Any, doc: str, **families: Any) -> Family:
    """Return functions by number of components; `body` generates the statements for each."""

    def make(n: int) -> FunctionType:
        found = {k: f[n] if isinstance(f, dict) else f for k, f in families.items()}
        return written(f"{name}{n}", parameters, body(n), doc, where=where, ZERO=ZERO, **found)

    return {n: make(n) for n in TERMS}


def _by_halves(name: str, doc: str, parameters: str, functions: Any) -> Family:
    """Apply a function to each part of the first argument, with the real parts of the others."""
    first, *others = parameters.split(", ")

    def body(n: int) -> list[str]:
        more = "".join(f", {half(x, n, 0)}" for x in others)
        return [
            *(f"{'pq'[k]} = function({half(first, n, k)}{more})" for k in (0, 1)),
            f"return {whole('p', 'q', n)}",
        ]

    return family(name, parameters, body, doc, function=functions)


def less(fma: Any, minus: Any, parts: Sequence[Any], conjugate: bool) -> tuple[Any, Any]:
    """Return z - m w, or z - conj(m) w, computed by four real fused operations.

    Args:
        fma: a, b, c -> a b + c of real numbers, or of what stands for them.
        minus: a -> -a.
        parts: Re z, Im z, Re m, Im m, Re w, Im w.
        conjugate: whether m is conjugated.
    """
    p, q, x, y, u, v = parts
    negative, other = minus(x), minus(y)
    first, second = (other, y) if conjugate else (y, other)
    return fma(negative, u, fma(first, v, p)), fma(negative, v, fma(second, u, q))


def _less(name: str, doc: str, conjugate: bool) -> Family:
    """Return `less` as a family of functions, by applying its formula to variable names."""

    def body(n: int) -> list[str]:
        z, w = ((half(v, n, 0), half(v, n, 1)) for v in "zw")
        negative = {"x": "less", "y": "other"}
        found = less("fma({}, {}, {})".format, negative.get, (*z, "x", "y", *w), conjugate)
        return [
            f"x, y = {half('m', n, 0)}, {half('m', n, 1)}",
            "less, other = minus(x), minus(y)",
            f"p = {found[0]}",
            f"q = {found[1]}",
            f"return {whole('p', 'q', n)}",
        ]

    return family(name, "z, m, w", body, doc, fma=FMA, minus=MINUS)


LESS_PRODUCT = _less("complex_less_product", "z - m w.", conjugate=False)
LESS_CONJUGATE = _less("complex_less_conjugate", "z - conj(m) w.", conjugate=True)
PRODUCT = family(
    "complex_product",
    "x, y",
    lambda n: [f"return function({', '.join(half(v, n, k) for v in 'xy' for k in (0, 1))})"],
    "x y.",
    function=dict(zip(TERMS, complex_numbers.MUL.usual, strict=True)),
)


def _quotient(name: str, functions: Any) -> Family:
    """Return the family x / h. h, one number per row, is first given the shape of x."""

    def body(n: int) -> list[str]:
        p, q = half("x", n, 0), half("x", n, 1)
        shaped = "".join(f"where(same, h[{k}], h[{k}]), " for k in range(2 * n))
        return [
            "same = x[0] == x[0]",
            f"h = ({shaped})",
            f"return function({p}, {q}, {half('h', n, 0)}, {half('h', n, 1)})",
        ]

    function = dict(zip(TERMS, functions, strict=True))
    return family(name, "x, h", body, "x / h.", function=function)


# Quotients in float64 registers, and in float32 registers.
QUOTIENT = _quotient("complex_quotient", complex_quotients.DIV)
QUOTIENT_NARROW = _quotient("complex_quotient_narrow", complex_quotients.DIV_NARROW)
OVER_REAL = _by_halves("complex_over_real", "x / Re h.", "x, h", DIV)
NEGATIVE = _by_halves("complex_negative", "-x.", "x", MINUS)
DIFFERENCE = family(
    "complex_difference",
    "x, y",
    lambda n: [
        *(f"{'pq'[k]} = function({half('x', n, k)}, {half('y', n, k)})" for k in (0, 1)),
        f"return {whole('p', 'q', n)}",
    ],
    "x - y.",
    function=SUB,
)
NONZERO_OR_ONE = family(
    "complex_nonzero_or_one",
    "d",
    lambda n: [
        f"good = (d[0] != ZERO) | (d[{n}] != ZERO)",
        "return "
        + ", ".join(f"where(good, d[{k}], {'ZERO' if k else 'ONE'})" for k in range(2 * n)),
    ],
    "d, and 1 where d is 0.",
    ONE=ONE,
)
ROOT_OF_POSITIVE = family(
    "complex_root_of_positive",
    "d",
    lambda n: [
        f"r = root(positive_or_one({half('d', n, 0)}))",
        "return "
        + ", ".join([*(f"r[{k}]" for k in range(n)), *["where(r[0] == r[0], ZERO, r[0])"] * n]),
    ],
    # The condition is never true (NaN aside), and it gives the zero the shape of the root.
    "The square root of Re d, and 1 where that is not positive.",
    root=SQRT,
    positive_or_one=POSITIVE_OR_ONE,
)
MAGNITUDE = family(
    "complex_magnitude",
    "d",
    lambda n: [
        "x = where(d[0] < ZERO, neg(d[0]), d[0])",
        f"y = where(d[{n}] < ZERO, neg(d[{n}]), d[{n}])",
        "return rn(x + y)",
    ],
    "|Re d| + |Im d| by first components, as LAPACK has it where it looks for pivots.",
    rn=rn,
    neg=neg,
)
# The forms of real numbers, which hold for these functions too.
FIRST_ZERO = each("complex_first_zero", "The first pivot 0.", first_zero, magnitude=MAGNITUDE)
FIRST_NOT_POSITIVE = dict.fromkeys(TERMS, first_not_positive)
SIGNED = each(
    "complex_signed",
    "-x where odd, else x.",
    signed,
    chosen={n: CHOSEN[2 * n] for n in TERMS},
    minus=NEGATIVE,
)
STILL_FLAT = each("complex_still_flat", "flat where x is 0.", still_flat, magnitude=MAGNITUDE)
