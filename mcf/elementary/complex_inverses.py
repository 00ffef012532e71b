"""Inverse trigonometric and hyperbolic functions of complex numbers.

Branch cuts, signed zeros and infinities are those of C99, Annex G: the sign of a zero part selects
the side of the cut, and conjugates have conjugate values. All are componentwise: in the first
quadrant the formulas of Kahan (1987, "Branch cuts for complex elementary functions") add numbers of
one sign only, and 1 - x is exact to the last component.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.complex_functions import (
    Parts,
    complex_function,
    half,
    held,
    larger,
    modulus,
    real,
    sqrt,
    with_sign,
)
from mcf.elementary.tables import Components, constant
from mcf.elementary.working import (
    exponent,
    head,
    sanitized,
    scale_all,
    select,
    special,
)
from mcf.kernels import operations as ex

# Beyond _HUGE, moduli are divided by 2**_SHIFT to stay finite.
_HUGE, _SHIFT = 2.0**1000, 8
# From this |z| on, terms of 1 / |z|^2 are below the last bit of four components.
_FAR = 2.0**150
# Below this the distance to 1 is scaled before it is squared.
_NEAR = 2.0**-300
# tan(pi / 8) to 600 bits.
_EIGHTH = Fraction(math.isqrt(2 << 1200), 1 << 600) - 1


def _one(like: Components) -> Components:
    return head((torch.ones_like(like[0]),), len(like))


def _ln2(times: int, like: Components) -> Components:
    return constant(times * fixed.to_fraction(fixed.ln2()), len(like), like[0].device)


def _infinite(x: Components, y: Components) -> Tensor:
    return x[0].isinf() | y[0].isinf()


def _unknown(x: Components, y: Components, angle: Components) -> Components:
    """Return an angle, or NaN where x + iy is NaN."""
    return special(x[0].isnan() | y[0].isnan(), math.nan, angle)


class _Arcs(NamedTuple):
    """Intermediate results from which asin and acos of x + iy, x, y >= 0, are computed.

    Attributes:
        sine: a point whose angle is the real part of asin.
        cosine: a point whose angle is half of the real part of acos.
        height: the modulus of the imaginary part of both.
    """

    sine: tuple[Components, Components]
    cosine: tuple[Components, Components]
    height: Components


def _arcs(x: Components, y: Components) -> _Arcs:
    """Return `_Arcs` from a - ib = sqrt(1 - z) and c + id = sqrt(1 + z), all nonnegative.

    asin z = atan2(x, ac + bd) + i asinh(ad + bc), acos z = 2 atan2(a, c) - i asinh(ad + bc).
    """
    infinite = _infinite(x, y)
    wide, high = x[0].isinf(), y[0].isinf()
    x, y = sanitized(x, ~infinite), sanitized(y, ~infinite)
    a, b = sqrt(ex.sub(_one(x), x), y)
    c, d = sqrt(ex.add(x, _one(x)), y)
    huge = larger(x[0], y[0]) > _HUGE
    down = torch.where(huge, -_SHIFT, 0)
    p, q = scale_all(a, down), scale_all(b, down)
    side = ex.add(ex.mul(p, c), ex.mul(q, d))
    height = special(infinite, math.inf, ex.add(ex.mul(p, d), ex.mul(q, c)))
    more = select(huge, tuple(k.expand(huge.shape) for k in _ln2(_SHIFT, x)), 0.0)
    flat, up = (head((torch.where(v, 1.0, 0.0).to(x[0].dtype),), len(x)) for v in (wide, high))
    eighth = tuple(k.expand(wide.shape) for k in constant(_EIGHTH, len(x), x[0].device))
    return _Arcs(
        (select(infinite, flat, scale_all(x, down)), select(infinite, up, side)),
        (
            select(infinite, select(wide & high, eighth, up), a),
            select(infinite, _one(x), c),
        ),
        ex.add(real("asinh", height), more),
    )


def _asin(x: Components, y: Components) -> Parts:
    arcs = _arcs(x, y)
    return held(x, _unknown(x, y, real("atan2", *arcs.sine))), arcs.height


def _acos(x: Components, y: Components) -> Parts:
    """Return acos(x + i|y|), the imaginary part without its sign."""
    arcs = _arcs(modulus(x), modulus(y))
    back, zero = torch.signbit(x[0]), x[0] == 0
    # pi / 2 for a zero x and any y.
    a, c = (select(zero & y[0].isnan(), _one(x), v) for v in arcs.cosine)
    angle = real("atan2", select(back, c, a), select(back, a, c))
    angle = select(zero, angle, _unknown(x, y, angle))
    return tuple(2.0 * v for v in angle), arcs.height


@complex_function
def asin(x: Components, y: Components) -> Parts:
    """Return atan2(x, ac + bd) + i asinh(ad + bc), a - ib = sqrt(1 - z), c + id = sqrt(1 + z)."""
    first, second = _asin(modulus(x), modulus(y))
    return with_sign(first, x), with_sign(second, y)


@complex_function
def asinh(x: Components, y: Components) -> Parts:
    """Return -i asin(iz)."""
    first, second = _asin(modulus(y), modulus(x))
    return with_sign(second, x), with_sign(first, y)


@complex_function
def acos(x: Components, y: Components) -> Parts:
    """Return 2 atan2(a, c) - i asinh(ad + bc), a - ib = sqrt(1 - z), c + id = sqrt(1 + z)."""
    first, second = _acos(x, y)
    return first, with_sign(second, tuple(-v for v in y))


@complex_function
def acosh(x: Components, y: Components) -> Parts:
    """Return i acos(z) or -i acos(z), whichever has a nonnegative real part."""
    first, second = _acos(x, y)
    return second, with_sign(first, y)


def _atanh(x: Components, y: Components) -> Parts:
    """Return atanh for x, y >= 0: log1p(4x / s) / 4 + i atan2(2y, (1 - x)(1 + x) - y^2) / 2.

    s = (1 - x)^2 + y^2. Near 1, where s may vanish, log(2x / sqrt(s)) / 2 replaces the first term;
    far out x / |z|^2, computed from scaled numbers.
    """
    infinite, unknown, zero = _infinite(x, y), y[0].isnan(), x
    x, y = sanitized(x, ~infinite), sanitized(y, ~infinite, 0.0)
    size = larger(x[0], y[0])
    far = infinite | (size > _FAR)
    e = torch.where(far, exponent(size), 0)
    x, y = scale_all(x, -e), scale_all(y, -e)
    one = head((torch.where(far, 0.0, 1.0).to(size.dtype),), len(x))
    low, high = ex.sub(one, x), ex.add(x, one)
    near = larger(low[0].abs(), y[0]) < _NEAR
    lift = torch.where(near, 800, 0)
    u, v = scale_all(low, lift), scale_all(y, lift)
    s = ex.add(ex.mul(u, u), ex.mul(v, v))
    ratio = ex.div(
        scale_all(x, torch.where(near, 1, torch.where(far, 0, 2))), select(near, ex.sqrt(s), s)
    )
    # The factor 2^100 is left out of 2x / sqrt(s), so that it does not overflow.
    size_log = real("log1p", sanitized(scale_all(ratio, torch.where(near, 700, 0)), ~far, 0.0))
    close = half(ex.add(size_log, tuple(k.expand(e.shape) for k in _ln2(100, x))))
    first = select(far, scale_all(ratio, -e), select(near, close, half(half(size_log))))
    angle = real("atan2", scale_all(y, 1 - e), ex.sub(ex.mul(low, high), ex.mul(y, y)))
    # Next to an infinity x is ignored; it may be NaN.
    angle = special(unknown, math.nan, angle)
    return held(zero, special(infinite, 0.0, first)), half(angle)


@complex_function
def atanh(x: Components, y: Components) -> Parts:
    """Return log1p(4x / ((1 - x)^2 + y^2)) / 4 + i atan2(2y, (1 - x)(1 + x) - y^2) / 2."""
    first, second = _atanh(modulus(x), modulus(y))
    return with_sign(first, x), with_sign(second, y)


@complex_function
def atan(x: Components, y: Components) -> Parts:
    """Return -i atanh(iz)."""
    first, second = _atanh(modulus(y), modulus(x))
    return with_sign(second, x), with_sign(first, y)
