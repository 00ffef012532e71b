"""Implement elementary functions, and derivatives where PyTorch's would lose accuracy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf import elementary
from mcf.elementary import fixed
from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.recorded import pulled_back, recorded, watched
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.calls import SMALL
from mcf.expansions.launch.operations import rounded_number, selected
from mcf.expansions.ops.arithmetic.powers_of_two import inverse_power
from mcf.expansions.ops.elementary.constants import constant
from mcf.expansions.ops.forms.inside_transforms import by_element, implements_inside
from mcf.expansions.promotion import check_broadcast, operands
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.components import padded

aten = torch.ops.aten

Unary = Callable[[Any], MCFTensor]
Derivative = Callable[[Any], Any]


def differentiable(name: str, function: Derivative, derivative: Derivative) -> Any:
    """Return x -> function(x) with the derivative x -> derivative(x).

    It is differentiable arbitrarily often if `derivative` is.
    """

    def run(ctx: Any, x: MCFTensor) -> Any:
        ctx.save_for_backward(x)
        return function(x.detach())

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * derivative(x)

    members = {"forward": staticmethod(run), "backward": staticmethod(backward)}
    node: Any = type(name, (torch.autograd.Function,), members)

    def apply(x: Any) -> Any:
        # `node.apply` takes longer than the computation itself for one element.
        return node.apply(x) if recorded(x) else function(x)

    return apply


def computed(name: str, function: Any = None) -> Unary:
    """Return an elementary function without derivative; `function` defaults to the named one."""
    formula, function = Formula(name), function or getattr(elementary, name)

    def compute(x: MCFTensor) -> MCFTensor:
        found = selected(formula, x)
        return wrap(function(x.components)) if found is None else found

    return compute


def _function(name: str, *functions: Any, derivative: Derivative | None = None) -> None:
    """Register an elementary function.

    Args:
        name: name of the function in both PyTorch and `mcf.elementary`.
        *functions: PyTorch functions that get `derivative`.
        derivative: function of x; None for PyTorch's derivative.
    """
    function = computed(name)
    implements(getattr(aten, name).default)(function)
    if derivative is not None:
        implements(*functions)(differentiable(name, function, derivative))


for _name in (
    "exp", "log", "log1p", "sin", "cos", "tan", "atan", "sinh", "cosh", "floor",
    "ceil", "round", "trunc", "lgamma", "digamma",
):  # fmt: skip
    _function(_name)
_function("log2", torch.log2, Tensor.log2, derivative=lambda x: 1 / (x * constant(fixed.ln2(), x)))
_function(
    "log10",
    torch.log10,
    Tensor.log10,
    derivative=lambda x: 1 / (x * constant(fixed.ln10(), x)),
)
# 1 - x^2 cancels near |x| = 1; the product of 1 - x and 1 + x does not.
_asin_slope: Any = differentiable(
    "asin_1",
    lambda x: 1 / ((1 - x) * (1 + x)).sqrt(),
    lambda x: x * (_asin_slope(x) / ((1 - x) * (1 + x))),
)
_function(
    "asin", torch.asin, Tensor.asin, torch.arcsin, Tensor.arcsin, derivative=_asin_slope,
)  # fmt: skip
_function(
    "acos", torch.acos, Tensor.acos, torch.arccos, Tensor.arccos,
    derivative=lambda x: -_asin_slope(x),
)  # fmt: skip
_function(
    "acosh", torch.acosh, Tensor.acosh, torch.arccosh, Tensor.arccosh,
    derivative=lambda x: 1 / ((x - 1).sqrt() * (x + 1).sqrt()),
)  # fmt: skip
_atanh_slope: Any = differentiable(
    "atanh_1", lambda x: 1 / ((1 - x) * (1 + x)), lambda x: 2 * (x * _atanh_slope(x).square())
)
_function(
    "atanh", torch.atanh, Tensor.atanh, torch.arctanh, Tensor.arctanh, derivative=_atanh_slope,
)  # fmt: skip
# x^2 may overflow where sqrt(1 + x^2) does not.
_function(
    "asinh", torch.asinh, Tensor.asinh, torch.arcsinh, Tensor.arcsinh,
    derivative=lambda x: 1 / torch.hypot(x, torch.ones_like(x)),
)  # fmt: skip
# PyTorch's derivative, result + 1, cancels where exp(x) is small.
_function(
    "expm1", torch.expm1, Tensor.expm1, torch.special.expm1, derivative=lambda x: torch.exp(x)
)
# 1 - tanh^2 and 1 - sigmoid would be rounded away for large arguments.
_function("tanh", torch.tanh, Tensor.tanh, F.tanh, derivative=lambda x: x.cosh() ** -2)
_sigmoid_slope: Any = differentiable(
    "sigmoid_1",
    lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    lambda x: -(_sigmoid_slope(x) * torch.tanh(x / 2)),
)
_function(
    "sigmoid", torch.sigmoid, Tensor.sigmoid, torch.special.expit, F.sigmoid,
    derivative=_sigmoid_slope,
)  # fmt: skip
# exp(-x^2) with x^2 rounded to the components of x has a relative error of x^2 u^n.
erf_slope: Any = differentiable("erf_1", computed("erf_1"), lambda x: -2 * x * erf_slope(x))
_function("erf", torch.erf, Tensor.erf, torch.special.erf, derivative=lambda x: erf_slope(x))
_function("erfc", torch.erfc, Tensor.erfc, torch.special.erfc, derivative=lambda x: -erf_slope(x))

_normal_cdf = computed("normal_cdf")


normal_pdf: Any = differentiable("normal_pdf", computed("normal_pdf"), lambda x: -x * normal_pdf(x))
normal_cdf = differentiable("normal_cdf", _normal_cdf, lambda x: normal_pdf(x))
implements(torch.special.ndtr)(normal_cdf)
implements(aten.special_ndtr.default)(_normal_cdf)
_pdf_inside: Any = by_element("normal_pdf", normal_pdf, lambda x: -x * _pdf_inside(x))
implements_inside("special_ndtr")(by_element("normal_cdf", normal_cdf, lambda x: _pdf_inside(x)))


# Operators called by PyTorch's derivatives.


@implements(aten.tanh_backward.default)
def tanh_backward(grad: Any, result: Any) -> Any:
    """Return the gradient of tanh in terms of its result."""
    return grad * (1 - result * result)


@implements(aten.sigmoid_backward.default)
def sigmoid_backward(grad: Any, result: Any) -> Any:
    """Return the gradient of the logistic function in terms of its result."""
    return grad * ((1 - result) * result)


def _filled(x: float, y: MCFTensor) -> MCFTensor | None:
    """Return a number expanded to a small tensor's format and shape; None if unsupported."""
    own = y.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor or first.numel() > SMALL or watched():
        return None
    kind = x, math.copysign(1.0, x), first.dtype, terms, first.shape, first.device
    return _known_copies(*kind) if first.numel() <= _FEW else _copies(*kind)


