"""Formulas of Gaussian elimination on complex expansions, by number of components of a part.

They correspond to those of `elimination` on real numbers. A number is one tuple: the components of
its real part, then those of its imaginary part.
"""

from collections.abc import Sequence
from typing import Any

from mcf.kernels.algorithms import complex_numbers, complex_quotients
from mcf.kernels.algorithms.elimination import (
    POSITIVE_OR_ONE,
    first_not_positive,
    first_zero,
    signed,
    still_flat,
)
from mcf.kernels.algorithms.ieee import DIV, FMA, MINUS, SQRT, SUB, each
from mcf.kernels.algorithms.primitives import ONE, ZERO, neg, rn, where
from mcf.kernels.algorithms.reflection import CHOSEN
from mcf.kernels.statements import Complex, family


def less(fma: Any, minus: Any, parts: Sequence[Any], conjugate: bool) -> tuple[Any, Any]:
    """Return z - m w, or z - conj(m) w, computed by four real fused operations.

    Args:
        fma: a, b, c -> a b + c of real numbers.
        minus: a -> -a.
        parts: Re z, Im z, Re m, Im m, Re w, Im w.
        conjugate: whether m is conjugated.
    """
    p, q, x, y, u, v = parts
    negative, other = minus(x), minus(y)
    first, second = (other, y) if conjugate else (y, other)
    return fma(negative, u, fma(first, v, p)), fma(negative, v, fma(second, u, q))


def less_product(z, m, w, fma, minus):
    """Return z - m w."""
    return Complex(*less(fma, minus, (*z, *m, *w), False))


def less_conjugate(z, m, w, fma, minus):
    """Return z - conj(m) w."""
    return Complex(*less(fma, minus, (*z, *m, *w), True))


def product(x, y, complex_function):
    """Return a function of both numbers."""
    return complex_function(*x, *y)


def quotient(x, h, complex_function):
    """Return x / h; h, one number per row, is first given the shape of x."""
    same = x.real[0] == x.real[0]
    shaped = (tuple(where(same, a, a) for a in part) for part in h)
    return complex_function(*x, *shaped)


def difference(x, y, function):
    """Return a function of the parts of x and y."""
    return Complex(function(x.real, y.real), function(x.imag, y.imag))


def over_real(x, h, function):
    """Return a function of the parts of x and of Re h."""
    return Complex(function(x.real, h.real), function(x.imag, h.real))


def negative(x, function):
    """Return a function of the parts of x."""
    return Complex(function(x.real), function(x.imag))


def nonzero_or_one(d):
    """Return d, and 1 where d is 0."""
    good = (d.real[0] != ZERO) | (d.imag[0] != ZERO)
    first, *rest = (*d.real, *d.imag)
    return where(good, first, ONE), *(where(good, x, ZERO) for x in rest)


def root_of_positive(d, root, positive_or_one):
    """Return the square root of Re d, and 1 where that is not positive."""
    r = root(positive_or_one(d.real))
    # The condition is never true (NaN aside), and it gives the zero the shape of the root.
    return Complex(r, tuple(where(r[0] == r[0], ZERO, r[0]) for _ in r))


def magnitude(d):
    """Return |Re d| + |Im d| by first components, as LAPACK has it where it looks for pivots."""
    x, y = (where(part[0] < ZERO, neg(part[0]), part[0]) for part in d)
    return rn(x + y)


def _by_terms(functions):
    return dict(enumerate(functions, 1))


FUSED = {"fma": FMA, "minus": MINUS}
LESS_PRODUCT = family("complex_less_product", less_product, "z** m** w**", "z - m w.", **FUSED)
LESS_CONJUGATE = family(
    "complex_less_conjugate", less_conjugate, "z** m** w**", "z - conj(m) w.", **FUSED
)
PRODUCT = family(
    "complex_product",
    product,
    "x** y**",
    "x y.",
    complex_function=_by_terms(complex_numbers.MUL.usual),
)
# Quotients in float64 registers, and in float32 registers.
QUOTIENT, QUOTIENT_NARROW = (
    family(name, quotient, "x** h**", "x / h.", complex_function=_by_terms(functions))
    for name, functions in (
        ("complex_quotient", complex_quotients.DIV),
        ("complex_quotient_narrow", complex_quotients.DIV_NARROW),
    )
)
OVER_REAL = family("complex_over_real", over_real, "x** h**", "x / Re h.", function=DIV)
NEGATIVE = family("complex_negative", negative, "x**", "-x.", function=MINUS)
DIFFERENCE = family("complex_difference", difference, "x** y**", "x - y.", function=SUB)
NONZERO_OR_ONE = family("complex_nonzero_or_one", nonzero_or_one, "d**", "d, and 1 where d is 0.")
ROOT_OF_POSITIVE = family(
    "complex_root_of_positive",
    root_of_positive,
    "d**",
    "The square root of Re d, and 1 where that is not positive.",
    root=SQRT,
    positive_or_one=POSITIVE_OR_ONE,
)
MAGNITUDE = family("complex_magnitude", magnitude, "d**", "|Re d| + |Im d| by first components.")
# The forms of real numbers, which hold for these functions too.
FIRST_ZERO = each("complex_first_zero", "The first pivot 0.", first_zero, magnitude=MAGNITUDE)
FIRST_NOT_POSITIVE = dict.fromkeys(MAGNITUDE, first_not_positive)
SIGNED = each(
    "complex_signed",
    "-x where odd, else x.",
    signed,
    chosen={n: CHOSEN[2 * n] for n in NEGATIVE},
    minus=NEGATIVE,
)
STILL_FLAT = each("complex_still_flat", "flat where x is 0.", still_flat, magnitude=MAGNITUDE)
