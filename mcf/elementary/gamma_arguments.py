"""Classify arguments of the gamma functions, and reduce them by whole numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import angles, fixed
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.tables import Components, constant
from mcf.elementary.working import (
    collected,
    head,
    minus,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
)

# From here on Stirling's series is used.
FAR = 64.0


class Argument(NamedTuple):
    """An argument and its range.

    Attributes:
        x: the argument, or 1 where nothing is computed.
        good: the mask of elements that are computed.
        down: the mask of x < 0.
        low: the mask of |x| < 1/2.
        far: the mask of z >= 64.
        z: floats whose sum is the argument of the series.
    """

    x: Components
    good: Tensor
    down: Tensor
    low: Tensor
    far: Tensor
    z: Components


def argument_of(y: Components, terms: int, *, reflected: bool) -> Argument:
    """Classify: reflected, z is 1 - x below zero; else |x|, and 1 + x where |x| < 1/2."""
    good = (y[0] != 0) & y[0].isfinite()
    y = sanitized(y, good)
    down = y[0] < 0
    a = signed(y, sign_of(down))
    low = a[0] < 0.5
    one = torch.ones_like(a[0])
    shifted = (low | down) if reflected else low
    same = collected((one, *(a if reflected else y)), terms)
    z = select(shifted, same, head(a, terms))
    return Argument(y, good, down, low, z[0] >= FAR, z)


class Beside(NamedTuple):
    """The difference r of x and the nearest whole number, as an angle.

    Attributes:
        r: components, times 2**angle_lift where tiny.
        sign: of r.
        tiny: where r equals its sine.
        whole: where r = 0.
        sine: sin |pi r|, not usable where tiny.
        cosine: cos |pi r|, not usable where tiny.
    """

    r: Components
    sign: Tensor
    tiny: Tensor
    whole: Tensor
    sine: Components
    cosine: Components


def beside_whole(x: Components, terms: int) -> Beside:
    """Return the remainder of x, exact up to one rounding."""
    parts = tuple(c - c.round() for c in x)
    nearest = collected(parts, 1)[0].round()
    r = collected((*parts, -nearest), terms)
    whole = r[0] == 0
    r = sanitized(r, ~whole, 0.25)
    sign = sign_of(r[0] < 0)
    r = signed(r, sign)
    # The low components of an angle might underflow below this bound.
    tiny = r[0] < working().tiny
    safe = sanitized(r, ~tiny, 0.25)
    half = torch.full_like(r[0], 0.5)
    steep = safe[0] > 0.25
    turned = select(steep, collected((half, *minus(safe)), terms), safe)
    sine, cosine = angles.Angle(ex.mul(turned, pi(terms, r[0]))).both()
    lifted = scale_all(r, torch.where(tiny, working().angle_lift, 0))
    return Beside(
        lifted, sign, tiny, whole, select(steep, cosine, sine), select(steep, sine, cosine)
    )


def pi(terms: int, like: Tensor) -> Components:
    """Return the number pi on the device of a tensor."""
    return constant(fixed.to_fraction(fixed.pi()), terms, like.device)
