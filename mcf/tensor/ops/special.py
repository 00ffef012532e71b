"""Functions composed of others: angles, sinc, entropies, the inverse of the logistic function."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import fixed
from mcf.tensor.conversion import promote
from mcf.tensor.ops.constants import constant, in_format
from mcf.tensor.registry import implements
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten


@implements(torch.deg2rad, Tensor.deg2rad, aten.deg2rad.default)
def deg2rad(x: Any) -> Any:
    """x pi / 180."""
    return x * constant(fixed.pi() // 180, x)


@implements(torch.rad2deg, Tensor.rad2deg, aten.rad2deg.default)
def rad2deg(x: Any) -> Any:
    """180 x / pi."""
    return x * constant(180 * fixed.quotient(fixed.ONE, fixed.pi()), x)


@implements(torch.angle, Tensor.angle, aten.angle.default)
def angle(x: Any) -> Any:
    """0 for what is not negative, pi for what is."""
    flat = torch.where(x < 0, constant(fixed.pi(), x), 0)
    return torch.where(x.isnan(), x, flat)


@implements(torch.sinc, Tensor.sinc, torch.special.sinc, aten.sinc.default)
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x); the angle is reduced before it is multiplied by pi."""
    pi = constant(fixed.pi(), x)
    zero = x == 0
    whole = x.detach().round()
    half = whole * 0.5
    # Of an infinity or NaN nothing is odd.
    odd = (half - half.round()).square() == 0.25
    safe = torch.where(zero, 1, x)
    wave = torch.sin(pi * (safe - torch.where(zero, 1, whole))) / (pi * safe)
    near_zero = torch.where(zero, 1, torch.where(odd, -wave, wave))
    return torch.where(x.isinf(), 0, near_zero)


@implements(torch.xlogy, Tensor.xlogy, torch.special.xlogy, aten.xlogy.Tensor)
def xlogy(x: Any, y: Any) -> Any:
    """x log(y); 0 for x = 0 unless y is NaN."""
    a, b = map(promote, _tensors(x, y))
    idle = (a == 0) & ((b <= 0) | (b == torch.inf))
    return a * torch.log(torch.where(idle, 1, b))


@implements(torch.special.xlog1py, aten.special_xlog1py.default)
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y); 0 for x = 0 unless y is NaN."""
    a, b = map(promote, _tensors(x, y))
    idle = (a == 0) & ((b <= -1) | (b == torch.inf))
    return a * torch.log1p(torch.where(idle, 0, b))


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    like = x if isinstance(x, MCFTensor) else y
    return in_format(x, like), in_format(y, like)


@implements(torch.special.entr, aten.special_entr.default)
def entr(x: Any) -> Any:
    """-x log(x); 0 for 0, -inf for what is negative."""
    inside = x > 0
    value = -x * torch.log(torch.where(inside | x.isnan(), x, 1))
    return torch.where(x < 0, -torch.inf, torch.where(x == 0, 0, value))


@implements(torch.logit, Tensor.logit, torch.special.logit, aten.logit.default)
def logit(x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)), of x clamped to [eps, 1 - eps] for a number eps."""
    if eps is not None:
        low = in_format(Fraction(eps), x)
        x = x.clamp(low, 1 - low)
    # Near 1/2 the quotient is near 1, and what it lacks to 1 is exact.
    middle = (x - 0.5).abs() < 0.25
    safe, outer = torch.where(middle, x, 0.5), torch.where(middle, 0.75, x)
    return torch.where(
        middle, torch.log1p((2 * safe - 1) / (1 - safe)), torch.log(outer / (1 - outer))
    )


@implements(torch.mvlgamma, Tensor.mvlgamma, torch.special.multigammaln)
def mvlgamma(input: Any, p: int) -> Any:
    """p (p - 1) / 4 log(pi) + the sum of lgamma(x - j / 2) for j below p, for x > (p - 1) / 2."""
    if p < 1:
        raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1, got {p}")
    x = input if input.is_floating_point() else input.to(torch.get_default_dtype())
    log_pi: Any = constant(fixed.log(fixed.to_fraction(fixed.pi())), x)
    total = log_pi * Fraction(p * (p - 1), 4)
    for j in range(p):
        total = total + torch.lgamma(torch.where(x > (p - 1) / 2, x - j / 2, torch.nan))
    return total
