"""Elementary functions, rounding to integers and softmax: they are `mcf.elementary`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch

from mcf import elementary
from mcf.convert import export
from mcf.kernels.components import padded
from mcf.reductions.rows import Rows
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.promotion import operands
from mcf.tensor.tensor import Components, MCFTensor, wrap

aten = torch.ops.aten

# Under torch's name, where it is ours too.
_UNARY = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "floor", "ceil",
    "round", "trunc",
)  # fmt: skip


def _unary(function: Callable[[Components], Components]) -> Callable[[MCFTensor], MCFTensor]:
    def implementation(x: MCFTensor) -> MCFTensor:
        return wrap(function(x.components))

    return implementation


for _name in _UNARY:
    implements(getattr(aten, _name).default)(_unary(getattr(elementary, _name)))
implements(aten.special_ndtr.default)(_unary(elementary.normal_cdf))


def _binary(function: Callable[[Components, Components], Components], x: Any, y: Any) -> MCFTensor:
    a, b = operands(x, y)
    terms = max(v.terms for v in (x, y) if isinstance(v, MCFTensor))
    # The result has the terms of the tensors, also where both values have one component.
    a = padded(a, terms)
    return wrap(function(a, b))


@implements(aten.atan2.default)
def atan2(y: Any, x: Any) -> MCFTensor:
    """The angle of the point (x, y)."""
    return _binary(elementary.atan2, y, x)


@implements(aten.hypot.default)
def hypot(x: Any, y: Any) -> MCFTensor:
    """sqrt(x^2 + y^2)."""
    return _binary(elementary.hypot, x, y)


@implements(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(x: Any, y: Any) -> MCFTensor:
    """x - y trunc(x / y)."""
    return _binary(elementary.fmod, x, y)


@implements(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(x: Any, y: Any) -> MCFTensor:
    """x - y floor(x / y)."""
    return _binary(elementary.remainder, x, y)


@implements(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """x / y, then floor or trunc: of the exact quotient."""
    if rounding_mode is None:
        return x / y
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(
            f"div: rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}"
        )
    rest, quotient = fmod(x, y), x / y
    # A whole number, but for the rounding of the quotient.
    whole = ((x - rest) / y).round()
    divisor = (
        y if isinstance(y, torch.Tensor) else torch.tensor(y, dtype=torch.float64, device=x.device)
    )
    settled = divisor == 0
    if rounding_mode == "floor":
        # Not by way of `remainder`, which is infinite where y is.
        below = (rest != 0) & (rest.signbit() != divisor.signbit())
        whole = torch.where(below, whole - 1, whole)
    else:
        settled = settled | quotient.isinf()
    whole = torch.where(whole == 0, torch.copysign(whole, quotient), whole)
    return torch.where(settled, quotient, whole)


@implements(aten.round.decimals)
def round_decimals(x: MCFTensor, *, decimals: int = 0) -> MCFTensor:
    """The nearest expansion of x rounded to a number of decimals, ties to even: both exact."""
    from mcf.tensor.creation import tensor

    flat = export.fractions(x.components)
    rounded = [_round(v, decimals) for v in flat]
    return tensor(rounded, x.terms, x.dtype, x.device).reshape(x.shape)  # type: ignore[return-value]


def _round(value: Fraction | float, decimals: int) -> Fraction | float:
    if isinstance(value, float):
        return value
    # Beyond these nothing or everything of a number of these formats is rounded away.
    rounded = round(value, max(-400, min(decimals, 1100)))
    return rounded if rounded else math.copysign(0.0, value)


@implements(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(x: Any, y: Any) -> Any:
    """x**y; a product for the number 2, the reciprocal for -1."""
    if isinstance(y, int | float) and isinstance(x, MCFTensor):
        if y == 2:
            return x * x
        if y == 1:
            return wrap([c.clone() for c in x.components])
        if y == -1:
            return 1 / x
    return _binary(elementary.pow, x, y)


@implements(aten._softmax.default)
def softmax(x: MCFTensor, dim: int, half_to_float: bool = False) -> MCFTensor:
    """exp(x_i) / sum_j exp(x_j)."""
    if x.dim() == 0 or x.numel() == 0:
        return _trivial("softmax", x, dim, 1)
    return wrap(elementary.softmax(x.components, dim))


@implements(aten._log_softmax.default)
def log_softmax(x: MCFTensor, dim: int, half_to_float: bool = False) -> MCFTensor:
    """x_i - logsumexp(x)."""
    if x.dim() == 0 or x.numel() == 0:
        return _trivial("log_softmax", x, dim, 0)
    return wrap(elementary.log_softmax(x.components, dim))


def _trivial(name: str, x: MCFTensor, dim: int, value: float) -> MCFTensor:
    """Of a single element, whatever it is, or of none."""
    last = max(x.dim(), 1)
    if not -last <= dim < last:
        raise IndexError(f"{name}: dim must be in [{-last}, {last - 1}], got {dim}")
    # NaN for infinities and NaN, as their difference with themselves.
    zero: Any = x - x
    return zero + value  # type: ignore[no-any-return]


@implements(aten._safe_softmax.default)
def safe_softmax(x: MCFTensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """The softmax, 0 where all elements are -inf."""
    given: Any = x if dtype is None else x.to(dtype)
    out = given.softmax(dim)
    return torch.where((given == -torch.inf).all(dim, keepdim=True), 0, out)


@implements(aten.logsumexp.default)
def logsumexp(x: MCFTensor, dim: Sequence[int], keepdim: bool = False) -> MCFTensor:
    """log(sum_j exp(x_j)) over some dimensions."""
    dims = list(Rows.of(x.shape, dim).dims)
    if x.numel() == 0:
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        none: Any = x.new_full(shape, -torch.inf)
        return none if keepdim else none.squeeze(dims)  # type: ignore[no-any-return]
    if x.dim() == 0:
        return wrap([c.clone() for c in x.components])
    rest = [d for d in range(x.dim()) if d not in dims]
    moved = tuple(c.permute(*rest, *dims).flatten(len(rest)) for c in x.components)
    out = elementary.logsumexp(moved, -1)
    if keepdim:
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        out = tuple(c.reshape(shape) for c in out)
    return wrap(out)


# Operators that torch's derivatives call.


@implements(aten.tanh_backward.default)
def tanh_backward(grad: Any, result: Any) -> Any:
    """Of tanh in terms of its result."""
    return grad * (1 - result * result)


@implements(aten.sigmoid_backward.default)
def sigmoid_backward(grad: Any, result: Any) -> Any:
    """Of the logistic function in terms of its result."""
    return grad * ((1 - result) * result)


@implements(aten._softmax_backward_data.default)
def softmax_backward(grad: Any, result: Any, dim: int, input_dtype: torch.dtype) -> Any:
    """result (grad - sum(grad result))."""
    weighted = grad * result
    return weighted - result * weighted.sum(dim, keepdim=True)


@implements(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Any, result: Any, dim: int, input_dtype: torch.dtype) -> Any:
    """grad - exp(result) sum(grad)."""
    return grad - result.exp() * grad.sum(dim, keepdim=True)
