"""Errors due to underflow in sums of products, norms and moments."""

from __future__ import annotations

from fractions import Fraction

from mcf.kernels.formats import FP32, FP64, Format


def scaled_products(state: int, count: int) -> Fraction:
    """Return the underflow error of products in float32, relative to a sum of squares.

    The largest number is at least 1/2 and its square 1/4. Scaling loses half of eta from each
    component of a number, and 2 s eta from its square.
    """
    return 4 * (count * (state**2 + 2 * state)) * FP32.min_subnormal


def scaled_underflow(state: int, count: int) -> Fraction:
    """Return the underflow error of a standard deviation with scaled rows, relative to T.

    With the largest element at least 1/2, T >= 1 / (2 sqrt(count - correction)). Products give the
    sum of squares an error of at most count state**2 eta / 2, and the quotient gives its value v
    state eta. As
    |sqrt(v + d) - sqrt(v)| <= sqrt(|d|), the total is below 4 sqrt(count) state 2**-537 of T. The
    root's own part, 20 eta (1 + 1/t) with t >= 2**-537, is below 40 sqrt(count) 2**-537 of T.
    Elements scaled below the range, and the mean, have errors of multiples of eta.
    """
    return count * state * Fraction(1, 2**530)


# Underflow errors if components have the registers' format, by numbers of registers and elements.


def nothing(state: int, count: int, register: Format) -> Fraction:
    """Return 0: sums are exact below the normal range."""
    return Fraction(0)


def last_places(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a quotient or a scaling: half a unit per component, and as much again."""
    return state * register.min_subnormal


def products(state: int, count: int, register: Format) -> Fraction:
    """Return the error of at most state**2 products or their errors per term, half a unit each.

    The other half covers what follows: relative errors of these, and a variance's quotient.
    """
    return count * state**2 * register.min_subnormal


def variances(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a variance; deviations are scaled in float32 registers only."""
    if register == FP64:
        return products(state, count, register)
    return 4 * state * register.min_subnormal


def deviations(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a standard deviation; deviations are scaled in float32 registers.

    There the mean's quotient counts: it has an error of state eta, and a deviation as much as the
    mean.
    """
    if register == FP64:
        return last_places(state, count, register)
    return 4 * state * register.min_subnormal
