"""Implement losses in terms of other functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
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
from mcf.expansions.ops.arithmetic.constants import constant, in_format
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.expansions.ops.forms.inside_transforms import example, formatted, implements_inside
from mcf.expansions.ops.forms.natives import REDUCTIONS
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.operators import ABS, DIV, LE, LT, MUL, SUB, WHERE

aten = torch.ops.aten


def chosen(reduction: str, size_average: Any = None, reduce: Any = None) -> str:
    """Return the reduction's name; PyTorch's deprecated arguments take precedence."""
    if size_average is None and reduce is None:
        return reduction
    return str(_Reduction.legacy_get_string(size_average, reduce))


def reduced(losses: Any, reduction: str) -> Any:
    """Return the losses, their mean or their sum."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    return losses if reduction == "none" else getattr(losses, reduction)()


def check_shape(
    function: str, name: str, x: Any, input: Any, error: type[Exception] = ValueError
) -> None:
    """Raise unless an argument has the input's shape."""
    if x.shape != input.shape:
        raise error(
            f"{function}: {name} must have the input's shape {list(input.shape)}, got "
            f"{list(x.shape)}"
        )


def loss(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register each element's loss in place of a function of PyTorch, whose arguments it takes.

    PyTorch's function also has `reduction`, its deprecated forms, and often `weight`. The losses
    are multiplied by the weight, unless the implementation takes it, and reduced.
    """
    signature = inspect.signature(function)

    def register(each: Callable[..., Any]) -> Callable[..., Any]:
        weighs = "weight" in inspect.signature(each).parameters

        def call(*args: Any, **named: Any) -> Any:
            given = dict(zip(signature.parameters, args, strict=False)) | named
            old = given.pop("size_average", None), given.pop("reduce", None)
            reduction = chosen(given.pop("reduction", "mean"), *old)
            weight = None if weighs else given.pop("weight", None)
            found = each(**given)
            return reduced(found if weight is None else found * weight, reduction)

        call.__signature__ = signature  # type: ignore[attr-defined]
        implements(function)(call)
        return each

    return register


def mean_or_sum(x: Any, reduction: int) -> Any:
    """Return the losses, their mean or their sum for reduction 0, 1 or 2."""
    return reduced(x, REDUCTIONS[reduction])


def spread_over(grad: Tensor, count: int, reduction: int) -> Tensor:
    """Return the gradient of each loss: divided by `count` for a mean."""
    return grad / count if reduction == 1 else grad


@implements(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Any:
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


@loss(F.l1_loss)
def l1_loss(input: Any, target: Any) -> Any:
    """Return |input - target|."""
    return _of_each(_distance, input, target)


@loss(F.smooth_l1_loss)
def smooth_l1_loss(input: Any, target: Any, beta: float = 1.0) -> Any:
    """Return d^2 / (2 beta) for |d| < beta, else |d| - beta / 2; d = input - target."""
    if beta == 0:
        return _of_each(_distance, input, target)
    return _of_each(_smooth_distance, input, target, beta, beta / 2)


def _smooth_distance(o: Any, x: Any, y: Any, beta: Any, half: Any) -> Any:
    d = _distance(o, x, y)
    near = o(LT, d, beta)
    inner = o(WHERE, near, d, 0)
    return o(WHERE, near, o(DIV, o(DIV, o(MUL, inner, inner), beta), 2), o(SUB, d, half))


@loss(F.huber_loss)
def huber_loss(input: Any, target: Any, delta: float = 1.0) -> Any:
    """Return d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2); d = input - target."""
    return _of_each(_huber_distance, input, target, delta, delta / 2)


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


@loss(F.binary_cross_entropy)
def binary_cross_entropy(input: Any, target: Any) -> Any:
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
    return -(target * first + (1 - target) * second)


@loss(F.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(input: Any, target: Any, pos_weight: Any = None) -> Any:
    """Return the binary cross entropy of sigmoid(input)."""
    check_shape("binary_cross_entropy_with_logits", "target", target, input)
    return _of_logits(input, target, pos_weight)


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


@loss(F.multilabel_soft_margin_loss)
def multilabel_soft_margin_loss(input: Any, target: Any, weight: Any = None) -> Any:
    """Return the mean over the classes of the binary cross entropies of sigmoid(input)."""
    losses = _of_logits(input, target)
    losses = losses if weight is None else losses * weight
    return losses.sum(-1) / input.shape[-1]


@loss(F.soft_margin_loss)
def soft_margin_loss(input: Any, target: Any) -> Any:
    """Return log(1 + exp(-target input))."""
    return F.softplus(-(target * input))


def half_log_two_pi(like: Any) -> Any:
    """Return log(2 pi) / 2."""
    return torch.log(constant(2 * fixed.pi(), like)) / 2


@loss(F.gaussian_nll_loss)
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6
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
    losses = (torch.log(v) + gap * (gap / v)) / 2
    losses = losses + half_log_two_pi(losses) if full else losses
    return fitted(losses, input, target, v)


@loss(F.poisson_nll_loss)
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8
) -> Any:
    """Return exp(x) - t x, or x - t log(x + eps); `full` adds t log(t) - t + log(2 pi t) / 2."""
    more = half_log_two_pi(target) if full else None
    return _poisson(input, target, log_input, more, Fraction(eps))


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
    more = half_log_two_pi(like) if full else None
    return mean_or_sum(_poisson(input, target, log_input, more, eps), reduction)


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
    sharp: Any = F.nll_loss(logs, target, weight, None, ignore_index, None, reduction)
    if not smoothing:
        return sharp
    kept = target != ignore_index
    smooth: Any = torch.where(kept, -weighted.sum(dim), 0)
    if reduction == "mean" and weight is None:
        smooth = smooth.sum() / kept.sum()
    elif reduction == "mean":
        of_targets = weight[torch.where(kept, target, 0)]
        smooth = smooth.sum() / torch.where(kept, of_targets, 0).sum()
    else:
        smooth = reduced(smooth, reduction)
    return sharp * operand(1 - smoothing) + smooth * operand(smoothing / classes)


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
    options = REDUCTIONS[reduction], ignore_index, label_smoothing
    return _cross_entropy(input, target, weight, *options, lambda x: in_format(x, like))


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
        losses = torch.exp(target) * (target - input)
    else:
        losses = torch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return losses.sum() / input.shape[0] if input.dim() else losses.sum()
    return reduced(losses, reduction)


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


@loss(F.multi_margin_loss)
def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None
) -> Any:
    """Return the sum of max(0, margin - x[y] + x[i])^p over classes i != y, over all classes."""
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
    losses = torch.where(others, gap, 0).sum(1) / classes
    return losses if input.dim() == 2 else losses[0]


@loss(F.multilabel_margin_loss)
def multilabel_margin_loss(input: Any, target: Any) -> Any:
    """Return the sum of max(0, 1 - x[y] + x[i]) over targets y and other i, over all classes.

    The targets of a row are those before its first -1.
    """
    x, y = _rows("multilabel_margin_loss", input, target, True)
    classes = x.shape[1]
    _check("multilabel_margin_loss", y, -1, classes)
    named = (y < 0).cumsum(1) == 0
    places = torch.where(named, y, 0)
    targets = torch.zeros_like(y).scatter_add(1, places, named.long()) > 0
    gap = torch.relu(1 - x.gather(1, places)[:, :, None] + x[:, None, :])
    counted = named[:, :, None] & ~targets[:, None, :]
    losses = torch.where(counted, gap, 0).sum((1, 2)) / classes
    return losses if input.dim() == 2 else losses[0]
