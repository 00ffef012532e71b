"""floor, ceil, round, trunc, exact except for the rounding to the format, and rounding to decimals.

Numbers are rounded to k / 10**d with k the integer nearest to x 10**d, both exactly. 10**d is a
float, so x 10**d is a sum of floats, whose nearest integer is k, ties to even. In four components
the error of k / 10**d is so small that it almost never affects the rounding. The result is known if
both ends of the error round alike, or if the rounded number is the quotient exactly.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mcf.elementary import working as ex
from mcf.elementary.format import working
from mcf.elementary.fused import Step, run_step
from mcf.elementary.operator import function
from mcf.elementary.tables import TERMS, Components
from mcf.kernels.formats import FP64, Format


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
    out = ex.leave(result, fmt, terms)
    out = (torch.where(out[0] == 0, torch.copysign(out[0], x[0]), out[0]), *out[1:])
    return ex.special(~x[0].isfinite(), x[0], out)


def _prepared(x: Components, fmt: Format) -> Components:
    return ex.select(x[0].isfinite(), ex.enter(x, fmt), 0.0)


@function("x", torch=("floor",))
def floor(x: Components, fmt: Format, terms: int) -> Components:
    """Return the largest integer at most x, exactly."""
    return _finish(x, _floor(_prepared(x, fmt)), fmt, terms)


@function("x", torch=("ceil",))
def ceil(x: Components, fmt: Format, terms: int) -> Components:
    """Return the smallest integer at least x, exactly."""
    return _finish(x, ex.minus(_floor(ex.minus(_prepared(x, fmt)))), fmt, terms)


@function("x", torch=("trunc",))
def trunc(x: Components, fmt: Format, terms: int) -> Components:
    """Return the integer part of x: the nearest integer towards zero, exactly."""
    y = _prepared(x, fmt)
    up = ex.minus(_floor(ex.minus(y)))
    return _finish(x, ex.select(y[0] < 0, up, _floor(y)), fmt, terms)


@function("x", torch=("round",))
def round(x: Components, fmt: Format, terms: int) -> Components:
    """Return the integer nearest to x, ties to even, exactly.

    floor(x + 1/2), less 1 if that is odd at a tie.
    """
    return _finish(x, nearest_whole(_prepared(x, fmt)), fmt, terms)


def nearest_whole(y: Components) -> Components:
    """Return the integer nearest to a finite number, ties to even."""
    low = _floor(y)
    # y - floor(y) - 1/2, of which only the sign is needed.
    half = torch.full_like(y[0], -0.5)
    above = ex.collected((*y, *ex.minus(low), half), 1)[0]
    odd = torch.zeros_like(above, dtype=torch.bool)
    for c in low:
        odd ^= torch.remainder(c, 2.0) == 1.0
    up = (above > 0) | ((above == 0) & odd)
    return ex.add(low, ex.head((up.to(y[0].dtype),), len(low)))


# 10**22 is the largest power of ten that is a float64.
MOST = 22
# Beyond 2**150 a sum of whole floats and 1 might not be exact.
_LARGEST = 2.0**150
# The relative error of a quotient of four components is below 2**-200.
_ERROR = 2.0**-190


def _times(x: Components, factor: float) -> Components:
    """Return floats whose sum is the exact product."""
    f = torch.full_like(x[0], factor)
    return tuple(t for c in x for t in ex.two_prod(c, f))


def _decimals(arguments: tuple[Components, ...], fmt: Format, decimals: int) -> Components:
    """Return four components of k and of k / 10**d, and 1 where k is known, else 0."""
    x = ex.enter(arguments[0], fmt)
    ten, width = 10.0**decimals, working()
    usual = x[0].abs() < _LARGEST / ten
    for c in x:
        usual = usual & ((c == 0) | (c.abs() > width.low))
    floats = _times(ex.sanitized(x, usual), ten)
    y = ex.collected(floats, TERMS)
    (rest,) = ex.collected((*floats, *ex.minus(y)), 1)
    k = nearest_whole(y)
    quotient = ex.div(k, torch.full_like(y[0], ten))
    return (*k, *quotient, (usual & (rest == 0)).to(y[0].dtype))


def _left(arguments: tuple[Components, ...], fmt: Format, decimals: int) -> Components:
    """Return k - 10**d x, whose sign is exact."""
    k, x = arguments
    return ex.collected((*k, *ex.minus(_times(x, 10.0**decimals))), 1)


_STEP = Step("decimals", _decimals, ("x",), enters=True)
_LEFT = Step("left_of_decimals", _left, ("k", "x"))


def rounded(x: Components, fmt: Format, terms: int, decimals: int) -> tuple[Components, Tensor]:
    """Round numbers to decimals; also return where this is right. Zeros keep the sign of x.

    Args:
        x: contiguous components.
        fmt: their format.
        terms: the number of components.
        decimals: 1 to `MOST`.
    """
    found = run_step(_STEP, fmt, decimals, (x,))
    k, quotient, known = found[:TERMS], found[TERMS:-1], found[-1]
    error = quotient[0].abs() * _ERROR
    to = functools.partial(torch.ops.mcf.convert, dtype=fmt.dtype, terms=terms)
    low, high = (to([*ex.add(quotient, e)]) for e in (-error, error))
    same = torch.ones_like(known, dtype=torch.bool)
    for a, b in zip(low, high, strict=True):
        same &= a == b
    out = to([*quotient])
    wide = tuple(torch.ops.mcf.convert(out, torch.float64, terms))
    (rest,) = run_step(_LEFT, FP64, decimals, (k, wide))
    # The error may have moved the quotient off a tie: the sum is right, but its components are not.
    out = [torch.where(rest == 0, a, b) for a, b in zip(to(out), out, strict=True)]
    first = torch.where(out[0] == 0, torch.copysign(out[0], x[0]), out[0])
    return (first, *out[1:]), (known > 0) & (same | (rest == 0))
