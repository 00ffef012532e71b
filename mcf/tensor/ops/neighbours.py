"""Exponents and neighbours: frexp, nextafter."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert.few import parts_few
from mcf.convert.rounding import convert
from mcf.kernels.formats import Format, format_of
from mcf.tensor.ops.comparison import equal, less
from mcf.tensor.ops.movement import where
from mcf.tensor.promotion import aligned
from mcf.tensor.recorded import unseen
from mcf.tensor.registry import implements
from mcf.tensor.tensor import MCFTensor, broadcast, wrap

aten = torch.ops.aten


@implements(aten.frexp.Tensor)
def frexp(x: MCFTensor) -> tuple[Tensor, Tensor]:
    """m and e with x = m * 2**e exactly, 1/2 <= |m| < 1; 0 and what is not finite have e = 0.

    Components far below the first may leave the format's range when m is larger than x: no digit
    is lost then; when m is smaller, those below the smallest number are.
    """
    c = convert(x.components, x.dtype, x.terms)
    few = parts_few(c)
    if few is not None:
        return wrap(few[0]), few[1]
    mantissa, e = torch.frexp(c[0])
    if len(c) > 1:
        # A power of two with something negative below is less than it.
        below = (mantissa.abs() == 0.5) & (c[1] * c[0].sign() < 0)
        e = e - below.to(e.dtype)
    e = torch.where(c[0].isfinite() & (c[0] != 0), e, torch.zeros_like(e))
    return wrap(_scaled(c, -e)), e


def _scaled(components: tuple[Tensor, ...], k: Tensor) -> list[Tensor]:
    """Each component times 2**k, rounded once: in steps that stay in the format."""
    # Three factors: 2**k itself can leave the range where c * 2**k does not.
    parts = _parts(k)
    if type(k) is Tensor and not unseen(k) and not bool((parts[1] != 0).any()):
        # Factors of 1, for most numbers.
        parts = parts[:1]
    factors = [torch.ldexp(torch.ones_like(part, dtype=torch.float64), part) for part in parts]
    out = []
    for c in components:
        wide = c.to(torch.float64)
        for factor in factors:
            wide = wide * factor
        out.append(wide.to(c.dtype))
    return out


def _parts(k: Tensor) -> list[Tensor]:
    first = k.clamp(-1000, 1000)
    second = (k - first).clamp(-1000, 1000)
    return [first, second, (k - first - second).clamp(-1000, 1000)]


def largest(fmt: Format, terms: int) -> tuple[float, ...]:
    """The components of the largest finite expansion."""
    # Each component is the last number before half an ulp of the one above: that would be a tie,
    # which rounds up, and at the top to infinity.
    out = [fmt.max]
    half = Fraction(2) ** (fmt.emax - fmt.p)
    for _ in range(terms - 1):
        out.append(max(half - max(half * fmt.u, fmt.min_subnormal), Fraction(0)))
        half *= fmt.u / 2
    return tuple(map(float, out))


@implements(aten.nextafter.default)
def nextafter(x: MCFTensor, y: Any) -> Tensor:
    """The next expansion after x towards y.

    Where the lowest component is 0 or far below, that is closer than an ulp of terms * p digits.
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
