"""sin, cos, tan and their inverses: special values, quadrants, and the computation in between."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import angles, fixed, reduction
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

# Below, sin x = tan x = atan x = x to 4 components, and powers of x may not be numbers.
TINY = 2.0**-250
# Up to here the argument is its own remainder: the reduction would find q = 0.
_REDUCED = 0.78125


def _reduced(y: Components, fmt: Format, terms: int, count: int) -> tuple[Tensor, angles.Angle]:
    """Quadrant of a finite angle, and what it leaves."""
    r, q = head(y, count), torch.zeros_like(y[0], dtype=torch.int64)
    size = y[0].abs()
    if working().format is FP64:
        medium = (size >= _REDUCED) & (size <= reduction.MEDIUM)
        if bool(medium.any()):
            near = sanitized(y, medium, 1.0)
            turned, reduced = reduction.medium(near, fmt, terms, count)
            q, r = torch.where(medium, turned, q), select(medium, reduced, r)
        large = size > reduction.MEDIUM
        wanted = rare(large)
    else:
        # In float32 all that is beyond takes the digits of 1/(2 pi).
        large = size > _REDUCED
        wanted = bool(large.any())
    if wanted:
        turned, reduced = reduction.quarter_turns(y, fmt, terms, count)
        q, r = torch.where(large, turned, q), select(large, reduced, r)
    return q, angles.Angle(r)


def _prepared(x: Components, fmt: Format) -> tuple[Components, Tensor]:
    y = enter(x, fmt)
    finite = y[0].isfinite()
    return sanitized(y, finite, 0.0), finite


@function("x")
def sin(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Sine of an angle in radians, reduced exactly whatever its size; nan for infinities."""
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    w = working_terms(fmt, terms)
    q, angle = _reduced(y, fmt, terms, w)
    result = signed(angle.one((q & 1) == 1), sign_of(q >= 2))
    result = select(y[0].abs() < working().tiny, head(y, w), result)
    out = special(~finite, math.nan, leave(result, fmt, terms))
    return special(x[0] == 0, x[0], out)


@function("x")
def cos(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Cosine of an angle in radians, reduced exactly whatever its size; nan for infinities."""
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    q, angle = _reduced(y, fmt, terms, working_terms(fmt, terms))
    result = signed(angle.one((q & 1) == 0), sign_of((q == 1) | (q == 2)))
    return special(~finite, math.nan, leave(result, fmt, terms))


@function("x")
def tan(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Tangent of an angle in radians, reduced exactly whatever its size; nan for infinities.

    sin(x) / cos(x).
    """
    (x,) = arguments
    y, finite = _prepared(x, fmt)
    w = working_terms(fmt, terms)
    q, angle = _reduced(y, fmt, terms, w)
    s, c = angle.both()
    odd, tiny = (q & 1) == 1, y[0].abs() < TINY
    s = special(tiny, 1.0, s)
    result = ex.div(select(odd, minus(c), s), select(odd, s, c))
    result = select(tiny, head(y, w), result)
    out = special(~finite, math.nan, leave(result, fmt, terms))
    return special(x[0] == 0, x[0], out)


def _polar(
    y: Components, x: Components, working: int, negative: Tensor
) -> tuple[Components, Tensor]:
    """Angle of (x, y) for x, y > 0, or pi less it where `negative`; and an exponent."""
    y, ey = mantissa(y)
    x, ex_ = mantissa(x)
    apart = ey - ex_
    # Farther apart than 600 they do not see each other, but for the quotient y/x itself.
    up = apart.clamp(-600, 600)
    angle = angles.atan2(
        scale_all(head(y, working), up.clamp(max=0)),
        scale_all(head(x, working), (-up).clamp(max=0)),
        working,
    )
    pi = constant(fixed.to_fraction(fixed.pi()), working, y[0].device)
    angle = select(negative, ex.add(minus(angle), pi), angle)
    tiny = (apart < -260) & ~negative
    if not bool(tiny.any()):
        return angle, torch.zeros_like(apart)
    quotient = ex.div(head(y, working), head(x, working))
    return select(tiny, quotient, angle), torch.where(tiny, apart.clamp(min=-2000), 0)


def _angle(first: Components, second: Components, fmt: Format, terms: int) -> Components:
    """The angle of the point (second, first)."""
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
    """Angle of the point (x, y), in [-pi, pi]; quadrants and signed zeros as in C99."""
    y, x = arguments
    return _angle(y, x, fmt, terms)


@function("x")
def atan(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Arc tangent, in [-pi/2, pi/2]."""
    (x,) = arguments
    one = torch.ones_like(x[0])
    return _angle(x, head((one,), terms), fmt, terms)


def _cofactor(y: Components, working: int) -> Components:
    """sqrt((1 - y)(1 + y)) for 0 <= y <= 1."""
    one = torch.ones_like(y[0])
    low = collected((one, *minus(y)), working)
    high = collected((one, *y), working)
    product = ex.mul(scale_all(low, torch.where(low[0] < 2.0**-300, 600, 0)), high)
    return scale_all(ex.sqrt(product), torch.where(low[0] < 2.0**-300, -300, 0))


def _inside(y: Components) -> tuple[Tensor, Tensor]:
    """Whether |y| < 1, and whether |y| = 1."""
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
    """Arc sine, in [-pi/2, pi/2]; nan for |x| > 1.

    The angle in [-pi/2, pi/2] whose sine is x; nan for |x| > 1.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    inside, edge = _inside(y)
    down = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = sanitized(signed(y, sign_of(down)), good, 0.5)
    none = torch.zeros_like(down)
    angle, k = _polar(y, _cofactor(y, w), w, none)
    out = select(edge, _pi_part(Fraction(1, 2), y[0], fmt, terms), leave(angle, fmt, terms, k))
    out = signed(out, sign_of(down).to(fmt.dtype))
    out = special(~(inside | edge), math.nan, out)
    return special(x[0] == 0, x[0], out)


@function("x")
def acos(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Arc cosine, in [0, pi]; nan for |x| > 1.

    The angle in [0, pi] whose cosine is x; nan for |x| > 1.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    inside, edge = _inside(y)
    left = torch.signbit(y[0])
    good = inside & (y[0] != 0)
    y = sanitized(signed(y, sign_of(left)), good, 0.5)
    angle, k = _polar(_cofactor(y, w), y, w, left)
    out = leave(angle, fmt, terms, k)
    out = select(x[0] == 0, _pi_part(Fraction(1, 2), y[0], fmt, terms), out)
    out = select(edge & left, _pi_part(Fraction(1), y[0], fmt, terms), out)
    out = special(edge & ~left, 0.0, out)
    return special(~(inside | edge), math.nan, out)
