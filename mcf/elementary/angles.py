"""sin, cos and atan2 of float64 expansions, by tables at multiples of 1/64 and short series."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import fixed, series
from mcf.elementary.tables import ANGLE_STEPS, Components, constant, lookup
from mcf.elementary.working import head, minus, select, sign_of, signed
from mcf.kernels import operations as ex

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
    return ex.add(d, ex.mul(d, ex.mul(ex.mul(z, tail), factor)))


def sin_cos(r: Components) -> tuple[Components, Components]:
    """Sine and cosine of |r| <= pi/4 and a little."""
    terms = len(r)
    node = (r[0].abs() * ANGLE_STEPS).round()
    sign = sign_of(r[0] < 0)
    a = signed(r, sign)
    index = node.to(torch.int64)
    d = ex.renormalize((a[0] - node * (1 / ANGLE_STEPS), *a[1:]), terms)
    z = ex.mul(d, d)
    s = _odd(d, z, series.polynomial(z, _BITS, _sine, _BITS + 2), 6)
    c = series.scaled(ex.mul(z, series.polynomial(z, _BITS, _cosine, _BITS)), -0.5)
    sine, cosine = lookup("sines", index, terms), lookup("cosines", index, terms)
    up = ex.add(sine, ex.add(ex.mul(cosine, s), ex.mul(sine, c)))
    up = select(node == 0, s, up)
    across = ex.add(cosine, ex.add(ex.mul(cosine, c), minus(ex.mul(sine, s))))
    return signed(up, sign), across


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
    angle = ex.add(lookup("arctangents", node.to(torch.int64), terms), small)
    angle = select(node == 0, small, angle)
    return select(steep, ex.add(half_pi(terms, angle[0]), minus(angle)), angle)


def half_pi(terms: int, like: Tensor) -> Components:
    """pi/2 on the device of a tensor and expanded to its shape."""
    value = constant(fixed.to_fraction(fixed.pi()) / 2, terms, like.device)
    return tuple(c.expand(like.shape) for c in head(value, terms))
