"""Implement `frexp` and `nextafter`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.few import parts_few, readable
from mcf.convert.rounding import convert, dense, nearest, widen
from mcf.elementary.working import exponent
from mcf.expansions.dispatch.recorded import unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.arithmetic.comparison import equal, less
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import MCFTensor, broadcast, wrap
from mcf.kernels.components import Components
from mcf.kernels.formats import FORMATS, Format, format_of

aten = torch.ops.aten


@implements(aten.frexp.Tensor)
def frexp(x: MCFTensor) -> tuple[Tensor, Tensor]:
    """Return m and e with x = m * 2**e, 1/2 <= |m| < 1; e = 0 for zero, inf and NaN.

    The result is exact, except that for |m| < |x| bits of trailing components below the format's
    smallest number are lost.
    """
    fmt, given = FORMATS[x.dtype], x.components
    wide = given[0].dtype if fmt.dtype in _INTEGERS else torch.float32
    if wide is x.dtype and readable(given, conversions.FEWEST - 1) and all(map(dense, given)):
        found = conversions.run_few(_nearest_parts, given, wide, x.terms)
        if found is not None:
            return wrap(found[:-1]), found[-1].to(torch.int32)
    many = x.numel() >= conversions.FEWEST and not unseen(x)
    if many and wide is x.dtype:
        found = conversions.run(_nearest_parts, given, wide, x.terms)
        if found is not None:
            return wrap(found[:-1]), found[-1].to(torch.int32)
    c = convert(given, x.dtype, x.terms)
    few = parts_few(c)
    if few is not None:
        return wrap(few[0]), few[1]
    c = widen(c, wide)
    found = conversions.run(_parts, c, wide, x.terms) if many else None
    *mantissa, e = _parts(c, wide, x.terms) if found is None else found
    return wrap([m.to(x.dtype) for m in mantissa]), e.to(torch.int32)


_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _nearest_parts(components: Sequence[Tensor], dtype: torch.dtype, terms: int) -> Components:
    return _parts(nearest(components, dtype, terms), dtype, terms)


def _parts(c: Sequence[Tensor], dtype: torch.dtype, terms: int) -> Components:
    """Return the components of m and, in their format, e, for a nearest expansion."""
    fmt, first = FORMATS[dtype], c[0]
    small = first.abs() < 2.0**fmt.emin
    lifted = torch.where(small, first * 2.0**fmt.p, first)
    e = exponent(lifted) + torch.where(small, 1 - fmt.p, 1)
    if len(c) > 1:
        # A first component 2**k with a trailing part of opposite sign is less than 2**k in size.
        place = lifted.view(_INTEGERS[dtype]) & ((1 << (fmt.p - 1)) - 1)
        e = e - torch.where((place == 0) & (c[1] * first.sign() < 0), 1, 0)
    e = torch.where(first.isfinite() & (first != 0), e, 0)
    # 2**-e itself can be out of range where x * 2**-e is not. Multiplying by `rest` first is exact
    # for all results that do not vanish, so each product is rounded once.
    main = (-e).clamp(fmt.emin, -fmt.emin)
    rest, main = _power(-e - main, fmt), _power(main, fmt)
    return *((x * rest) * main for x in c), e.to(dtype)


def _power(k: Tensor, fmt: Format) -> Tensor:
    """Return 2**k for exponents k of normal numbers."""
    assert fmt.dtype is not None
    return ((k + fmt.emax) << (fmt.p - 1)).to(_INTEGERS[fmt.dtype]).view(fmt.dtype)


def largest(fmt: Format, terms: int) -> tuple[float, ...]:
    """Return the components of the largest finite expansion."""
    # Each component is the last number before half an ulp of the preceding one: a tie would round
    # up, and for the first component to infinity.
    out = [fmt.max]
    half = Fraction(2) ** (fmt.emax - fmt.p)
    for _ in range(terms - 1):
        out.append(max(half - max(half * fmt.u, fmt.min_subnormal), Fraction(0)))
        half *= fmt.u / 2
    return tuple(map(float, out))


@implements(aten.nextafter.default)
def nextafter(x: MCFTensor, y: Any) -> Tensor:
    """Return the next expansion after x towards y.

    If the last component is 0 or very small, the step is less than one ulp of terms * p bits.
    """
    a, b = aligned(x, y)
    parts = broadcast(*a, *b)
    a, b = parts[: len(a)], parts[len(a) :]
    c = convert(a, a[0].dtype, len(a))
    up = less(x, y)
    target = torch.where(up, torch.inf, -torch.inf).to(c[0].dtype)
    stepped = (*c[:-1], torch.nextafter(c[-1], target))
    out = wrap(convert(stepped, c[0].dtype, len(c)))
    stay = equal(x, y) | wrap(a).isnan() | wrap(b).isnan()
    inf = c[0].isinf()
    if inf.is_meta or inf.any():
        most = largest(format_of(c[0].dtype), len(c))
        edge = torch.tensor(most, dtype=torch.float64, device="cpu")
        top = wrap([e.to(c[0].dtype).to(x.device) * c[0].sign() for e in edge])
        out = where(inf & ~stay, top, out)  # type: ignore[assignment]
    nan = wrap(a).isnan() | wrap(b).isnan()
    return where(nan, float("nan"), where(stay, wrap(b), out))
