"""sin, cos, tan and their inverses: special values, quadrants, and the general computation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import angle_reduction, angles, fixed
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.elementary.working import (
    collected,
    enter,
    head,
    leave,
    mantissa,
    minus,
    rare,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import FP64, Format

Arguments = tuple[Components, ...]

# Up to this the argument is its own remainder: the reduction would find q = 0.
_REDUCED = 0.78125


class _Rest(NamedTuple):
    """The difference of a finite angle and the nearest multiple of pi/2.

    Attributes:
        quadrant: 0 to 3.
        r: components.
        lifted: components of r 2**-k, none of which underflows.
        k: 0 in float64.
    """

    quadrant: Tensor
    r: Components
    lifted: Components
    k: Tensor


def _rest(y: Components, fmt: Format, terms: int, count: int, *, full: bool = False) -> _Rest:
    """Reduce an angle; `full` keeps all bits of a tiny remainder in float32, too."""
    r, q = head(y, count), torch.zeros_like(y[0], dtype=torch.int64)
    lifted, k = r, q
    size = y[0].abs()
    if working().format is FP64:
        medium = (size >= _REDUCED) & (size <= angle_reduction.MEDIUM)
        if bool(medium.any()):
            near = sanitized(y, medium, 1.0)
            turned, reduced = angle_reduction.medium(near, fmt, terms, count)
            q, r = torch.where(medium, turned, q), select(medium, reduced, r)
        large = size > angle_reduction.MEDIUM
        wanted = rare(large)
    else:
        # In float32 all larger arguments use the digits of 1/(2 pi).
        large = size > _REDUCED
        wanted = bool(large.any())
    if wanted:
        turned, above, e = angle_reduction.quarter_turns(y, fmt, terms, count, full=full)
        q = torch.where(large, turned, q)
        if working().format is FP64:
            r = select(large, above, r)
            return _Rest(q, r, r, k)
        lifted, k = select(large, above, r), torch.where(large, e, 0)
        r = scale_all(lifted, k)
    return _Rest(q, r, r if working().format is FP64 else lifted, k)


def _prepared(x: Components, fmt: Format) -> tuple[Components, Tensor]:
    y = enter(x, fmt)
    finite = y[0].isfinite()
    return sanitized(y, finite, 0.0), finite


@function("x")
def sin(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the sine; angles of any size are reduced exactly; NaN at infinities."""
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    w = working_terms(fmt, terms)
    q, r, *_ = _rest(y, fmt, terms, w)
    result = signed(angles.Angle(r).one((q & 1) == 1), sign_of(q >= 2))
    result = select(y[0].abs() < working().tiny, head(y, w), result)
    out = special(~finite, math.nan, leave(result, fmt, terms))
    return special(x[0] == 0, x[0], out)


