"""Activations and losses with their derivatives, in terms of other functions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.dispatch.movement import where
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


@implements(aten.silu.default)
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x * x.sigmoid()


@implements(aten.silu_backward.default)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Grad s (1 + x (1 - s)), s = sigmoid(x)."""
    s = x.sigmoid()
    return grad * (s * (1 + x * (1 - s)))


@implements(aten.softplus.default)
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; there is no threshold, the value is accurate everywhere."""
    z = x * beta
    return (z.clamp_min(0) + (-z.abs()).exp().log1p()) / beta


@implements(aten.softplus_backward.default)
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """Grad sigmoid(beta x)."""
    return grad * (x * beta).sigmoid()


@implements(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """log(sigmoid(x)), and a buffer that its derivative does not need."""
    return -softplus(-x), x.new_empty((0,))


@implements(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """Grad sigmoid(-x)."""
    return grad * (-x).sigmoid()


@implements(aten.elu.default)
def elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    """scale x where positive, else scale alpha (exp(input_scale x) - 1)."""
    out: Tensor = where(x > 0, x, (x * input_scale).clamp_max(0).expm1() * alpha) * scale
    return out


@implements(aten.elu_backward.default)
def elu_backward(
    grad: Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Tensor
) -> Tensor:
    """The derivative of elu by x, or by its result, times grad."""
    if is_result:
        low = (x + scale * alpha) * input_scale
    else:
        low = (x * input_scale).clamp_max(0).exp() * alpha * scale * input_scale
    out: Tensor = grad * where(x > 0, scale, low)
    return out


@implements(aten.frac.default)
def frac(x: Tensor) -> Tensor:
    """x without its integer part, exact."""
    return x - x.trunc()


@implements(aten.floor_divide.default)
def floor_divide(x: Any, y: Any) -> Tensor:
    """x / y rounded down."""
    return torch.div(x, y, rounding_mode="floor")


@implements(aten.leaky_relu.default)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where positive, else slope x."""
    return where(x > 0, x, x * negative_slope)


@implements(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, is_result: bool) -> Tensor:
    """The gradient, times the slope where x is not positive."""
    return where(x > 0, grad, grad * negative_slope)


def _reduced(x: Tensor, reduction: int) -> Tensor:
    return (x, x.mean(), x.sum())[reduction] if reduction else x


def _spread(grad: Tensor, count: int, reduction: int) -> Tensor:
    return grad / count if reduction == 1 else grad


@implements(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """(x - target)^2; reduction 0 none, 1 mean, 2 sum."""
    d = x - target
    return _reduced(d * d, reduction)


@implements(aten.mse_loss_backward.default)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """2 (x - target) grad, divided by the count for a mean."""
    d = x - target
    return _spread(d * 2 * grad, d.numel(), reduction)


def _weights(x: Tensor, kept: Tensor, classes: Tensor, weight: Tensor | None) -> Tensor:
    """The weights of the targets, 0 of ignored ones; in the format of the result, to be summed."""
    one = x.new_ones(()) if isinstance(x, MCFTensor) else wrap((x.new_ones(()),))
    chosen = one if weight is None else one * weight[classes]
    return where(kept, chosen, 0 * one)


@implements(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """-x at the target class, weighted."""
    dim = 1 if x.ndim > 1 else 0
    kept = target != ignore_index
    safe = torch.where(kept, target, 0)
    w = _weights(x, kept, safe, weight)
    picked = -x.gather(dim, safe.unsqueeze(dim)).squeeze(dim) * w
    total = w.sum()
    if reduction == 0:
        return picked, total
    out = picked.sum()
    return (out / total if reduction == 1 else out), total


@implements(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """-grad at the target class, weighted; 0 elsewhere."""
    dim = 1 if x.ndim > 1 else 0
    kept = target != ignore_index
    safe = torch.where(kept, target, 0)
    w = _weights(x, kept, safe, weight)
    g = -(grad * w)
    g = g / total_weight if reduction == 1 else g
    return torch.zeros_like(x).scatter(dim, safe.unsqueeze(dim), g.unsqueeze(dim))


@implements(aten.native_dropout.default)
def native_dropout(x: Any, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """x with elements zeroed at random, the others divided by 1 - p, and the mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = torch.rand(x.shape, device=x.device) >= p
    return where(mask, x / (1 - Fraction(p)) if p < 1 else x, 0), mask


@implements(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the mask holds, times the scale."""
    return where(mask, grad * scale, 0)
