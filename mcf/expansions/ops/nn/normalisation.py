"""Implement batch, group, instance and local response norm.

Layer norm is in `mcf.nn.functional`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.conversion import reformat
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.roomy import fitted, roomy
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.ops.reductions.norms import power
from mcf.expansions.ops.reductions.row_scales import beside, mean_square
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
    """Move a running statistic by momentum (fresh - running), in its own format."""
    if running is None:
        return
    moved = running + (fresh.detach().reshape(running.shape) - running) * momentum
    if isinstance(moved, MCFTensor) and not isinstance(running, MCFTensor):
        # A plain buffer gets the rounded value, as in PyTorch for wider accumulators.
        moved = moved.to_plain(running.dtype)
    running.copy_(moved)


@implements(torch.batch_norm)
def batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) w + b, over all dimensions but the channels."""
    if input.numel() == 0:
        empty: Tensor = input.clone()
        return empty
    x: Any = roomy(input)
    kept: tuple[Any, ...] = ()
    if training or running_mean is None:
        mean, var, out = _spread(x, [d for d in range(input.dim()) if d != 1], eps)
        count = input.numel() // input.shape[1]
        _follow(running_mean, mean, momentum)
        _follow(running_var, var * count / (count - 1) if count > 1 else var, momentum)
    else:
        kept = running_mean, running_var
        out = _by_kept(x, *kept, eps)
    result: Tensor = fitted(_scaled(out, weight, bias), input, *kept, weight, bias)
    return result


@implements(torch.instance_norm)
def instance_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) w + b, over the spatial dimensions.

    Running statistics are means over batches.
    """
    x: Any = roomy(input)
    kept: tuple[Any, ...] = ()
    if use_input_stats:
        mean, var, out = _spread(x, list(range(2, input.dim())), eps)
        count = input[0, 0].numel()
        _follow(running_mean, mean.mean(0), momentum)
        unbiased = var * count / (count - 1) if count > 1 else var
        _follow(running_var, unbiased.mean(0), momentum)
    else:
        kept = running_mean, running_var
        out = _by_kept(x, *kept, eps)
    result: Tensor = fitted(_scaled(out, weight, bias), input, *kept, weight, bias)
    return result


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


@implements_inside("group_norm")
def _group_norm_inside(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    x = formatted(input, example(input, weight, bias))
    return group_norm(x, num_groups, weight, bias, eps, cudnn_enabled)


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
    total = square * alpha + beside(k, x, scale) * scale
    # Powers of the factor alone may overflow where the result does not.
    left = power(reformat(scale, x.dtype, x.terms), 2 * Fraction(beta) - 1)
    return fitted((x * scale) / total**beta * left, input)
