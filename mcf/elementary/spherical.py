"""The spherical Bessel function of order 0, sin(x) / x."""

from __future__ import annotations

import torch

from mcf.elementary import angles, trigonometric
from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import Components
from mcf.elementary.working import (
    enter,
    head,
    leave,
    mantissa,
    sanitized,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import Format


@function("x")
def spherical_bessel_j0(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return the spherical Bessel function j_0(x) = sin(x) / x, 1 at 0 and 0 at infinities.

    The error is relative to the result everywhere: angles of any magnitude are reduced exactly.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    good = (y[0].abs() >= working().tiny) & y[0].isfinite()
    y = sanitized(y, good)
    q, r, *_ = trigonometric._rest(y, fmt, terms, w)
    sine = signed(angles.Angle(r).one((q & 1) == 1), sign_of(q >= 2))
    m, e = mantissa(head(y, w))
    out = leave(ex.div(sine, m), fmt, terms, -e)
    end = torch.where(x[0].isnan(), x[0], torch.where(x[0].isinf(), 0.0, 1.0))
    return special(~good, end.to(fmt.dtype), out)
