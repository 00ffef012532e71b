"""Functions with a constant that torch has in double precision: here it has all components."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from mcf.elementary import exact
from mcf.tensor.dispatch.derivatives import constant
from mcf.tensor.functions import composed

# The fixed point of mean 0 and variance 1, to more digits than four float64 components have;
# Klambauer et al. 2017, arXiv:1706.02515, eq. 14.
_SELU_ALPHA = Fraction(
    "1.67326324235437728481704299167165203846115534828121627091524483424858611591"
)
_SELU_SCALE = Fraction(
    "1.0507009873554804934193349852946063519589812043764045469778783878019946204"
)


def _written(input: Any, out: Any, inplace: bool) -> Any:
    return input.copy_(out) if inplace else out


@composed(F.selu, torch.selu)
def selu(input: Any, inplace: bool = False) -> Any:
    """scale x where positive, else scale alpha (exp(x) - 1)."""
    below: Any = torch.expm1(torch.where(input > 0, 0, input))
    out: Any = torch.where(input > 0, input, below * _SELU_ALPHA)
    return _written(input, out * _SELU_SCALE, inplace)


@composed(torch.selu_)
def selu_(input: Any) -> Any:
    """`selu` in place."""
    return selu(input, True)


@composed(F.dropout, torch.dropout)
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: Any = None
) -> Any:
    """Elements 0 with probability p, the others divided by 1 - p, which is exact."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not (training if train is None else train) or p == 0:
        return input
    kept = torch.rand(input.shape, device=input.device) >= p
    out = torch.where(kept, input / (1 - Fraction(p)) if p < 1 else input, 0)
    return _written(input, out, inplace)


def half_log_two_pi(like: Any) -> Any:
    """log(2 pi) / 2."""
    return torch.log(constant(2 * exact.pi(), like)) / 2


@composed(F.gaussian_nll_loss)
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """(log(v) + (input - target)^2 / v) / 2, v = max(var, eps); `full` adds log(2 pi) / 2."""
    from mcf.tensor.functions import unasked

    plain = unasked(F.gaussian_nll_loss)
    loss = plain(input, target, var, full=False, eps=eps, reduction=reduction)
    if not full:
        return loss
    more = half_log_two_pi(loss)
    return loss + (more * input.numel() if reduction == "sum" else more)


@composed(F.poisson_nll_loss)
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: float = 1e-8,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """exp(x) - t x, or x - t log(x + eps); `full` adds t log(t) - t + log(2 pi t) / 2."""
    from mcf.tensor.composed.losses import reduced

    rate = (
        torch.exp(input) - target * input
        if log_input
        else input - target * torch.log(input + Fraction(eps))
    )
    if full:
        large = target > 1
        t = torch.where(large, target, 1)
        stirling = t * torch.log(t) - t + torch.log(t) / 2 + half_log_two_pi(t)
        rate = rate + torch.where(large, stirling, 0)
    return reduced(rate, reduction, size_average, reduce)


@composed(F.cross_entropy)
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
    """-log(softmax(x)) at the target class or weighted by the target's probabilities."""
    from mcf.tensor.composed.losses import chosen, reduced

    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    reduction = chosen(reduction, size_average, reduce)
    dim = 1 if input.dim() > 1 else 0
    logs = torch.log_softmax(input, dim)
    smoothing, classes = Fraction(label_smoothing), input.shape[dim]
    shape = [-1 if d == dim else 1 for d in range(input.dim())]
    weighted = logs if weight is None else logs * weight.reshape(shape)
    if target.is_floating_point():
        if target.shape != input.shape:
            raise RuntimeError(
                f"cross_entropy: probabilities must have the input's shape {list(input.shape)}, "
                f"got {list(target.shape)}"
            )
        if smoothing:
            target = target * (1 - smoothing) + smoothing / classes
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
    return loss * (1 - smoothing) + smooth * (smoothing / classes)


@composed(F.kl_div)
def kl_div(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    log_target: bool = False,
) -> Any:
    """t (log(t) - x), 0 where t is 0; exp(t) (t - x) with `log_target`."""
    from mcf.tensor.composed.losses import chosen, reduced

    reduction = chosen(reduction, size_average, reduce)
    if log_target:
        loss = torch.exp(target) * (target - input)
    else:
        loss = torch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return loss.sum() / input.shape[0] if input.dim() else loss.sum()
    return reduced(loss, reduction)
