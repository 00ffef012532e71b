"""Polynomials in a small argument, each coefficient to no more components than it needs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch

from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.tables import TERMS, Components, constant
from mcf.elementary.working import head

# Bits beyond those of the working precision, so that roundings of high terms do not add up.
_GUARD = 8
# Bits by which each degree of a series at a node of a table is smaller, at least.
FALL = 6.0


def polynomial(
    x: Components, bits: float, coefficient: Callable[[int], Fraction], weight: float = 0.0
) -> Components:
    """c_0 + c_1 x + c_2 x^2 + ... to the precision of x, for |x| <= 2**-bits.

    Horner's rule. The term of degree k is at most |c_k| 2**(-k bits), so the steps of high degree
    work on few components, and the series ends where a term no longer counts.

    Args:
        x: the argument, as many components as are wanted.
        bits: -log2 of the bound of |x|.
        coefficient: of degree k, as an exact number; c_0 is about 1 in magnitude, the others are
            not zero.
        weight: bits by which the polynomial is smaller than what it is added to; it may be as
            much less accurate.
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
    """Whether sums of so many components may be by `absorb`, whose error of four is larger."""
    return lambda terms: terms < TERMS or weight >= 8.0


def falling(c: Fraction, after: Fraction, bits: float) -> bool:
    """Whether a coefficient is at least twice the next one times the argument, and a margin."""
    return abs(c) >= abs(after) * Fraction(2.0 ** (2 - bits))


def terms_needed(
    wanted: float, bits: float, coefficient: Callable[[int], Fraction], p: int = 53
) -> list[tuple[Fraction, int]]:
    """The coefficients that count for `wanted` bits, and how many components of p bits each has."""
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
    """A Taylor series in |v| <= 1 by Horner's rule, its coefficients from a table.

    Args:
        v: the distance from the node, in halves of its interval.
        degree: of the first coefficient that is used, of which one component is.
        coefficient: of a degree, so many components of it.
        needed: how many components the coefficient of a degree is added in.
        first: the degree from which on coefficients are at least twice the sum of what follows
            them, so that they take it by `absorb`; None where none are.
    """
    total = coefficient(degree, 1)
    for k in range(degree - 1, -1, -1):
        product = ex.mul(total, v[: len(total)])
        count = needed(k)
        add = ex.absorb if absorbed(k, count, first) else ex.add
        total = add(coefficient(k, count), head(product, count))
    return total


def absorbed(k: int, terms: int, first: int | None = 0) -> bool:
    """Whether the coefficient of degree k takes what follows by `absorb`; see `at_node`."""
    return first is not None and k >= first and adding(k * FALL)(terms)


def scaled(x: Components, factor: float) -> Components:
    """X times a power of two."""
    return tuple(c * factor for c in x)


def zeros(x: Components) -> Components:
    """Zeros shaped as x."""
    return tuple(torch.zeros_like(c) for c in x)
