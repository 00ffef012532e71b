"""sin, cos and atan2 of expansions, by tables at multiples of 1/256 and 1/64 and short series."""

from __future__ import annotations

import math
from fractions import Fraction

from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import fixed, series
from mcf.elementary.format import working
from mcf.elementary.ordered_sums import Sums, gathered
from mcf.elementary.tables import (
    ANGLE_STEPS,
    ATAN_STEPS,
    Components,
    constant,
    lookup,
)
from mcf.elementary.working import head, integer, minus, plus, select, sign_of, signed
from mcf.kernels.formats import FP64

# -log2 of the squares of |d| <= 1/512, and of quotients up to 1/128.
_BITS, _ATAN_BITS = 18.0, 14.0
# Component counts that leave bits to spare, so that products may be added without networks. Two are
# too few for four float32 components, and with four every bit counts.
_SPARING = 3


def _sine(k: int) -> Fraction:
    """Return the k-th coefficient of (sin(d)/d - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), math.factorial(2 * k + 3))


def _cosine(k: int) -> Fraction:
    """Return the k-th coefficient of (cos(d) - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), math.factorial(2 * k + 2))


def _arctangent(k: int) -> Fraction:
    """Return the k-th coefficient of (atan(d)/d - 1) / d^2 in d^2."""
    return Fraction((-1) ** (k + 1), 2 * k + 3)


def _odd(d: Components, z: Components, tail: Components) -> Components:
    """Return d + d z tail."""
    return plus(d, ex.mul(d, ex.mul(z, tail)))


class Angle:
    """Sine and cosine of an angle |r| slightly above pi/4 at most, as a node plus a remainder.

    sin(j/256 + d) = S + (C sin d + S (cos d - 1)) with the node's sine S and cosine C from tables.
    The cosine has C and -S in their place.
    """

    def __init__(self, r: Components) -> None:
        terms = len(r)
        self._node = (r[0].abs() * ANGLE_STEPS).round()
        self._sign = sign_of(r[0] < 0)
        a = signed(r, self._sign)
        index = integer(self._node)
        # The difference is exact, and the next component is at most half of its last bit.
        first = a[0] - self._node * (1 / ANGLE_STEPS)
        if working().format is FP64:
            d = gathered(first, [(0, a[1:2]), (1, a[2:])], terms)
        else:
            d = ex.renormalize((first, *a[1:]), terms)
        z = ex.mul(d, d)
        self._s = _odd(d, z, series.polynomial(z, _BITS, _sine, _BITS))
        self._c = ex.mul(z, series.polynomial(z, _BITS, _cosine, _BITS - 1))
        self._sines = lookup("sines", index, terms)
        self._cosines = lookup("cosines", index, terms)

    def _turned(self, big: Components, other: Components) -> Components:
        if len(big) != _SPARING:
            return plus(big, ex.add(ex.mul(other, self._s), ex.mul(big, self._c)))
        sums = Sums(big[0], len(big))
        sums.add_product(other, self._s)
        sums.add_product(big, self._c)
        # Add the large component last, so that fewer sums are large.
        for k, c in enumerate(big[1:], 1):
            sums.add(c, k)
        return sums.total()

    def _signed_sine(self, sine: Components) -> Components:
        return signed(select(self._node == 0, self._s, sine), self._sign)

    def both(self) -> tuple[Components, Components]:
        """Return sine and cosine."""
        sine = self._signed_sine(self._turned(self._sines, self._cosines))
        return sine, self._turned(self._cosines, minus(self._sines))

    def one(self, across: Tensor) -> Components:
        """Return the cosine where `across` holds, else the sine."""
        big = select(across, self._cosines, self._sines)
        other = select(across, minus(self._sines), self._cosines)
        found = self._turned(big, other)
        return select(across, found, self._signed_sine(found))


def atan2(y: Components, x: Components, terms: int) -> Components:
    """Return the angle of the point (x, y), y >= 0, x >= 0, both normal or zero, not both zero.

    With t the multiple of 1/64 nearest to y/x (for y <= x, else of x/y):
    atan(y/x) = atan(t) + atan((y - t x)/(x + t y)).
    """
    steep = y[0] > x[0]
    low, high = select(steep, x, y), select(steep, y, x)
    node = (low[0] / high[0] * ATAN_STEPS).round()
    t = node * (1 / ATAN_STEPS)
    numerator = ex.add(low, ex.mul(high, head((-t,), terms)))
    # The numerator is exactly low if t = 0.
    numerator = select(node == 0, low, numerator)
    d = ex.div(numerator, ex.add(high, ex.mul(low, head((t,), terms))))
    z = ex.mul(d, d)
    small = _odd(d, z, series.polynomial(z, _ATAN_BITS, _arctangent, _ATAN_BITS))
    angle = plus(lookup("arctangents", integer(node), terms), small)
    angle = select(node == 0, small, angle)
    return select(steep, ex.add(half_pi(terms, angle[0]), minus(angle)), angle)


def half_pi(terms: int, like: Tensor) -> Components:
    """Return pi/2 on the device of a tensor and expanded to its shape."""
    value = constant(fixed.to_fraction(fixed.pi()) / 2, terms, like.device)
    return tuple(c.expand(like.shape) for c in head(value, terms))
