"""Implement regression and probability losses in terms of other functions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction as _Reduction

from mcf.elementary import fixed
from mcf.expansions.dispatch.recorded import differentiated, recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.launch.fused_formulas import Written, by_torch, composed
from mcf.expansions.ops.elementary.constants import constant
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.operators import ABS, DIV, LE, LT, MUL, SUB, WHERE

aten = torch.ops.aten


def chosen(reduction: str, size_average: Any = None, reduce: Any = None) -> str:
    """Return the reduction's name; PyTorch's deprecated arguments take precedence."""
    if size_average is None and reduce is None:
        return reduction
    return str(_Reduction.legacy_get_string(size_average, reduce))


def reduced(loss: Any, reduction: str, size_average: Any = None, reduce: Any = None) -> Any:
    """Return the losses, their mean or their sum."""
    reduction = chosen(reduction, size_average, reduce)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    return loss if reduction == "none" else getattr(loss, reduction)()


def check_shape(
    function: str, name: str, x: Any, input: Any, error: type[Exception] = ValueError
) -> None:
    """Raise unless an argument has the input's shape."""
    if x.shape != input.shape:
        raise error(
            f"{function}: {name} must have the input's shape {list(input.shape)}, got "
            f"{list(x.shape)}"
        )


def _weighted(
    loss: Any, weight: Any, reduction: str, size_average: Any = None, reduce: Any = None
) -> Any:
    return reduced(loss if weight is None else loss * weight, reduction, size_average, reduce)


def mean_or_sum(x: Tensor, reduction: int) -> Tensor:
    """Return the losses, their mean or their sum for reduction 0, 1 or 2."""
    if not reduction:
        return x
    return x.mean() if reduction == 1 else x.sum()


def spread_over(grad: Tensor, count: int, reduction: int) -> Tensor:
    """Return the gradient of each loss: divided by `count` for a mean."""
    return grad / count if reduction == 1 else grad


