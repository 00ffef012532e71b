"""The exponential and logarithmic functions: special values, and the general computation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.elementary import exponential, logarithm
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import TENS, TERMS, Components, lookup
from mcf.elementary.working import (
    collected,
    enter,
    leave,
    minus,
    sanitized,
    scale_all,
    select,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]


@function("x")
def exp(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return e**x; 0 at -inf."""
    (x,) = arguments
    y = enter(x, fmt)
    good = y[0].abs() <= working().exp_limit
    result, e = exponential.exp(sanitized(y, good, 0.0), working_terms(fmt, terms))
    out = leave(result, fmt, terms, e)
    # exp(inf) = inf, exp(-inf) = 0, exp(nan) = nan.
    beyond = torch.where(x[0] < 0, 0.0, x[0] * math.inf)
    return special(~good, beyond.to(fmt.dtype), out)


@function("x")
def expm1(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return e**x - 1, accurate for small x too."""
    (x,) = arguments
    y = enter(x, fmt)
    good = (y[0] <= working().exp_limit) & (y[0] >= working().least)
    result, e = exponential.expm1(sanitized(y, good, 0.0), working_terms(fmt, terms))
    out = leave(result, fmt, terms, e)
    beyond = torch.where(x[0] < 0, -1.0, x[0] * math.inf)
    out = special(~good, beyond.to(fmt.dtype), out)
    return special(x[0] == 0, x[0], out)


def _log(x: Components, fmt: Format, terms: int, base: int) -> Components:
    y = enter(x, fmt)
    good = (y[0] > 0) & (y[0] < math.inf)
    y = sanitized(y, good)
    # Subnormal numbers have no exponent of their own.
    shift = torch.where(y[0] < working().low, working().lift, 0)
    y = scale_all(y, shift)
    result, k = logarithm.log(y, y[0], working_terms(fmt, terms), base, -shift)
    out = leave(result, fmt, terms, k)
    return special(~good, _log_beyond(x[0]), out)


def _log_beyond(x: Tensor) -> Tensor:
    """Return the log of special values: -inf at 0, NaN below, inf and NaN themselves."""
    return torch.where(x == 0, -math.inf, torch.where(x < 0, math.nan, x))


@function("x")
def log(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the natural logarithm; -inf at 0, NaN below."""
    return _log(arguments[0], fmt, terms, 0)


@function("x")
def log2(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the logarithm to base 2, log(x) / log(2); exact for powers of two."""
    return _log(arguments[0], fmt, terms, 2)


@function("x")
def log10(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the logarithm to base 10, log(x) / log(10); exact for powers of ten."""
    (x,) = arguments
    out = _log(x, fmt, terms, 10)
    k = out[0].to(working().format.dtype).round()
    possible = (k >= 0) & (k < TENS) & (x[0] >= 1)
    ten = lookup("tens", torch.where(possible, k, 0.0).to(torch.int64), TERMS + 1)
    y = sanitized(enter(x, fmt), possible)
    rest = collected((*y, *minus(ten)), TERMS)
    exactly = possible
    for c in rest:
        exactly = exactly & (c == 0)
    return special(exactly, k.to(fmt.dtype), out)


@function("x")
def log1p(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return log(1 + x), accurate for small x too; -inf at -1, NaN below."""
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    second = y[1] if len(y) > 1 else torch.zeros_like(y[0])
    # Test x > -1 and x < -1; for normalised components the first two suffice.
    above = (y[0] > -1) | ((y[0] == -1) & (second > 0))
    below = (y[0] < -1) | ((y[0] == -1) & (second < 0))
    good = above & (y[0] < math.inf)
    y = sanitized(y, good)
    one = torch.ones_like(y[0])
    # If x0 is -1, the 1 cancels, and the rest may be as small as any number.
    alone = y[0] == -1.0
    zero = torch.zeros_like(one)
    floats = select(alone, (*y[1:], zero, zero), (one, *y))
    shift = torch.where(alone & (second < working().low), working().lift, 0)
    floats = scale_all(floats, shift)
    lead = collected(floats, 1)[0]
    result, k = logarithm.log(floats, lead, w, 0, -shift)
    out = leave(result, fmt, terms, k)
    beyond = torch.where(below, math.nan, torch.where(x[0] == -1, -math.inf, x[0]))
    return special((x[0] == 0) | ~good, beyond.to(fmt.dtype), out)
