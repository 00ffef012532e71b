"""Formulas of Gaussian elimination on complex expansions, by number of components of a part.

They correspond to those of `elimination` on real numbers. A number is one tuple: the components of
its real part, then those of its imaginary part.
"""

from collections.abc import Sequence
from typing import Any

from mcf.kernels.algorithms import complex_numbers, complex_quotients
from mcf.kernels.algorithms.elimination import first_bad, or_one
from mcf.kernels.algorithms.ieee import DIV, FMA, SQRT, SUB, negated
from mcf.kernels.algorithms.primitives import ZERO, invert, neg, rn, where
from mcf.kernels.algorithms.selection import negated_where
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


@family("z** m** w**", fma=FMA)
def less_product(z, m, w, fma):
    """Return z - m w."""
    return Complex(*less(fma, negated, (*z, *m, *w), False))


@family("z** m** w**", fma=FMA)
def less_conjugate(z, m, w, fma):
    """Return z - conj(m) w."""
    return Complex(*less(fma, negated, (*z, *m, *w), True))


@family("x** y**", complex_function=complex_numbers.MUL.usual)
def product(x, y, complex_function):
    """Return x y."""
    return complex_function(*x, *y)


def quotient_by(x, h, complex_function):
    """Return x / h; h, one number per row, is first given the shape of x."""
    same = x.real[0] == x.real[0]
    shaped = (tuple(where(same, a, a) for a in part) for part in h)
    return complex_function(*x, *shaped)


# Quotients in float64 registers, and in float32 registers.
quotient, quotient_narrow = (
    family("x** h**", complex_function=functions)(quotient_by)
    for functions in (complex_quotients.DIV, complex_quotients.DIV_NARROW)
)


@family("x** y**", function=SUB)
def difference(x, y, function):
    """Return x - y."""
    return Complex(function(x.real, y.real), function(x.imag, y.imag))


@family("x** h**", function=DIV)
def over_real(x, h, function):
    """Return x / Re h."""
    return Complex(function(x.real, h.real), function(x.imag, h.real))


@family("x**")
def negative(x):
    """Return -x."""
    return Complex(*map(negated, x))


@family("d**")
def nonzero_or_one(d):
    """Return d, or 1 where d is 0."""
    good = (d.real[0] != ZERO) | (d.imag[0] != ZERO)
    return or_one(good, (*d.real, *d.imag))


@family("d**", root=SQRT)
def root_of_positive(d, root):
    """Return the square root of Re d, or 1 where Re d is not positive."""
    r = root(or_one(d.real[0] > ZERO, d.real))
    # The condition is never true (NaN aside), and it gives the zero the shape of the root.
    return Complex(r, tuple(where(r[0] == r[0], ZERO, r[0]) for _ in r))


def size(d):
    """Return |Re d| + |Im d| by first components, as LAPACK does when it searches for pivots."""
    x, y = (where(part[0] < ZERO, neg(part[0]), part[0]) for part in d)
    return rn(x + y)


magnitude = family("d**")(size)


@family("known. d** index")
def first_zero(known, d, index):
    """Return the index of the first pivot that is 0."""
    return first_bad(known, size(d) == ZERO, index)


@family("known. d** index")
def first_not_positive(known, d, index):
    """Return the index of the first pivot whose real part is not positive."""
    return first_bad(known, invert(d.real[0] > ZERO), index)


@family("odd. x**")
def signed(odd, x):
    """Return -x where a number of exchanges is odd, else x."""
    return Complex(*(negated_where(odd[0] != ZERO, part) for part in x))


@family("flat. x**")
def still_flat(flat, x):
    """Return `flat` where x is 0, else 0."""
    return (where(size(x) == ZERO, flat[0], ZERO),)
