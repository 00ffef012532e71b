"""Where arguments of the gamma functions are, and what is left of them beside whole numbers."""

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

# From here on Stirling's series serves.
FAR = 64.0


class Argument(NamedTuple):
    """An argument and where it is.

    Attributes:
        x: the argument, or 1 where it needs no computation.
        good: where it needs some.
        down: below zero.
        low: where |x| < 1/2.
        far: where what the series are taken of is 64 or more.
        z: floats, the sum of which the series are taken of.
    """

    x: Components
    good: Tensor
    down: Tensor
    low: Tensor
    far: Tensor
    z: Components


def argument_of(y: Components, terms: int, *, reflected: bool) -> Argument:
    """Where it is reflected, z is 1 - x below zero; else |x| and, where |x| < 1/2, 1 + x."""
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
    """What is left of x beside the nearest whole number, r, as an angle.

    Attributes:
        r: components, times 2**angle_lift where tiny.
        sign: of r.
        tiny: where |r| is its own sine.
        whole: where r = 0.
        sine: of |pi r|, of no use where tiny.
        cosine: the same.
    """

    r: Components
    sign: Tensor
    tiny: Tensor
    whole: Tensor
    sine: Components
    cosine: Components


def beside_whole(x: Components, terms: int) -> Beside:
    """What is left of x, exactly but for the rounding of a sum."""
    parts = tuple(c - c.round() for c in x)
    nearest = collected(parts, 1)[0].round()
    r = collected((*parts, -nearest), terms)
    whole = r[0] == 0
    r = sanitized(r, ~whole, 0.25)
    sign = sign_of(r[0] < 0)
    r = signed(r, sign)
    # Where the parts of an angle may be no numbers.
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
    """The number pi where a tensor is."""
    return constant(fixed.to_fraction(fixed.pi()), terms, like.device)