@implements(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Return (x - target)^2; reduction 0 none, 1 mean, 2 sum."""
    return mean_or_sum(_of_each(_squared_distance, x, target), reduction)


def _of_each(formula: Written, x: Any, y: Any, *numbers: Any) -> Any:
    """Apply a formula to x and y, in one launch if formats agree and nothing is recorded."""
    if type(x) is type(y) is MCFTensor and not recorded(x) and not recorded(y):
        same = x.dtype is y.dtype and x.terms == y.terms and x.shape == y.shape
        if same and all(type(v) in (int, float) for v in numbers):
            return composed(formula, x, y, *numbers)
    return formula(_by_torch, x, y, *numbers)


# The derivative at NaN is NaN: PyTorch's 0 would hide the NaN in gradients.
_size: Any = differentiable("size", torch.abs, lambda d: torch.where(d == d, torch.sgn(d), d))


def _by_torch(operation: Any, *values: Any) -> Any:
    """Apply an operation as a PyTorch function; |d| gets the derivative NaN at NaN."""
    return _size(*values) if operation is ABS else by_torch(operation, *values)


def _squared_distance(o: Any, x: Any, y: Any) -> Any:
    d = o(SUB, x, y)
    return o(MUL, d, d)


def _distance(o: Any, x: Any, y: Any) -> Any:
    return o(ABS, o(SUB, x, y))


@implements(aten.mse_loss_backward.default)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Return 2 (x - target) grad, divided by the count for a mean."""
    d = x - target
    return spread_over(d * 2 * grad, d.numel(), reduction)


@implements(F.l1_loss)
def l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """Return |input - target|."""
    return _weighted(_of_each(_distance, input, target), weight, reduction, size_average, reduce)


@implements(F.smooth_l1_loss)
def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    """Return d^2 / (2 beta) for |d| < beta, else |d| - beta / 2; d = input - target."""
    if beta == 0:
        loss = _of_each(_distance, input, target)
    else:
        loss = _of_each(_smooth_distance, input, target, beta, beta / 2)
    return reduced(loss, reduction, size_average, reduce)


def _smooth_distance(o: Any, x: Any, y: Any, beta: Any, half: Any) -> Any:
    d = _distance(o, x, y)
    near = o(LT, d, beta)
    inner = o(WHERE, near, d, 0)
    return o(WHERE, near, o(DIV, o(DIV, o(MUL, inner, inner), beta), 2), o(SUB, d, half))


@implements(F.huber_loss)
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    """Return d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2); d = input - target."""
    loss = _of_each(_huber_distance, input, target, delta, delta / 2)
    return _weighted(loss, weight, reduction)


def _huber_distance(o: Any, x: Any, y: Any, delta: Any, half: Any) -> Any:
    d = _distance(o, x, y)
    near = o(LE, d, delta)
    inner = o(WHERE, near, d, 0)
    return o(WHERE, near, o(DIV, o(MUL, inner, inner), 2), o(MUL, o(SUB, d, half), delta))


class _BoundedLogarithm(torch.autograd.Function):
    """Logarithm of x, clamped to at least -100, with the derivative 1 / x.

    At x = 0, where the clamped logarithm is constant, the derivative is PyTorch's 1e12, or 2^15 in
    float16. It is finite, so that its product with the zero derivative of a saturated sigmoid is 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, logarithm: Any) -> Any:
        ctx.save_for_backward(x)
        return logarithm.clamp_min(-100)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        least = max(1e-12, 2 / torch.finfo(x.dtype).max)
        return grad / torch.where(x == 0, least, x), None


@implements(F.binary_cross_entropy)
def binary_cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return -(t log(x) + (1 - t) log(1 - x)), with logarithms of at least -100."""
    check_shape("binary_cross_entropy", "target", target, input)
    if not bool(((input >= 0) & (input <= 1)).all()):
        raise RuntimeError("binary_cross_entropy: all elements of input must be in [0, 1]")
    first, second = torch.log(input.detach()), torch.log1p(-input.detach())
    if differentiated((input,)):
        first, second = (
            _BoundedLogarithm.apply(x, value)  # type: ignore[no-untyped-call]
            for x, value in ((input, first), (1 - input, second))
        )
    else:
        first, second = first.clamp_min(-100), second.clamp_min(-100)
    return _weighted(
        -(target * first + (1 - target) * second), weight, reduction, size_average, reduce
    )


@implements(F.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Return the binary cross entropy of sigmoid(input)."""
    check_shape("binary_cross_entropy_with_logits", "target", target, input)
    loss = _of_logits(input, target, pos_weight)
    return _weighted(loss, weight, reduction, size_average, reduce)


def _of_logits(x: Any, target: Any, pos_weight: Any = None) -> Any:
    """Return -(w t log(sigmoid(x)) + (1 - t) log(sigmoid(-x))).

    It is log(1 + exp(-|x|)) (1 + (w - 1) t) plus (1 - t) x for x > 0, else minus w t x. For correct
    predictions no term cancels.
    """
    above = x > 0
    rest = F.softplus(torch.where(above, -x, x))
    weighted = target
    if pos_weight is not None:
        rest, weighted = rest * (target * (pos_weight - 1) + 1), target * pos_weight
    return rest + torch.where(above, (1 - target) * x, -weighted * x)


@implements(F.multilabel_soft_margin_loss)
def multilabel_soft_margin_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return the mean over the classes of the binary cross entropies of sigmoid(input)."""
    loss = _of_logits(input, target)
    loss = loss if weight is None else loss * weight
    return reduced(loss.sum(-1) / input.shape[-1], reduction, size_average, reduce)


@implements(F.soft_margin_loss)
def soft_margin_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return log(1 + exp(-target input))."""
    return reduced(F.softplus(-(target * input)), reduction, size_average, reduce)


def half_log_two_pi(like: Any) -> Any:
    """Return log(2 pi) / 2."""
    return torch.log(constant(2 * fixed.pi(), like)) / 2


@implements(F.gaussian_nll_loss)
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Return (log(v) + (input - target)^2 / v) / 2, v = max(var, eps).

    `full` adds log(2 pi) / 2. As documented by PyTorch, the derivative ignores the maximum.
    """
    v = var if isinstance(var, Tensor) else input.new_full((), var)
    if bool((v < 0).any()):
        raise ValueError("gaussian_nll_loss: var must not be negative")
    if v.dim() and v.shape != input.shape:
        if v.shape == input.shape[:-1]:
            v = v.unsqueeze(-1)
        apart = [d for d, (n, m) in enumerate(zip(input.shape, v.shape, strict=False)) if n != m]
        if v.dim() != input.dim() or len(apart) > 1 or any(v.shape[d] != 1 for d in apart):
            raise ValueError(
                f"gaussian_nll_loss: var must have the input's shape {list(input.shape)}, or no "
                f"last dimension, or one dimension of 1, got {list(var.shape)}"
            )
    x, y, v = roomy(input), roomy(target), roomy(v).clone()
    with torch.no_grad():
        v.clamp_(min=eps)
    gap = x - y
    # The square may overflow where the quotient does not.
    loss = (torch.log(v) + gap * (gap / v)) / 2
    loss = loss + half_log_two_pi(loss) if full else loss
    return reduced(fitted(loss, input, target, v), reduction)


@implements(F.poisson_nll_loss)
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
    """Return exp(x) - t x, or x - t log(x + eps); `full` adds t log(t) - t + log(2 pi t) / 2."""
    more = half_log_two_pi(target) if full else None
    return reduced(
        _poisson(input, target, log_input, more, Fraction(eps)), reduction, size_average, reduce
    )


def _poisson(input: Any, target: Any, log_input: bool, more: Any, eps: Any) -> Any:
    """Return each element's loss, with Stirling's formula if its constant `more` is passed."""
    rate = (
        torch.exp(input) - target * input if log_input else input - target * torch.log(input + eps)
    )
    if more is None:
        return rate
    large = target > 1
    t = torch.where(large, target, 1)
    return rate + torch.where(large, t * torch.log(t) - t + torch.log(t) / 2 + more, 0)


@implements_inside("poisson_nll_loss")
def _poisson_inside(
    input: Any, target: Any, log_input: bool, full: bool, eps: float, reduction: int
) -> Any:
    like = example(input, target)
    input, target = formatted(input, like), formatted(target, like)
    loss = _poisson(input, target, log_input, half_log_two_pi(like) if full else None, eps)
    return mean_or_sum(loss, reduction)
