"""Implement `nll_loss`, `cross_entropy`, `kl_div` and the margin losses of several classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.elementary.constants import in_format
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.ops.nn.losses import check_shape, chosen, reduced
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _targets(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
) -> tuple[int, Tensor, Tensor]:
    """Return the class dimension, each target's index in it, and the targets' weights.

    Ignored targets have index 0 and weight 0. Weights have the result's format, so that they can
    be summed.
    """
    dim = 1 if x.ndim > 1 else 0
    kept = target != ignore_index
    classes = torch.where(kept, target, 0)
    one: Any = x.new_ones(target.shape)
    one = one if isinstance(x, MCFTensor) else wrap((one,))
    weights = where(kept, one if weight is None else one * weight[classes], 0.0)
    return dim, classes.unsqueeze(dim), weights


@implements(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return -x at the target class, weighted, and the sum of the weights."""
    dim, index, w = _targets(x, target, weight, ignore_index)
    picked = -x.gather(dim, index).squeeze(dim) * w
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
    """Return -grad at the target class, weighted; 0 elsewhere."""
    dim, index, w = _targets(x, target, weight, ignore_index)
    g = -(grad * w)
    g = g / total_weight if reduction == 1 else g
    return torch.zeros_like(x).scatter(dim, index, g.unsqueeze(dim))


@implements(F.cross_entropy)
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return -log(softmax(x)) at the target class, or averaged over the target's probabilities."""
    reduction = chosen(reduction, size_average, reduce)
    return _cross_entropy(
        input, target, weight, reduction, ignore_index, label_smoothing, lambda number: number
    )


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    operand: Callable[[Fraction], Any],
) -> Any:
    """Compute `cross_entropy`; `operand` converts numbers to operands of expansions."""
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    dim = 1 if input.dim() > 1 else 0
    logs = torch.log_softmax(input, dim)
    smoothing, classes = Fraction(label_smoothing), input.shape[dim]
    shape = [-1 if d == dim else 1 for d in range(input.dim())]
    weighted = logs if weight is None else logs * weight.reshape(shape)
    if target.is_floating_point():
        check_shape("cross_entropy", "probabilities", target, input, RuntimeError)
        if smoothing:
            target = target * operand(1 - smoothing) + operand(smoothing / classes)
        each = -(weighted * target).sum(dim)
        if reduction != "mean":
            return reduced(each, reduction)
        return each.sum() / (input.numel() // classes)
    loss: Any = F.nll_loss(logs, target, weight, None, ignore_index, None, reduction)
    if not smoothing:
        return loss
    kept = target != ignore_index
    smooth: Any = torch.where(kept, -weighted.sum(dim), 0)
    if reduction == "mean" and weight is None:
        smooth = smooth.sum() / kept.sum()
    elif reduction == "mean":
        of_targets = weight[torch.where(kept, target, 0)]
        smooth = smooth.sum() / torch.where(kept, of_targets, 0).sum()
    else:
        smooth = reduced(smooth, reduction)
    return loss * operand(1 - smoothing) + smooth * operand(smoothing / classes)


@implements_inside("cross_entropy_loss")
def _cross_entropy_inside(
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    like = example(input, weight, target)
    input = formatted(input, like)
    weight = None if weight is None else formatted(weight, like)
    if target.is_floating_point():
        target = formatted(target, like)
    way = ("none", "mean", "sum")[reduction]
    return _cross_entropy(
        input, target, weight, way, ignore_index, label_smoothing, lambda x: in_format(x, like)
    )


@implements(F.kl_div)
def kl_div(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    log_target: bool = False,
) -> Any:
    """Return t (log(t) - x), 0 for t = 0; exp(t) (t - x) with `log_target`."""
    reduction = chosen(reduction, size_average, reduce)
    if log_target:
        loss = torch.exp(target) * (target - input)
    else:
        loss = torch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return loss.sum() / input.shape[0] if input.dim() else loss.sum()
    return reduced(loss, reduction)


def _rows(function: str, input: Any, target: Any, each: bool) -> tuple[Any, Any]:
    """Return scores [batch, classes] and targets [batch, 1 or classes], checked."""
    x = input if input.dim() == 2 else input.reshape(1, -1)
    wanted = x.shape if each else x.shape[:1]
    if input.dim() > 2 or x.shape[1] == 0 or target.numel() != math.prod(wanted):
        raise RuntimeError(
            f"{function}: input must be [batch, classes] or [classes] and target have "
            f"{math.prod(wanted)} elements, got {list(input.shape)} and {list(target.shape)}"
        )
    return x, target.reshape(x.shape[0], -1)


def _check(function: str, target: Any, low: int, classes: int) -> None:
    if target.numel() and not low <= int(target.min()) <= int(target.max()) < classes:
        raise RuntimeError(
            f"{function}: target must be from {low} to {classes - 1}, got "
            f"{int(target.min())} to {int(target.max())}"
        )


@implements(F.multi_margin_loss)
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return the sum of max(0, margin - x[y] + x[i])^p over classes i != y, over all classes."""
    reduction = chosen(reduction, size_average, reduce)
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p must be 1 or 2, got {p}")
    x, y = _rows("multi_margin_loss", input, target, False)
    classes = x.shape[1]
    _check("multi_margin_loss", y, 0, classes)
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            f"multi_margin_loss: weight must have {classes} elements, got {list(weight.shape)}"
        )
    gap = torch.relu(margin - x.gather(1, y) + x)
    gap = gap * gap if p == 2 else gap
    gap = gap if weight is None else gap * weight[y]
    others = torch.arange(classes, device=x.device) != y
    loss = torch.where(others, gap, 0).sum(1) / classes
    return reduced(loss if input.dim() == 2 else loss[0], reduction)


@implements(F.multilabel_margin_loss)
def multilabel_margin_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return the sum of max(0, 1 - x[y] + x[i]) over targets y and other i, over all classes.

    The targets of a row are those before its first -1.
    """
    reduction = chosen(reduction, size_average, reduce)
    x, y = _rows("multilabel_margin_loss", input, target, True)
    classes = x.shape[1]
    _check("multilabel_margin_loss", y, -1, classes)
    named = (y < 0).cumsum(1) == 0
    places = torch.where(named, y, 0)
    targets = torch.zeros_like(y).scatter_add(1, places, named.long()) > 0
    gap = torch.relu(1 - x.gather(1, places)[:, :, None] + x[:, None, :])
    counted = named[:, :, None] & ~targets[:, None, :]
    loss = torch.where(counted, gap, 0).sum((1, 2)) / classes
    return reduced(loss if input.dim() == 2 else loss[0], reduction)
