"""Functions of each element: logarithms of sums, steps, logic, angles, activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.elementary import exact
from mcf.tensor.dispatch.derivatives import constant
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.functions import composed
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten


def _nonzero(x: Any) -> Tensor:
    result: Tensor = x != 0
    return result


implements(aten.logical_and.default)(lambda x, y: _nonzero(x) & _nonzero(y))
implements(aten.logical_or.default)(lambda x, y: _nonzero(x) | _nonzero(y))
implements(aten.logical_xor.default)(lambda x, y: _nonzero(x) ^ _nonzero(y))


@implements(aten.heaviside.default)
def heaviside(x: Any, values: Any) -> Tensor:
    """0 below zero, 1 above, the given values at it."""
    step = torch.where(x == 0, values, (x > 0).to(x.dtype))
    return torch.where(x.isnan(), x, step)


@composed(torch.deg2rad, Tensor.deg2rad, operators=(aten.deg2rad.default,))
def deg2rad(x: Any) -> Any:
    """x pi / 180."""
    return x * constant(exact.pi() // 180, x)


@composed(torch.rad2deg, Tensor.rad2deg, operators=(aten.rad2deg.default,))
def rad2deg(x: Any) -> Any:
    """180 x / pi."""
    return x * constant(180 * exact.quotient(exact.ONE, exact.pi()), x)


@composed(torch.angle, Tensor.angle, operators=(aten.angle.default,))
def angle(x: Any) -> Any:
    """0 for what is not negative, pi for what is."""
    flat = torch.where(x < 0, constant(exact.pi(), x), 0)
    return torch.where(x.isnan(), x, flat)


@composed(torch.sinc, Tensor.sinc, torch.special.sinc, operators=(aten.sinc.default,))
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x); the angle is reduced before it is multiplied by pi."""
    pi = constant(exact.pi(), x)
    zero = x == 0
    whole = x.detach().round()
    odd = whole.remainder(2) == 1
    safe = torch.where(zero, 1, x)
    wave = torch.sin(pi * (safe - torch.where(zero, 1, whole))) / (pi * safe)
    near_zero = torch.where(zero, 1, torch.where(odd & ~zero, -wave, wave))
    return torch.where(x.isinf(), 0, near_zero)


class _LogAddExp(torch.autograd.Function):
    """log(exp(a) + exp(b)), whose derivatives are sigmoid(a - b) and sigmoid(b - a)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        top: Tensor = torch.maximum(a, b)
        # Equal ones, infinities among them, have no difference.
        gap = torch.where(a == b, 0, -(a - b).abs())
        return top + gap.exp().log1p()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gap = torch.where(a == b, 0, a - b)
        ga, gb = grad * torch.sigmoid(gap), grad * torch.sigmoid(-gap)
        return ga.sum_to_size(a.shape), gb.sum_to_size(b.shape)


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    from mcf.tensor.conversion import promote

    return promote(x), promote(y)


@composed(torch.logaddexp, Tensor.logaddexp, operators=(aten.logaddexp.default,))
def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y))."""
    return _LogAddExp.apply(*_both(x, y))  # type: ignore[no-untyped-call]


@composed(torch.logaddexp2, Tensor.logaddexp2, operators=(aten.logaddexp2.default,))
def logaddexp2(x: Any, y: Any) -> Any:
    """log2(2**x + 2**y)."""
    a, b = _both(x, y)
    same = a == b
    top = torch.maximum(a, b)
    gap: Any = torch.where(same, 0, -(a - b).abs())
    ln2 = constant(exact.ln2(), gap)
    return top + torch.log1p(torch.exp(gap * ln2)) / ln2


@composed(torch.xlogy, Tensor.xlogy, torch.special.xlogy, operators=(aten.xlogy.Tensor,))
def xlogy(x: Any, y: Any) -> Any:
    """x log(y); 0 for x = 0 unless y is NaN."""
    a, b = _both(*_tensors(x, y))
    idle = (a == 0) & ((b <= 0) | (b == torch.inf))
    return a * torch.log(torch.where(idle, 1, b))


