"""Operators that torch's derivatives call, and losses, in terms of arithmetic and exp."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.tensor.dispatch.movement import where
from mcf.tensor.dispatch.registry import implements

aten = torch.ops.aten


@implements(aten.tanh_backward.default)
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    """grad (1 - y^2) for y = tanh(x), as a product that cancels less."""
    return grad * ((1 - y) * (1 + y))


@implements(aten.sigmoid_backward.default)
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    """grad y (1 - y) for y = sigmoid(x)."""
    return grad * (y * (1 - y))


@implements(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """exp(x - max) over its sum."""
    if x.ndim == 0:
        return softmax(x[None], 0)[0]
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@implements(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """x - max - log(sum exp(x - max))."""
    if x.ndim == 0:
        return log_softmax(x[None], 0)[0]
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@implements(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    """y (grad - sum(grad y))."""
    if y.ndim == 0:
        return softmax_backward(grad[None], y[None], 0)[0]
    return y * (grad - (grad * y).sum(dim, keepdim=True))


@implements(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    """Grad - exp(y) sum(grad)."""
    if y.ndim == 0:
        return log_softmax_backward(grad[None], y[None], 0)[0]
    return grad - y.exp() * grad.sum(dim, keepdim=True)


@implements(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """Log of the sum of exp(x) over dimensions."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    top = x.amax(dims, keepdim=True)
    top = where(top.isinf(), 0, top)
    out = (x - top).exp().sum(dims, keepdim=True).log() + top
    if keepdim or x.ndim == 0:
        return out
    kept = {d % x.ndim for d in dims} if dims else set(range(x.ndim))
    return out.reshape([n for d, n in enumerate(x.shape) if d not in kept])


@implements(aten.silu.default)
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x * x.sigmoid()


@implements(aten.silu_backward.default)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Grad s (1 + x (1 - s)), s = sigmoid(x)."""
    s = x.sigmoid()
    return grad * (s * (1 + x * (1 - s)))


@implements(aten.leaky_relu.default)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where positive, else slope x."""
    return where(x > 0, x, x * negative_slope)


@implements(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, is_result: bool) -> Tensor:
    """The gradient, times the slope where x is not positive."""
    return where(x > 0, grad, grad * negative_slope)


@implements(aten.softplus.default)
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; there is no threshold, the value is accurate everywhere."""
    z = x * beta
    return (torch.clamp_min(z, 0) + (-z.abs()).exp().log1p()) / beta


@implements(aten.softplus_backward.default)
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """Grad sigmoid(beta x)."""
    return grad * (x * beta).sigmoid()


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


@implements(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """-x at the target class, weighted."""
    dim = 1 if x.ndim > 1 else 0
    kept = target != ignore_index
    safe = torch.where(kept, target, 0)
    w = kept.to(x.dtype) if weight is None else torch.where(kept, 1.0, 0.0) * weight[safe]
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
    w = kept.to(x.dtype) if weight is None else torch.where(kept, 1.0, 0.0) * weight[safe]
    g = -(grad * w)
    g = g / total_weight if reduction == 1 else g
    return torch.zeros_like(x).scatter(dim, safe.unsqueeze(dim), g.unsqueeze(dim))


@implements(aten.native_dropout.default)
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """x with elements zeroed at random, the others divided by 1 - p, and the mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = torch.rand(x.shape, device=x.device) >= p
    return where(mask, x / (1 - p) if p < 1 else x, 0), mask


@implements(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the mask holds, times the scale."""
    return where(mask, grad * scale, 0)