@function("x")
def cos(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the cosine; angles of any size are reduced exactly; NaN at infinities."""
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    q, r, *_ = _rest(y, fmt, terms, working_terms(fmt, terms))
    result = signed(angles.Angle(r).one((q & 1) == 0), sign_of((q == 1) | (q == 2)))
    return special(~finite, math.nan, leave(result, fmt, terms))


@function("x")
def tan(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return tan x = sin x / cos x; angles of any size are reduced exactly; NaN at infinities."""
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    w = working_terms(fmt, terms)
    rest = _rest(y, fmt, terms, w, full=True)
    s, c = angles.Angle(rest.r).both()
    odd, tiny = (rest.quadrant & 1) == 1, y[0].abs() < working().tiny
    k = rest.k
    if working().format is not FP64:
        # A remainder that equals its sine is used before its scaling.
        near = rest.r[0].abs() < working().tiny
        s = select(near, rest.lifted, s)
        k = torch.where(near, torch.where(odd, -k, k), 0)
    s = special(tiny, 1.0, s)
    result = ex.div(select(odd, minus(c), s), select(odd, s, c))
    result = select(tiny, head(y, w), result)
    out = special(~finite, math.nan, leave(result, fmt, terms, k))
    return special(x[0] == 0, x[0], out)


def _polar(
    y: Components, x: Components, count: int, negative: Tensor, shift: Tensor | int = 0
) -> tuple[Components, Tensor]:
    """Return the angle of (x, y 2**shift), or pi minus it if `negative`, and its exponent."""
    limits = working()
    y, ey = mantissa(y)
    x, ex_ = mantissa(x)
    apart = ey - ex_ + shift
    # Further apart they do not affect each other, except in the quotient y/x itself.
    up = apart.clamp(-limits.apart, limits.apart)
    angle = angles.atan2(
        scale_all(head(y, count), up.clamp(max=0) + limits.above),
        scale_all(head(x, count), (-up).clamp(max=0) + limits.above),
        count,
    )
    pi = constant(fixed.to_fraction(fixed.pi()), count, y[0].device)
    angle = select(negative, ex.add(minus(angle), pi), angle)
    tiny = (apart < -limits.slope) & ~negative
    if not bool(tiny.any()):
        return angle, torch.zeros_like(apart)
    quotient = ex.div(head(y, count), head(x, count))
    return select(tiny, quotient, angle), torch.where(tiny, apart.clamp(min=limits.bottom), 0)


def _angle(first: Components, second: Components, fmt: Format, terms: int) -> Components:
    """Return the angle of the point (second, first)."""
    y, x = enter(first, fmt), enter(second, fmt)
    w = working_terms(fmt, terms)
    nan = y[0].isnan() | x[0].isnan()
    # A zero or infinite coordinate becomes a point on the same ray or diagonal.
    y0, x0 = y[0].abs(), x[0].abs()
    on_x = (y0 == 0) | (x0.isinf() & ~y0.isinf())
    on_y = (x0 == 0) & ~on_x | (y0.isinf() & ~x0.isinf())
    diagonal = y0.isinf() & x0.isinf()
    good = ~(nan | on_x | on_y | diagonal)
    down, left = torch.signbit(y[0]), torch.signbit(x[0])
    angle, k = _polar(
        sanitized(signed(y, sign_of(down)), good),
        sanitized(signed(x, sign_of(left)), good),
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
            angle = select(condition & side, value, angle)
            k = torch.where(condition & side, 0, k)
    out = leave(angle, fmt, terms, k)
    out = signed(out, sign_of(down).to(fmt.dtype))
    return special(nan, math.nan, out)


@function("y", "x")
def atan2(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the angle of the point (x, y), in [-pi, pi]; quadrants and signed zeros as in C99."""
    y, x = arguments
    return _angle(y, x, fmt, terms)


@function("x")
def atan(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the arc tangent, in [-pi/2, pi/2]."""
    (x,) = arguments
    one = torch.ones_like(x[0])
    return _angle(x, head((one,), terms), fmt, terms)


def _cofactor(y: Components, count: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of sqrt((1 - y)(1 + y)) for 0 <= y <= 1."""
    one, raised = torch.ones_like(y[0]), working().raised
    low = collected((one, *minus(y)), count)
    high = collected((one, *y), count)
    small = low[0] < working().small
    product = ex.mul(scale_all(low, torch.where(small, raised, 0)), high)
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
    return leave(tuple(c.expand(like.shape) for c in value), fmt, terms)


@function("x")
def asin(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the arc sine, in [-pi/2, pi/2]; NaN for |x| > 1."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    inside, edge = _inside(y)
    down = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = sanitized(signed(y, sign_of(down)), good, 0.5)
    none = torch.zeros_like(down)
    beside, shift = _cofactor(y, w)
    angle, k = _polar(y, beside, w, none, -shift)
    out = select(edge, _pi_part(Fraction(1, 2), y[0], fmt, terms), leave(angle, fmt, terms, k))
    out = signed(out, sign_of(down).to(fmt.dtype))
    out = special(~(inside | edge), math.nan, out)
    return special(x[0] == 0, x[0], out)


@function("x")
def acos(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the arc cosine, in [0, pi]; NaN for |x| > 1."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    inside, edge = _inside(y)
    left = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = sanitized(signed(y, sign_of(left)), good, 0.5)
    beside, shift = _cofactor(y, w)
    angle, k = _polar(beside, y, w, left, shift)
    out = leave(angle, fmt, terms, k)
    out = select(x[0] == 0, _pi_part(Fraction(1, 2), y[0], fmt, terms), out)
    out = select(edge & left, _pi_part(Fraction(1), y[0], fmt, terms), out)
    out = special(edge & ~left, 0.0, out)
    return special(~(inside | edge), math.nan, out)