@composed(torch.special.xlog1py, operators=(aten.special_xlog1py.default,))
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y); 0 for x = 0 unless y is NaN."""
    a, b = _both(*_tensors(x, y))
    idle = (a == 0) & ((b <= -1) | (b == torch.inf))
    return a * torch.log1p(torch.where(idle, 0, b))


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    from mcf.tensor.creation import tensor

    like = x if isinstance(x, MCFTensor) else y
    return tuple(  # type: ignore[return-value]
        v if isinstance(v, Tensor) else tensor(v, like.terms, like.dtype, like.device)
        for v in (x, y)
    )


@composed(torch.special.entr, operators=(aten.special_entr.default,))
def entr(x: Any) -> Any:
    """-x log(x); 0 for 0, -inf for what is negative."""
    inside = x > 0
    value = -x * torch.log(torch.where(inside | x.isnan(), x, 1))
    return torch.where(x < 0, -torch.inf, torch.where(x == 0, 0, value))


@composed(torch.logit, Tensor.logit, torch.special.logit, operators=(aten.logit.default,))
def logit(x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)), of x clamped to [eps, 1 - eps] for a number eps."""
    from fractions import Fraction

    if eps is not None:
        low = _tensors(x, Fraction(eps))[1]
        x = x.clamp(low, 1 - low)
    # Near 1/2 the quotient is near 1, and what it lacks to 1 is exact.
    middle = (x - 0.5).abs() < 0.25
    safe, outer = torch.where(middle, x, 0.5), torch.where(middle, 0.75, x)
    return torch.where(
        middle, torch.log1p((2 * safe - 1) / (1 - safe)), torch.log(outer / (1 - outer))
    )


@composed(F.hardtanh, operators=(aten.hardtanh.default,))
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """The input clamped; its derivative is 0 at the ends, too."""
    inside = (input > min_val) & (input < max_val)
    out = torch.where(inside | input.isnan(), input, input.detach().clamp(min_val, max_val))
    return input.copy_(out) if inplace else out


@composed(F.relu6)
def relu6(input: Any, inplace: bool = False) -> Any:
    """The input clamped to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


@composed(F.hardsigmoid)
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """(x + 3) / 6 clamped to [0, 1]."""
    out = hardtanh(input + 3, 0.0, 6.0) / 6
    return input.copy_(out) if inplace else out


@composed(F.hardswish)
def hardswish(input: Any, inplace: bool = False) -> Any:
    """x hardsigmoid(x)."""
    # NaN is inside, and stays.
    outside = (input <= -3) | (input >= 3)
    out = torch.where(outside, torch.where(input >= 3, input, 0), input * (input + 3) / 6)
    return input.copy_(out) if inplace else out


@composed(F.hardshrink, Tensor.hardshrink, torch.hardshrink)
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """The input, 0 where its size is at most lambd."""
    return torch.where(input.abs() <= lambd, 0, input)


@composed(F.softshrink)
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """The input moved towards 0 by lambd, 0 if it is nearer."""
    # 0 x is NaN where x is.
    low = torch.where(input.abs() <= lambd, 0, input)
    size = _tensors(input, lambd)[1]
    return low - torch.where(low > 0, size, torch.where(low < 0, -size, 0 * size))


@composed(F.threshold, torch.threshold, operators=(aten.threshold.default,))
def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """The input above the threshold, else the value."""
    out = torch.where(input <= threshold, value, input)
    return input.copy_(out) if inplace else out


@composed(F.celu, torch.celu)
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """The input where positive, else alpha (exp(x / alpha) - 1)."""
    low = torch.expm1(torch.where(input > 0, 0, input) / alpha) * alpha
    out = torch.where(input > 0, input, low)
    return input.copy_(out) if inplace else out


@composed(F.mish)
def mish(input: Any, inplace: bool = False) -> Any:
    """x tanh(log(1 + exp(x)))."""
    out = input * torch.tanh(F.softplus(input))
    return input.copy_(out) if inplace else out


@composed(F.glu)
def glu(input: Any, dim: int = -1) -> Any:
    """The first half of a dimension times the logistic function of the second."""
    if input.shape[dim] % 2:
        raise RuntimeError(f"glu: dimension {dim} must be even, got {input.shape[dim]}")
    first, second = input.chunk(2, dim)
    return first * torch.sigmoid(second)


@composed(F.prelu, Tensor.prelu, torch.prelu, operators=(aten._prelu_kernel.default,))
def prelu(input: Any, weight: Any) -> Any:
    """The input where positive, else a weight of its channel times it."""
    if weight.numel() != 1 and weight.dim() == 1 and input.dim() > 1:
        weight = weight.reshape(-1, *(1 for _ in range(input.dim() - 2)))
    return torch.where(input > 0, input, input * weight)
