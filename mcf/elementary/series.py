"""Polynomials in a small argument, with only as many components per coefficient as needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary import working as ex
from mcf.elementary.format import working
from mcf.elementary.tables import TERMS, Components, constant, lookup, table
from mcf.kernels.formats import format_of

# Bits beyond the working precision, so that roundings of high terms do not accumulate.
_GUARD = 8
# Lower bound of the bits by which terms of a series at a node fall per degree.
FALL = 6.0
# Nodes of a table in each octave.
STEPS = 32


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
        total = (ex.absorb if step else ex.add)(constant(c, terms, device), ex.head(product, terms))
    return total


def whole_polynomial(coefficients: Sequence[int], x: Components) -> Components:
    """Return c_0 + c_1 x + c_2 x^2 + ... of whole numbers, by Horner's rule."""
    *others, last = coefficients
    total = ex.head((torch.full_like(x[0], float(last)),), len(x))
    for c in reversed(others):
        total = ex.mul(total, x)
        total = ex.add(total, torch.full_like(x[0], float(c))) if c else total
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
        total = add(coefficient(k, count), ex.head(product, count))
    return total


def absorbed(k: int, terms: int, first: int | None = 0) -> bool:
    """Return whether `at_node` adds the coefficient of degree k by `absorb`."""
    return first is not None and k >= first and adding(k * FALL)(terms)


class Nodes(NamedTuple):
    """A table of Taylor series at nodes, [components, nodes * degrees], contiguous per node.

    Attributes:
        name: of the table.
        octaves: there are 32 nodes in each octave.
        degrees: coefficients per node.
        first: the exponent of the first octave; None if [0, 1) comes before that of 1.
        spare: bits by which all terms are larger than 2**(-FALL k).
        steep: the degree from which on coefficients are at least twice the sum of the next ones.
        more: degrees beyond those that are needed if terms fall by `FALL` bits each.
    """

    name: str
    octaves: int
    degrees: int
    first: int | None = None
    spare: float = 0.0
    steep: int = 0
    more: int = 2

    def points(self) -> list[tuple[Fraction, Fraction]]:
        """Return (node, half-width of its interval), ascending."""
        found = []
        for octave in range(self.octaves):
            e = octave - 1 if self.first is None else self.first + octave
            low = length = Fraction(2) ** e
            if self.first is None and octave == 0:
                low, length = Fraction(0), Fraction(1)
            half = length / (2 * STEPS)
            found += [(low + half * (2 * j + 1), half) for j in range(STEPS)]
        return found

    def degree(self, terms: int) -> int:
        """Return the degree that `terms` components need."""
        needed = int((working().format.p * terms + _GUARD + self.spare) / FALL) + self.more
        return min(self.degrees - 1, needed)

    def components(self, terms: int, k: int) -> int:
        """Return the components in which the coefficient of degree k is added."""
        p = working().format.p
        return min(terms, max(1, -int(-(p * terms + _GUARD + self.spare - k * FALL) // p)))

    def at(self, z: Components, terms: int) -> Components:
        """Evaluate the series at the nearest node for an expansion z."""
        if self.first is None:
            octave = (ex.exponent(z[0]) + 1).clamp(0, self.octaves - 1)
            below = (octave - 1).clamp(min=0)
            width, start = ex.power(below - 5), torch.where(octave == 0, 0.0, ex.power(below))
        else:
            octave = ex.exponent(z[0]).clamp(self.first, self.first + self.octaves - 1)
            start = ex.power(octave)
            width = start * (1 / STEPS)
        j = ((z[0] - start) / width).floor().clamp(0, STEPS - 1)
        v = ex.beside(z, start + width * (j + 0.5), terms)
        v = tuple(c * (2.0 / width) for c in v)
        row = octave if self.first is None else octave - self.first
        return self.about(row * STEPS + j.to(torch.int64), v)

    def about(self, node: Tensor, v: Components) -> Components:
        """Evaluate the series at nodes by their numbers, for |v| <= 1."""
        row, terms = node * self.degrees, len(v)
        return at_node(
            v,
            self.degree(terms),
            lambda k, count: lookup(self.name, row + k, count),
            lambda k: self.components(terms, k),
            self.steep,
        )


def less_zero(name: str, x: Components, terms: int) -> Components:
    """Return x minus the zero that a table holds as floats."""
    parts = table(name, x[0].device)
    return ex.collected((*x, *(-c.expand(x[0].shape) for c in parts)), terms)


def power_series(q: Any, coefficient: Callable[[int], Fraction], most: Fraction) -> Any:
    """Return c_0 + c_1 q + c_2 q^2 + ... for |q| <= most, by Horner's rule in the format of q.

    Args:
        q: an expansion tensor.
        coefficient: returns c_k. Terms at q = `most` must at least halve from one to the next.
        most: the largest argument.
    """
    least = abs(coefficient(0)) / 2 ** (format_of(q.dtype).p * q.terms + _GUARD)
    found = [coefficient(0)]
    while abs(found[-1]) * most ** (len(found) - 1) > least:
        found.append(coefficient(len(found)))
    total: Any = found.pop()
    for c in reversed(found):
        total = total * q + c
    return total


def spherical_weight(q: Any) -> Any:
    """Return (sin(t) / t - cos(t)) / t^2 for q = t^2 <= 1: sum of (-q)^k (2 k + 2) / (2 k + 3)!."""
    return power_series(
        q,
        lambda k: Fraction((-1) ** k * (2 * k + 2), math.factorial(2 * k + 3)),
        Fraction(1),
    )


def scaled(x: Components, factor: float) -> Components:
    """Return x times a power of two."""
    return tuple(c * factor for c in x)


def zeros(x: Components) -> Components:
    """Return zeros shaped like x."""
    return tuple(torch.zeros_like(c) for c in x)
