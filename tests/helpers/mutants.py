"""Broken variants of the algorithms, which every check of a theorem must reject.

Each drops or reorders one thing. The keys are the operations they stand in for.
"""

from __future__ import annotations

from types import FunctionType

from mcf.kernels.algorithms import fast_two_sum, two_prod, two_sum
from mcf.kernels.algorithms.primitives import SPLITTER, fms, rc, rn


def two_sum_without_first_error(a, b):
    s = rc(a + b)
    t = rn(s - a)
    return s, rn(b - t)


def two_sum_without_second_error(a, b):
    s = rc(a + b)
    t = rn(s - a)
    return s, rn(a - rn(s - t))


def two_sum_without_one_subtraction(a, b):
    s = rc(a + b)
    t = rn(s - a)
    return s, rn(rn(a - t) + rn(b - t))


def two_sum_with_a_sign_wrong(a, b):
    s = rc(a + b)
    t = rn(s - a)
    return s, rn(rn(a - rn(s - t)) - rn(b - t))


def fast_two_sum_reversed(a, b):
    s = rc(a + b)
    return s, rn(a - rn(s - b))


def fast_two_sum_without_last(a, b):
    s = rc(a + b)
    return s, rn(s - a)


def split_with_a_short_constant(a):
    """2**floor(p/2) + 1 for odd p: what makes MCTensor's float64 product inexact."""
    c = rn(((SPLITTER - 1) / 2 + 1) * a)
    hi = rn(c - rn(c - a))
    return hi, rn(a - hi)


def split_without_low(a):
    c = rn(SPLITTER * a)
    hi = rn(c - rn(c - a))
    return hi, a - a


def two_prod_of_a_rounded_product(a, b):
    p = rn(a * b)
    return p, rn(rn(a * b) - p)


def two_prod_with_a_sign_wrong(a, b):
    p = rn(a * b)
    return p, -fms(a, b, p)


def grow_with_fast_two_sum(hi, lo, a):
    """What the released Collage code does: right only where |hi| >= |a|."""
    s, e = fast_two_sum(hi, a)
    return fast_two_sum(s, rn(lo + e))


def grow_without_low(hi, lo, a):
    return two_sum(hi, a)


def grow_without_error(hi, lo, a):
    s, _ = two_sum(hi, a)
    return fast_two_sum(s, lo)


def scale_without_low(hi, lo, a):
    return two_prod(hi, a)


def scale_without_error(hi, lo, a):
    return fast_two_sum(rn(hi * a), rn(lo * a))


def sloppy_add(x_hi, x_lo, y_hi, y_lo):
    """QD's default: no bound where the leading components cancel."""
    s, e = two_sum(x_hi, y_hi)
    return fast_two_sum(s, rn(e + rn(x_lo + y_lo)))


def add_without_low_error(x_hi, x_lo, y_hi, y_lo):
    s, e = two_sum(x_hi, y_hi)
    s, t = fast_two_sum(s, rn(x_lo + y_lo))
    return fast_two_sum(s, rn(e + t))


def mul_without_cross_terms(x_hi, x_lo, y_hi, y_lo):
    return two_prod(x_hi, y_hi)


def mul_without_one_cross_term(x_hi, x_lo, y_hi, y_lo):
    p, e = two_prod(x_hi, y_hi)
    return fast_two_sum(p, rn(e + rn(x_hi * y_lo)))


def mul_without_error(x_hi, x_lo, y_hi, y_lo):
    return fast_two_sum(rn(x_hi * y_hi), rn(rn(x_hi * y_lo) + rn(x_lo * y_hi)))


def mul_in_place(x_hi, x_lo, y_hi, y_lo):
    """The released Collage code's mistake: x_hi is overwritten while it is still needed."""
    x_hi = rn(x_hi * y_hi)
    e = fms(x_hi, y_hi, x_hi)
    return fast_two_sum(x_hi, rn(e + rn(rn(x_hi * y_lo) + rn(x_lo * y_hi))))


def renormalize_with_fast_two_sum(hi, lo):
    return fast_two_sum(hi, lo)


MUTANTS: dict[str, tuple[FunctionType, ...]] = {
    "two_sum": (
        fast_two_sum,
        two_sum_without_first_error,
        two_sum_without_second_error,
        two_sum_without_one_subtraction,
        two_sum_with_a_sign_wrong,
    ),
    "fast_two_sum": (fast_two_sum_reversed, fast_two_sum_without_last),
    "split": (split_with_a_short_constant, split_without_low),
    "two_prod": (two_prod_of_a_rounded_product, two_prod_with_a_sign_wrong),
    "grow": (grow_with_fast_two_sum, grow_without_low, grow_without_error),
    "scale": (scale_without_low, scale_without_error),
    "add": (sloppy_add, add_without_low_error),
    "mul": (mul_without_cross_terms, mul_without_one_cross_term, mul_without_error, mul_in_place),
    "renormalize": (renormalize_with_fast_two_sum,),
}

ALL = [(operation, mutant) for operation, several in MUTANTS.items() for mutant in several]


def name(x: object) -> str:
    """An id for parametrized tests."""
    return getattr(x, "__name__", str(x))
