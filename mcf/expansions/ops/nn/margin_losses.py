"""Implement losses of the margin between the target classes' scores and the others."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.nn.losses import chosen, reduced


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
