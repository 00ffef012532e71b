"""Implement batch, group, instance and local response norm.

Layer norm is in `mcf.nn.functional`; its aten operator and those of the others are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.conversion import reformat
from mcf.expansions.dispatch.recorded import transformed
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import mean_square, scaled_number
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.ops.forms.natives import above, pulled, wide
from mcf.expansions.ops.reductions.norms import power
from mcf.expansions.tensor import MCFTensor


class _Spread(NamedTuple):
    """Statistics of rows, and the normalised rows.

    Args:
        mean: the means.
        var: the biased variances.
        normed: (x - mean) / sqrt(var + eps).
    """

    mean: Any
    var: Any
    normed: Any


def _spread(x: Any, dims: list[int], eps: float) -> _Spread:
    """Normalise rows by their own statistics, which keep reduced dimensions as size 1."""
    mean = x.mean(dims, keepdim=True)
    found = mean_square(x - mean, dims, eps)
    var = found.square if found.scale is None else found.square / found.scale / found.scale
    return _Spread(mean, var, found.x / found.total.sqrt())


def _by_kept(x: Any, mean: Any, var: Any, eps: float) -> Any:
    """Normalise channels by running statistics."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    mean, var = (roomy(t.reshape(shape)) for t in (mean, var))
    return (x - mean) / (var + eps).sqrt()


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    """Return x w + b for each channel."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


@torch.no_grad()
def _follow(running: Any, fresh: Any, momentum: float) -> None:
    """Move a running statistic by momentum (mean of fresh ones - running), in its own format."""
    if running is None:
        return
    moved = running + (fresh.mean(0).reshape(running.shape) - running) * momentum
    if isinstance(moved, MCFTensor) and not isinstance(running, MCFTensor):
        # A plain buffer gets the rounded value, as in PyTorch for wider accumulators.
        moved = moved.to_plain(running.dtype)
    running.copy_(moved)


def _batch_dims(x: Any) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _normalise(
    input: Any, weight: Any, bias: Any, mean: Any, var: Any, dims: list[int] | None,
    momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """Return (x - mean) / sqrt(var + eps) w + b; by running statistics if `dims` is None.

    The running statistics, one for each channel, follow those of the input over `dims`.
    """
    x: Any = roomy(input)
    kept: tuple[Any, ...] = ()
    if dims is None:
        kept = mean, var
        out = _by_kept(x, *kept, eps)
    else:
        own, square, out = _spread(x, dims, eps)
        count = math.prod(input.shape[d] for d in dims)
        _follow(mean, own, momentum)
        _follow(var, square * count / (count - 1) if count > 1 else square, momentum)
    result: Tensor = fitted(_scaled(out, weight, bias), input, *kept, weight, bias)
    return result


@implements(torch.batch_norm)
def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """Normalise over all dimensions but the channels."""
    if input.numel() == 0:
        empty: Tensor = input.clone()
        return empty
    dims = _batch_dims(input) if training or running_mean is None else None
    return _normalise(input, weight, bias, running_mean, running_var, dims, momentum, eps)


@implements(torch.instance_norm)
def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """Normalise over the spatial dimensions; running statistics are means over batches."""
    dims = list(range(2, input.dim())) if use_input_stats else None
    return _normalise(input, weight, bias, running_mean, running_var, dims, momentum, eps)


@implements(torch.group_norm)
def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) w + b, over the channels of each group and space."""
    if num_groups <= 0 or input.shape[1] % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={num_groups}"
        )
    size = input[0].numel() // num_groups if len(input) else 0
    groups = roomy(input).reshape(input.shape[0], num_groups, size)
    out = _spread(groups, [2], eps).normed.reshape(input.shape)
    scaled: Tensor = fitted(_scaled(out, weight, bias), input, weight, bias)
    return scaled


implements_inside("group_norm")(
    lambda input, groups, weight=None, bias=None, *rest: group_norm(
        formatted(input, example(input, weight, bias)), groups, weight, bias, *rest
    )
)


@implements(F.local_response_norm)
def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Return x / (k + alpha mean(x^2))^beta, over zero-padded windows of channels."""
    if input.dim() < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)"
        )
    if input.numel() == 0:
        return input
    x = roomy(input)
    around = F.pad(x.movedim(1, -1), (size // 2, (size - 1) // 2))
    window = around.unfold(-1, size, 1).movedim(-2, 1)
    found = mean_square(window, [-1], k / alpha if alpha > 0 and k > 0 else 0.0)
    square = found.square.squeeze(-1)
    if found.scale is None:
        return fitted(x / (square * alpha + k) ** beta, input)
    scale = found.scale.squeeze(-1)
    total = square * alpha + scaled_number(k, x, scale) * scale
    # Powers of the factor alone may overflow where the result does not.
    left = power(reformat(scale, x.dtype, x.terms), 2 * Fraction(beta) - 1)
    return fitted((x * scale) / total**beta * left, input)


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
def native_layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    """Return `layer_norm`, mean and 1 / sqrt(var + eps)."""
    dims = range(x.dim() - len(shape), x.dim())
    found = above(torch.layer_norm, x, list(shape), weight, bias, eps)
    return (found, *above(_moments, x, list(dims), eps))


@implements(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
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
def native_group_norm(
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
def native_group_norm_backward(
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


implements(aten._native_batch_norm_legit.no_stats)(
    lambda x, weight, bias, *options: _batch_norm(x, weight, bias, None, None, *options)
)
implements(aten._native_batch_norm_legit_no_training.default)(
    lambda x, weight, bias, mean, var, *options: _batch_norm(
        x, weight, bias, mean, var, False, *options
    )
)


@implements(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
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
