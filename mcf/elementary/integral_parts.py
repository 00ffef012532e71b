"""floor, ceil, round, trunc: exact except for the rounding to the result's format."""

from __future__ import annotations

import torch

from mcf.elementary import arithmetic as ex
from mcf.elementary.operator import function
from mcf.elementary.tables import Components
from mcf.elementary.working import collected, enter, head, leave, select, special
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]


def _floor(y: Components) -> Components:
    """Return the largest integer at most y: the floor of the first component that is not whole.

    A component that is not whole is at least two halves of the next from any integer, so later
    components do not matter; after whole ones the next is rounded.
    """
    whole = torch.ones_like(y[0], dtype=torch.bool)
    out = []
    for c in y:
        f = c.floor()
        out.append(torch.where(whole, f, 0.0))
        whole = whole & (f == c)
    return ex.renormalize(tuple(out)) if len(y) > 1 else tuple(out)


def _finish(x: Components, result: Components, fmt: Format, terms: int) -> Components:
    """Round to the format; zeros take the argument's sign, and infinities and NaN are kept."""
    out = leave(result, fmt, terms)
    out = (torch.where(out[0] == 0, torch.copysign(out[0], x[0]), out[0]), *out[1:])
    return special(~x[0].isfinite(), x[0], out)


def _prepared(x: Components, fmt: Format) -> Components:
    return select(x[0].isfinite(), enter(x, fmt), 0.0)


def _minus(y: Components) -> Components:
    return tuple(-c for c in y)


@function("x")
def floor(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the largest integer at most x, exactly."""
    (x,) = arguments
    return _finish(x, _floor(_prepared(x, fmt)), fmt, terms)


@function("x")
def ceil(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the smallest integer at least x, exactly."""
    (x,) = arguments
    return _finish(x, _minus(_floor(_minus(_prepared(x, fmt)))), fmt, terms)


@function("x")
def trunc(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the integer part of x: the nearest integer towards zero, exactly."""
    (x,) = arguments
    y = _prepared(x, fmt)
    up = _minus(_floor(_minus(y)))
    return _finish(x, select(y[0] < 0, up, _floor(y)), fmt, terms)


@function("x")
def round(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the integer nearest to x, ties to even, exactly.

    floor(x + 1/2), less 1 if that is odd at a tie.
    """
    (x,) = arguments
    return _finish(x, nearest_whole(_prepared(x, fmt)), fmt, terms)


def nearest_whole(y: Components) -> Components:
    """Return the integer nearest to a finite number, ties to even."""
    low = _floor(y)
    # y - floor(y) - 1/2, of which only the sign is needed.
    half = torch.full_like(y[0], -0.5)
    above = collected((*y, *_minus(low), half), 1)[0]
    odd = torch.zeros_like(above, dtype=torch.bool)
    for c in low:
        odd ^= torch.remainder(c, 2.0) == 1.0
    up = (above > 0) | ((above == 0) & odd)
    return ex.add(low, head((up.to(y[0].dtype),), len(low)))
