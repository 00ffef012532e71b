"""sin, cos, tan and their inverses: special values, quadrants, and the general computation."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import angles, fixed
from mcf.elementary import working as ex
from mcf.elementary.angles import atan2_error, rest_of, sin_cos_error
from mcf.elementary.declarations import (
    COMPOSED,
    Composed,
    Real,
    composed,
    inverse,
    one_plus_square,
    root_of,
)
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.kernels.formats import FP64, Format


def _prepared(x: Components, fmt: Format) -> tuple[Components, Tensor]:
    y = ex.enter(x, fmt)
    finite = y[0].isfinite()
    return ex.sanitized(y, finite, 0.0), finite


def _polar(
    y: Components, x: Components, count: int, negative: Tensor, shift: Tensor | int = 0
) -> tuple[Components, Tensor]:
    """Return the angle of (x, y 2**shift), or pi minus it if `negative`, and its exponent."""
    limits = working()
    y, ey = ex.mantissa(y)
    x, ex_ = ex.mantissa(x)
    apart = ey - ex_ + shift
    # Further apart they do not affect each other, except in the quotient y/x itself.
    up = apart.clamp(-limits.apart, limits.apart)
    angle = angles.atan2(
        ex.scale_all(ex.head(y, count), up.clamp(max=0) + limits.above),
        ex.scale_all(ex.head(x, count), (-up).clamp(max=0) + limits.above),
        count,
    )
    pi = constant(fixed.to_fraction(fixed.pi()), count, y[0].device)
    angle = ex.select(negative, ex.add(ex.minus(angle), pi), angle)
    tiny = (apart < -limits.slope) & ~negative
    if not bool(tiny.any()):
        return angle, torch.zeros_like(apart)
    quotient = ex.div(ex.head(y, count), ex.head(x, count))
    return ex.select(tiny, quotient, angle), torch.where(tiny, apart.clamp(min=limits.bottom), 0)


def _angle(first: Components, second: Components, fmt: Format, terms: int) -> Components:
    """Return the angle of the point (second, first)."""
    y, x = ex.enter(first, fmt), ex.enter(second, fmt)
    w = ex.working_terms(fmt, terms)
    nan = y[0].isnan() | x[0].isnan()
    # A zero or infinite coordinate becomes a point on the same ray or diagonal.
    y0, x0 = y[0].abs(), x[0].abs()
    on_x = (y0 == 0) | (x0.isinf() & ~y0.isinf())
    on_y = (x0 == 0) & ~on_x | (y0.isinf() & ~x0.isinf())
    diagonal = y0.isinf() & x0.isinf()
    good = ~(nan | on_x | on_y | diagonal)
    down, left = torch.signbit(y[0]), torch.signbit(x[0])
    angle, k = _polar(
        ex.sanitized(ex.signed(y, ex.sign_of(down)), good),
        ex.sanitized(ex.signed(x, ex.sign_of(left)), good),
        w,
        left,
    )
    for condition, right_angle, left_angle in (
        (on_x, Fraction(0), Fraction(1)),
        (on_y, Fraction(1, 2), Fraction(1, 2)),
        (diagonal, Fraction(1, 4), Fraction(3, 4)),
    ):
        for side, part in ((~left, right_angle), (left, left_angle)):
            value = constant(fixed.to_fraction(fixed.pi()) * part, w, y[0].device)
            angle = ex.select(condition & side, value, angle)
            k = torch.where(condition & side, 0, k)
    out = ex.leave(angle, fmt, terms, k)
    out = ex.signed(out, ex.sign_of(down).to(fmt.dtype))
    return ex.special(nan, math.nan, out)


def _cofactor(y: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of sqrt((1 - y)(1 + y)) for 0 <= y <= 1."""
    one, raised = torch.ones_like(y[0]), working().raised
    low = ex.collected((one, *ex.minus(y)), count)
    high = ex.collected((one, *y), count)
    small = low[0] < working().small
    product = ex.mul(ex.scale_all(low, torch.where(small, raised, 0)), high)
    return ex.sqrt(product), torch.where(small, -raised // 2, 0)


def _inside(y: Components) -> tuple[Tensor, Tensor]:
    """Return whether |y| < 1, and whether |y| = 1."""
    if len(y) == 1:
        return y[0].abs() < 1, y[0].abs() == 1
    edge = y[0].abs() == 1
    rest = y[1] * torch.copysign(torch.ones_like(y[0]), y[0])
    return (y[0].abs() < 1) | (edge & (rest < 0)), edge & (rest == 0)


def _pi_part(part: Fraction, like: Tensor, fmt: Format, terms: int) -> Components:
    value = constant(fixed.to_fraction(fixed.pi()) * part, 4, like.device)
    return ex.leave(tuple(c.expand(like.shape) for c in value), fmt, terms)


def cofactor_error(e: Steps) -> float:
    """Return the error of sqrt((1 - x) (1 + x))."""
    return e.sqrt() + (2 * e.collect() + e.mul()) / 2


def _asin_slope_error(real: Real) -> float:
    inside = composed(real("add"), real("add"), real("mul"))
    return composed(inverse(composed(root_of(inside), real("sqrt"))), real("reciprocal"))


# 1 - x^2 cancels near |x| = 1; the product of 1 - x and 1 + x does not.
COMPOSED["asin_1"] = Composed(
    lambda x, of: 1 / ((1 - x) * (1 + x)).sqrt(),
    lambda x, of: x * (of.asin_1(x) / ((1 - x) * (1 + x))),
)


@function("x", torch=("sin",), bound=lambda e: max(sin_cos_error(e)), worst=1.03, slope=("cos",))
def sin(x: Components, fmt: Format, terms: int) -> Components:
    """Return the sine; angles of any size are reduced exactly; NaN at infinities."""
    y, finite = _prepared(x, fmt)
    w = ex.working_terms(fmt, terms)
    q, r, *_ = rest_of(y, fmt, terms, w)
    result = ex.signed(angles.Angle(r).one((q & 1) == 1), ex.sign_of(q >= 2))
    result = ex.select(y[0].abs() < working().tiny, ex.head(y, w), result)
    out = ex.special(~finite, math.nan, ex.leave(result, fmt, terms))
    return ex.special(x[0] == 0, x[0], out)


@function("x", torch=("cos",), bound=lambda e: max(sin_cos_error(e)), worst=0.88, slope=("sin",))
def cos(x: Components, fmt: Format, terms: int) -> Components:
    """Return the cosine; angles of any size are reduced exactly; NaN at infinities."""
    y, finite = _prepared(x, fmt)
    q, r, *_ = rest_of(y, fmt, terms, ex.working_terms(fmt, terms))
    result = ex.signed(angles.Angle(r).one((q & 1) == 0), ex.sign_of((q == 1) | (q == 2)))
    return ex.special(~finite, math.nan, ex.leave(result, fmt, terms))


@function(
    "x",
    torch=("tan",),
    bound=lambda e: sum(sin_cos_error(e)) + e.div(),
    worst=1.19,
    slope=lambda real: one_plus_square(real("tan"), real),
)
def tan(x: Components, fmt: Format, terms: int) -> Components:
    """Return tan x = sin x / cos x; angles of any size are reduced exactly; NaN at infinities."""
    y, finite = _prepared(x, fmt)
    w = ex.working_terms(fmt, terms)
    rest = rest_of(y, fmt, terms, w, full=True)
    s, c = angles.Angle(rest.r).both()
    odd, tiny = (rest.quadrant & 1) == 1, y[0].abs() < working().tiny
    k = rest.k
    if working().format is not FP64:
        # A remainder that equals its sine is used before its scaling.
        near = rest.r[0].abs() < working().tiny
        s = ex.select(near, rest.lifted, s)
        k = torch.where(near, torch.where(odd, -k, k), 0)
    s = ex.special(tiny, 1.0, s)
    result = ex.div(ex.select(odd, ex.minus(c), s), ex.select(odd, s, c))
    result = ex.select(tiny, ex.head(y, w), result)
    out = ex.special(~finite, math.nan, ex.leave(result, fmt, terms, k))
    return ex.special(x[0] == 0, x[0], out)


@function(
    "y",
    "x",
    bound=atan2_error,
    worst=4.12,
    slope=lambda real: composed(inverse(composed(real("mul"), real("add"))), real("div")),
)
def atan2(y: Components, x: Components, fmt: Format, terms: int) -> Components:
    """Return the angle of the point (x, y), in [-pi, pi]; quadrants and signed zeros as in C99."""
    return _angle(y, x, fmt, terms)


@function(
    "x",
    torch=("atan",),
    bound=atan2_error,
    worst=0.88,
    slope=lambda real: composed(inverse(one_plus_square(0.0, real)), real("div")),
)
def atan(x: Components, fmt: Format, terms: int) -> Components:
    """Return the arc tangent, in [-pi/2, pi/2]."""
    one = torch.ones_like(x[0])
    return _angle(x, ex.head((one,), terms), fmt, terms)


@function(
    "x",
    torch=("asin", "arcsin"),
    bound=lambda e: atan2_error(e, cofactor_error(e)),
    worst=1.07,
    derivative=lambda x, of: of.asin_1(x),
    slope=_asin_slope_error,
)
def asin(x: Components, fmt: Format, terms: int) -> Components:
    """Return the arc sine, in [-pi/2, pi/2]; NaN for |x| > 1."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    inside, edge = _inside(y)
    down = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = ex.sanitized(ex.signed(y, ex.sign_of(down)), good, 0.5)
    none = torch.zeros_like(down)
    beside, shift = _cofactor(y, w)
    angle, k = _polar(y, beside, w, none, -shift)
    out = ex.select(
        edge, _pi_part(Fraction(1, 2), y[0], fmt, terms), ex.leave(angle, fmt, terms, k)
    )
    out = ex.signed(out, ex.sign_of(down).to(fmt.dtype))
    out = ex.special(~(inside | edge), math.nan, out)
    return ex.special(x[0] == 0, x[0], out)


@function(
    "x",
    torch=("acos", "arccos"),
    bound=lambda e: atan2_error(e, cofactor_error(e)),
    worst=1.36,
    derivative=lambda x, of: -of.asin_1(x),
    slope=_asin_slope_error,
)
def acos(x: Components, fmt: Format, terms: int) -> Components:
    """Return the arc cosine, in [0, pi]; NaN for |x| > 1."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    inside, edge = _inside(y)
    left = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = ex.sanitized(ex.signed(y, ex.sign_of(left)), good, 0.5)
    beside, shift = _cofactor(y, w)
    angle, k = _polar(beside, y, w, left, shift)
    out = ex.leave(angle, fmt, terms, k)
    out = ex.select(x[0] == 0, _pi_part(Fraction(1, 2), y[0], fmt, terms), out)
    out = ex.select(edge & left, _pi_part(Fraction(1), y[0], fmt, terms), out)
    out = ex.special(edge & ~left, 0.0, out)
    return ex.special(~(inside | edge), math.nan, out)
