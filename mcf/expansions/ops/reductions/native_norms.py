"""Implement the aten operators that PyTorch's layer, group and batch norm call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import transformed
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.dispatch.roomy import fitted, roomy
from mcf.expansions.ops.forms.natives import above, pulled, wide
from mcf.expansions.ops.reductions.row_scales import mean_square

aten = torch.ops.aten


def _moments(x: Any, dims: Sequence[int], eps: float, keepdim: bool = True) -> tuple[Any, Any]:
    """Return the statistics that PyTorch saves for derivatives: mean and 1 / sqrt(var + eps)."""
    mean = roomy(x).mean(dims, keepdim=True)
    found = mean_square(x - mean, dims, eps)
    scale = found.total.rsqrt()
    scale = scale if found.scale is None else scale * found.scale
    mean, scale = fitted(mean, x), fitted(scale, x)
    return (mean, scale) if keepdim else (mean.flatten(), scale.flatten())


@implements(aten.native_layer_norm.default)
def layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    """Return `layer_norm`, mean and 1 / sqrt(var + eps)."""
    dims = range(x.dim() - len(shape), x.dim())
    found = above(torch.layer_norm, x, list(shape), weight, bias, eps)
    return (found, *above(_moments, x, list(dims), eps))


@implements(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Any, scale: Any, weight: Any, bias: Any, wanted: Any
) -> tuple[Any, ...]:
    """Return the gradients of input, weight and bias."""

    def normed(x: Any, w: Any, b: Any) -> Any:
        # The operator has no eps, so take the inverse deviation that the forward pass saved.
        out = _normed(roomy(x), scale, dims)
        out = out if w is None else out * w
        return fitted(out if b is None else out + b, grad)

    dims = list(range(x.dim() - len(shape), x.dim()))
    return pulled(normed, (x, weight, bias), grad, wanted)


def _normed(x: Any, scale: Any, dims: Sequence[int]) -> Any:
    """Return (x - mean) scale, with scale = 1 / sqrt(var + eps).

    The derivative of scale is -scale^3 / 2 times that of var.
    """
    found = mean_square(x - x.mean(dims, keepdim=True), dims)
    scale, var = roomy(scale), found.square
    scale = scale if found.scale is None else scale / found.scale
    return found.x * (scale - (var - var.detach()) * (scale * scale * scale * 0.5))


@implements(aten.native_group_norm.default)
def group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, c: int, space: int, group: int, eps: float
) -> tuple[Any, ...]:
    """Return `group_norm`, mean and 1 / sqrt(var + eps) of each group."""
    count = c // group * space
    rounded = (count & (count - 1) and wide(x)) or x.dtype is torch.float16
    if rounded and transformed():
        raise UnsupportedError(
            f"torch.native_group_norm of groups of {count} numbers with components of {x.dtype} "
            f"under torch.func.grad, vjp or jvp: torch's derivative has 1 / {count} in double "
            "precision and squares in float16; use torch.nn.functional.group_norm"
        )
    found = above(torch.group_norm, x, group, weight, bias, eps)
    mean, scale = above(_moments, x.reshape(n, group, count), [2], eps)
    return found, mean[..., 0], scale[..., 0]


@implements(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Any, scale: Any, weight: Any, n: int, c: int, space: int,
    group: int, wanted: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of input, weight and bias."""

    def normed(x: Any, w: Any, b: Any) -> Any:
        rows = roomy(x).reshape(n, group, c // group * space)
        out = _normed(rows, scale[..., None], [2]).reshape(n, c, space)
        out = out if w is None else out * w.reshape(1, c, 1)
        return fitted((out + b.reshape(1, c, 1)).reshape(grad.shape), grad)

    return pulled(normed, (x, weight, x.new_zeros(c)), grad, wanted)


def _batch_dims(x: Any) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    # PyTorch saves running statistics for the derivative, although training does not use them, and
    # does not bump their version when it writes to them.
    kept = [t for t in (mean, var) if t is not None]
    with torch.autograd._unsafe_preserve_version_counter(tuple(kept)):  # type: ignore[attr-defined]
        found = above(torch.batch_norm, x, weight, bias, mean, var, training, momentum, eps, False)
    if not training and mean is not None:
        return found, x.new_zeros(0), x.new_zeros(0)
    return (found, *above(_moments, x, _batch_dims(x), eps, False))


implements(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)(_batch_norm)


@implements(aten._native_batch_norm_legit.no_stats)
def batch_norm_alone(
    x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Return `_batch_norm` without running statistics."""
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)


@implements(aten._native_batch_norm_legit_no_training.default)
def batch_norm_kept(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Return `_batch_norm` by running statistics."""
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)


@implements(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, kept_mean: Any, kept_scale: Any,
    training: bool, eps: float, wanted: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    count = x.shape[1]

    def normed(x: Any, w: Any, b: Any) -> Any:
        # In training, running statistics must not be updated again.
        kept = (None if training else mean, None if training else var)
        return torch.batch_norm(x, w, b, kept[0], kept[1], training, 0.0, eps, False)

    return pulled(normed, (x, weight, x.new_zeros(count)), grad, wanted)
