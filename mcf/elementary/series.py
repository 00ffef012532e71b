"""Polynomials in a small argument, with only as many components per coefficient as needed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch

from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.tables import TERMS, Components, constant
from mcf.elementary.working import head

# Bits beyond the working precision, so that roundings of high terms do not accumulate.
_GUARD = 8
# Lower bound of the bits by which terms of a series at a node fall per degree.
FALL = 6.0


def polynomial(
    x: Components, bits: float, coefficient: Callable[[int], Fraction], weight: float = 0.0
) -> Components:
    """Return c_0 + c_1 x + c_2 x^2 + ... to the precision of x, for |x| <= 2**-bits.

    Horner's rule. The term of degree k is at most |c_k| 2**(-k bits), so steps of high degree use
    few components, and the series ends when a term becomes negligible.

    Args:
        x: the argument, with as many components as are wanted.
        bits: -log2 of the bound of |x|.
        coefficient: maps k to the exact coefficient of degree k; c_0 is about 1 in magnitude, the
            others are not zero.
        weight: bits by which the polynomial is smaller than the number it is added to; its
            precision may be lower by as much.
    """
    p = working().format.p
    needed = terms_needed(p * len(x) + _GUARD - weight, bits, coefficient, p)
    coefficients = [(c, min(terms, len(x))) for c, terms in needed]
    device = x[0].device
    add = adding(weight)
    c, terms = coefficients.pop()
    total = tuple(t.expand(x[0].shape) for t in constant(c, terms, device))
    while coefficients:
        product, after = ex.mul(total, x[:terms]), c
        c, terms = coefficients.pop()
        step = add(terms) and falling(c, after, bits)
        total = (ex.absorb if step else ex.add)(constant(c, terms, device), head(product, terms))
    return total


def adding(weight: float) -> Callable[[int], bool]:
    """Return the test for which component counts sums may use `absorb`."""
    return lambda terms: terms < TERMS or weight >= 8.0


def falling(c: Fraction, after: Fraction, bits: float) -> bool:
    """Return whether a coefficient is at least twice the next one times the argument."""
    return abs(c) >= abs(after) * Fraction(2.0 ** (2 - bits))


def terms_needed(
    wanted: float, bits: float, coefficient: Callable[[int], Fraction], p: int = 53
) -> list[tuple[Fraction, int]]:
    """Return the coefficients needed for `wanted` bits, with the components of p bits for each."""
    found: list[tuple[Fraction, int]] = []
    while True:
        c = coefficient(len(found))
        left = wanted - len(found) * bits + _log2(c)
        if left <= 0:
            return found
        found.append((c, -int(-left // p)))


def _log2(c: Fraction) -> float:
    return float(abs(c.numerator).bit_length() - c.denominator.bit_length())


def at_node(
    v: Components,
    degree: int,
    coefficient: Callable[[int, int], Components],
    needed: Callable[[int], int],
    first: int | None = 0,
) -> Components:
    """Evaluate a Taylor series in |v| <= 1 by Horner's rule, with coefficients from a table.

    Args:
        v: the distance from the node, in half-widths of its interval.
        degree: the degree of the first coefficient used; it has one component.
        coefficient: (degree, count) -> that many components of the coefficient.
        needed: maps a degree to the number of components of its coefficient.
        first: the degree from which on coefficients are at least twice the sum of the following
            ones,
            so that `absorb` can add them; None if there is none.
    """
    total = coefficient(degree, 1)
    for k in range(degree - 1, -1, -1):
        product = ex.mul(total, v[: len(total)])
        count = needed(k)
        add = ex.absorb if absorbed(k, count, first) else ex.add
        total = add(coefficient(k, count), head(product, count))
    return total


def absorbed(k: int, terms: int, first: int | None = 0) -> bool:
    """Return whether `at_node` adds the coefficient of degree k by `absorb`."""
    return first is not None and k >= first and adding(k * FALL)(terms)


def scaled(x: Components, factor: float) -> Components:
    """Return x times a power of two."""
    return tuple(c * factor for c in x)


def zeros(x: Components) -> Components:
    """Return zeros shaped like x."""
    return tuple(torch.zeros_like(c) for c in x)
