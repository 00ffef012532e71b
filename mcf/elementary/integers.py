"""floor, ceil, round, trunc, fmod, remainder: exact, but for the rounding to a result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mcf.convert.few import ratio, rows
from mcf.convert.numbers import nearest
from mcf.elementary import arithmetic as ex
from mcf.elementary.operator import function
from mcf.elementary.tables import Components
from mcf.elementary.working import collected, enter, head, leave, select, special
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]


def _floor(y: Components) -> Components:
    """Largest integer at most y: the floor of the first component that is not whole.

    A component that is not whole is at least two halves of the next from any integer, so what
    follows it does not matter; after whole ones the next is rounded.
    """
    whole = torch.ones_like(y[0], dtype=torch.bool)
    out = []
    for c in y:
        f = c.floor()
        out.append(torch.where(whole, f, 0.0))
        whole = whole & (f == c)
    return ex.renormalize(tuple(out)) if len(y) > 1 else tuple(out)


def _finish(x: Components, result: Components, fmt: Format, terms: int) -> Components:
    """In the format; zeros take the argument's sign, and what is not finite is returned."""
    out = leave(result, fmt, terms)
    out = (torch.where(out[0] == 0, torch.copysign(out[0], x[0]), out[0]), *out[1:])
    return special(~x[0].isfinite(), x[0], out)


def _prepared(x: Components, fmt: Format) -> Components:
    return select(x[0].isfinite(), enter(x, fmt), 0.0)


def _minus(y: Components) -> Components:
    return tuple(-c for c in y)


@function("x")
def floor(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Largest integer at most x. Exact.

    Largest integer at most x.
    """
    (x,) = arguments
    return _finish(x, _floor(_prepared(x, fmt)), fmt, terms)


@function("x")
def ceil(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Smallest integer at least x. Exact.

    Smallest integer at least x.
    """
    (x,) = arguments
    return _finish(x, _minus(_floor(_minus(_prepared(x, fmt)))), fmt, terms)


@function("x")
def trunc(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Integer nearest to x among those not beyond it. Exact.

    Integer nearest to x among those not beyond it.
    """
    (x,) = arguments
    y = _prepared(x, fmt)
    up = _minus(_floor(_minus(y)))
    return _finish(x, select(y[0] < 0, up, _floor(y)), fmt, terms)


@function("x")
def round(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Integer nearest to x, the even one of two that are as near. Exact.

    Integer nearest to x, the even one of two: floor(x + 1/2), less 1 if that is odd at a tie.
    """
    (x,) = arguments
    y = _prepared(x, fmt)
    low = _floor(y)
    # x - floor(x) - 1/2, of which only the sign is wanted.
    half = torch.full_like(y[0], -0.5)
    above = collected((*y, *_minus(low), half), 1)[0]
    odd = torch.zeros_like(above, dtype=torch.bool)
    for c in low:
        odd ^= torch.remainder(c, 2.0) == 1.0
    up = (above > 0) | ((above == 0) & odd)
    n = len(low)
    return _finish(x, ex.add(low, head((up.to(y[0].dtype),), n)), fmt, terms)


def modulo(
    a: Sequence[float], b: Sequence[float], towards_zero: bool, fmt: Format, terms: int
) -> tuple[float, ...]:
    """a - q b of two expansions of floats in integers; rounded once, to the nearest expansion."""
    zeros = (0.0,) * (terms - 1)
    x, y = a[0], b[0]
    if not math.isfinite(x) or math.isnan(y) or y == 0:
        return (math.nan, *zeros)
    other = math.copysign(1.0, x) != math.copysign(1.0, y)
    if math.isinf(y):
        if x and other and not towards_zero:
            return (y, *zeros)
        return (*a, *zeros)[:terms]
    n, d = ratio(a)
    m, e = ratio(b)
    # Powers of two.
    n, m, d = (n * (e // d), m, e) if e > d else (n, m * (d // e), d)
    r = n % m
    if towards_zero and r and (n < 0) != (m < 0):
        r -= m
    first, *rest = nearest(r, d, fmt, terms)
    return (first if first else math.copysign(0.0, x), *rest)


def _modulo(arguments: Arguments, fmt: Format, terms: int, towards_zero: bool) -> Components:
    x, y = arguments
    found = [modulo(a, b, towards_zero, fmt, terms) for a, b in zip(rows(x), rows(y), strict=True)]
    t = torch.tensor(found, dtype=torch.float64, device="cpu").to(x[0].device, fmt.dtype)
    return tuple(t[:, k].reshape(x[0].shape) for k in range(terms))


@function("x", "y")
def fmod(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """x - y trunc(x/y), with the sign of x; nan for infinite x or y = 0.

    A zero has the sign of x. Exact but for the rounding of the result to its components; by
    rational arithmetic on the host, some microseconds an element.

    x - y trunc(x / y), in rational arithmetic on the host.
    """
    return _modulo(arguments, fmt, terms, True)


@function("x", "y")
def remainder(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """x - y floor(x/y), with the sign of y; nan for infinite x or y = 0.

    A zero has the sign of x. Exact but for the rounding of the result to its components; by
    rational arithmetic on the host, some microseconds an element.

    x - y floor(x / y), in rational arithmetic on the host.
    """
    return _modulo(arguments, fmt, terms, False)
