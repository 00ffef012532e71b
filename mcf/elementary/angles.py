"""sin, cos and atan2 of float64 expansions, by tables at multiples of 1/64 and short series."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import fixed, series
from mcf.elementary.format import working
from mcf.elementary.sums import gathered
from mcf.elementary.tables import ANGLE_STEPS, Components, constant, lookup
from mcf.elementary.working import head, minus, plus, select, sign_of, signed
from mcf.kernels.formats import FP64

# Squares of |d| <= 1/128.
_BITS = 14.0


def _sine(k: int) -> Fraction:
    """Of (sin(d)/d - 1) / (-d^2/6)."""
    return Fraction((-1) ** k * 6, math.factorial(2 * k + 3))


def _cosine(k: int) -> Fraction:
    """Of (cos(d) - 1) / (-d^2/2)."""
    return Fraction((-1) ** k * 2, math.factorial(2 * k + 2))


def _arctangent(k: int) -> Fraction:
    """Of (atan(d)/d - 1) / (-d^2/3)."""
    return Fraction((-1) ** k * 3, 2 * k + 3)


def _odd(d: Components, z: Components, tail: Components, divisor: int) -> Components:
    """D - d z tail / divisor."""
    factor = constant(Fraction(-1, divisor), len(d), d[0].device)
    return plus(d, ex.mul(d, ex.mul(ex.mul(z, tail), factor)))


class Angle:
    """An angle |r| <= pi/4 and a little, as a node and what is left of it.

    sin(j/64 + d) = S + (C sin d + S (cos d - 1)) with S and C the node's sine and cosine, from
    tables; the cosine is the same with C and -S in their place.
    """

    def __init__(self, r: Components) -> None:
        terms = len(r)
        self._node = (r[0].abs() * ANGLE_STEPS).round()
        self._sign = sign_of(r[0] < 0)
        a = signed(r, self._sign)
        index = self._node.to(torch.int64)
        # Exact, and what follows is at most half of its last bit as it was.
        first = a[0] - self._node * (1 / ANGLE_STEPS)
        if working().format is FP64:
            d = gathered(first, [(0, a[1:2]), (1, a[2:])], terms)
        else:
            d = ex.renormalize((first, *a[1:]), terms)
        z = ex.mul(d, d)
        self._s = _odd(d, z, series.polynomial(z, _BITS, _sine, _BITS + 2), 6)
        tail = series.polynomial(z, _BITS, _cosine, _BITS)
        self._c = series.scaled(ex.mul(z, tail), -0.5)
        self._sines = lookup("sines", index, terms)
        self._cosines = lookup("cosines", index, terms)

    def _turned(self, big: Components, other: Components) -> Components:
        return plus(big, ex.add(ex.mul(other, self._s), ex.mul(big, self._c)))

    def _signed_sine(self, sine: Components) -> Components:
        return signed(select(self._node == 0, self._s, sine), self._sign)

    def both(self) -> tuple[Components, Components]:
        """Sine and cosine."""
        sine = self._signed_sine(self._turned(self._sines, self._cosines))
        return sine, self._turned(self._cosines, minus(self._sines))

    def one(self, across: Tensor) -> Components:
        """The cosine where `across` holds, else the sine."""
        big = select(across, self._cosines, self._sines)
        other = select(across, minus(self._sines), self._cosines)
        found = self._turned(big, other)
        return select(across, found, self._signed_sine(found))


def atan2(y: Components, x: Components, terms: int) -> Components:
    """Angle of the point (x, y) for y >= 0, x >= 0, both normal or zero and not both zero.

    With t the multiple of 1/64 nearest to y/x (for y <= x, else of x/y):
    atan(y/x) = atan(t) + atan((y - t x)/(x + t y)).
    """
    steep = y[0] > x[0]
    low, high = select(steep, x, y), select(steep, y, x)
    node = (low[0] / high[0] * ANGLE_STEPS).round()
    t = node * (1 / ANGLE_STEPS)
    numerator = ex.add(low, ex.mul(high, head((-t,), terms)))
    # Exactly low where t = 0.
    numerator = select(node == 0, low, numerator)
    d = ex.div(numerator, ex.add(high, ex.mul(low, head((t,), terms))))
    z = ex.mul(d, d)
    small = _odd(d, z, series.polynomial(z, _BITS, _arctangent, _BITS + 1), 3)
    angle = plus(lookup("arctangents", node.to(torch.int64), terms), small)
    angle = select(node == 0, small, angle)
    return select(steep, ex.add(half_pi(terms, angle[0]), minus(angle)), angle)


def half_pi(terms: int, like: Tensor) -> Components:
    """pi/2 on the device of a tensor and expanded to its shape."""
    value = constant(fixed.to_fraction(fixed.pi()) / 2, terms, like.device)
    return tuple(c.expand(like.shape) for c in head(value, terms))
