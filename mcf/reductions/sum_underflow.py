"""What underflow costs sums of products, norms and moments."""

from __future__ import annotations

from fractions import Fraction

from mcf.kernels.formats import FP32, FP64, Format


def scaled_products(state: int, count: int) -> Fraction:
    """What products lose to underflow in float32, relative to a sum of squares.

    The largest number is at least 1/2 and its square 1/4. Scaling loses half of eta of each
    component of a number, 2 s eta of its square.
    """
    return 4 * (count * (state**2 + 2 * state)) * FP32.min_subnormal


def scaled_underflow(state: int, count: int) -> Fraction:
    """What underflow costs a standard deviation whose rows are scaled, relative to T.

    With the largest element at least 1/2, T >= 1 / (2 sqrt(count - correction)). Products leave
    the sum of squares off by count state**2 eta / 2 at most, the quotient its value v by
    state eta, and |sqrt(v + d) - sqrt(v)| <= sqrt(|d|): in all below 4 sqrt(count) state 2**-537
    of T. The root's own part, 20 eta (1 + 1/t) with t >= 2**-537, is below 40 sqrt(count) 2**-537
    of T; elements that scaling takes below the range and the mean err by multiples of eta.
    """
    return count * state * Fraction(1, 2**530)


# What underflow costs where components have the registers' format: of a number of registers and of
# elements.


def nothing(state: int, count: int, register: Format) -> Fraction:
    """Sums are exact below the normal range."""
    return Fraction(0)


def last_places(state: int, count: int, register: Format) -> Fraction:
    """A quotient, or a product with a power of two: half a unit for each component, and as much."""
    return state * register.min_subnormal


def products(state: int, count: int, register: Format) -> Fraction:
    """At most state**2 products or their errors a term, each off by half a unit.

    The other half is for what follows: relative errors of these, and a variance's quotient.
    """
    return count * state**2 * register.min_subnormal


def variances(state: int, count: int, register: Format) -> Fraction:
    """As products, or in float32 registers as deviations: gaps are scaled there."""
    if register == FP64:
        return products(state, count, register)
    return 4 * state * register.min_subnormal


def deviations(state: int, count: int, register: Format) -> Fraction:
    """In float32 registers gaps are scaled before they are squared, and the mean's quotient counts.

    That is off by state eta, and a deviation by as much as the mean is.
    """
    if register == FP64:
        return last_places(state, count, register)
    return 4 * state * register.min_subnormal