# Largest size of expanded numbers that are cached; they are never written to.
_FEW = 64


def _copies(
    x: float, sign: float, dtype: torch.dtype, terms: int, shape: torch.Size, device: torch.device
) -> MCFTensor | None:
    number = rounded_number(x, sign, dtype, terms, device)
    if number is None:
        return None
    with torch.inference_mode(False):
        parts = [c.expand(shape).contiguous().clone() for c in number]
        parts += [torch.zeros_like(parts[0]) for _ in range(terms - len(parts))]
        return wrap(parts)


_known_copies = functools.lru_cache(256)(_copies)


def of_two(name: str, x: Any, y: Any, function: Any = None) -> MCFTensor:
    """Evaluate a named elementary function of two expansions, plain tensors or numbers."""
    filled = _filled(x, y) if type(x) in (int, float) and type(y) is MCFTensor else None
    found = selected(Formula(name), x if filled is None else filled, y)
    if found is not None:
        return found
    function = function or getattr(elementary, name)
    a, b = operands(x, y)
    check_broadcast((a, b))
    terms = max(v.terms for v in (x, y) if isinstance(v, MCFTensor))
    # The result has the terms of the tensors, even if both operands have one component.
    return wrap(function(padded(a, terms), b))


@implements(aten.atan2.default)
def atan2(y: Any, x: Any) -> MCFTensor:
    """Return the angle of the point (x, y)."""
    return of_two("atan2", y, x)


class _Angle(torch.autograd.Function):
    """Angle of a point, with a derivative that does not overflow earlier than its value.

    x and y are scaled by a power of two that brings the larger one to [1/2, 1).
    """

    @staticmethod
    def forward(ctx: Any, y: Any, x: Any) -> Any:
        ctx.save_for_backward(y, x)
        return atan2(y.detach(), x.detach())

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        y, x = ctx.saved_tensors
        factor = inverse_power(y, x)

        def scaled(z: Any) -> Any:
            return z if factor is None else z * factor

        b, a = scaled(y), scaled(x)
        square = a * a + b * b
        # At the origin the derivatives are 0, as in PyTorch.
        square = torch.where(square == 0, 1, square)
        by_y, by_x = ctx.needs_input_grad
        return (
            (grad * scaled(a / square)).sum_to_size(y.shape) if by_y else None,
            (grad * scaled(-b / square)).sum_to_size(x.shape) if by_x else None,
        )


@implements(torch.atan2, Tensor.atan2, torch.arctan2, Tensor.arctan2)
def _angle_of(input: Any, other: Any) -> Any:
    ours = pulled_back((input, other))
    if not ours:
        return forward(torch.atan2, (input, other), {})
    return _Angle.apply(input, other)  # type: ignore[no-untyped-call]


@implements(aten.hypot.default)
def hypot(x: Any, y: Any) -> MCFTensor:
    """Return sqrt(x^2 + y^2)."""
    return of_two("hypot", x, y)
