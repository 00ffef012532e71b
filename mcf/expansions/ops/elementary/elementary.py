"""Register the declared functions for expansion tensors, with derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.elementary.declarations import COMPOSED, PROGRAMS, Program
from mcf.elementary.fused import Formula
from mcf.elementary.operator import FUNCTIONS
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import pulled_back, recorded, transformed
from mcf.expansions.dispatch.registry import UnsupportedError, forms, implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.operations import selected
from mcf.expansions.ops.arithmetic.constants import inverse_power
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


def computed(name: str) -> Unary:
    """Return a declared function of expansion tensors without derivative."""
    formula, function = Formula(name), FUNCTIONS[name]

    def compute(x: MCFTensor) -> MCFTensor:
        found = selected(formula, x)
        return wrap(function(x.components)) if found is None else found

    return compute


class _Functions:
    """The declared functions of expansion tensors by name, with their derivatives."""

    def __getattr__(self, name: str) -> Any:
        if name in COMPOSED:
            value, slope = map(self._bound, COMPOSED[name])
        else:
            value, slope = computed(name), self._bound(PROGRAMS[name].derivative)
        made = differentiable(name, value, slope)
        setattr(self, name, made)
        return made

    def _bound(self, formula: Any) -> Any:
        return lambda x: formula(x, self)


of = _Functions()


def _undifferentiated(torch_name: str, function: Unary) -> Unary:
    """Return a function that refuses torch.func's derivatives, which PyTorch takes to be zero."""

    def run(x: Any) -> Any:
        if transformed():
            raise UnsupportedError(
                f"torch.special.{torch_name} of an expansion tensor under torch.func.grad, vjp or "
                "jvp: there torch takes its derivative to be zero; use backward or "
                "torch.autograd.grad, which compute it"
            )
        return function(x)

    return run


def _operator(name: str) -> Any:
    return getattr(aten, name if hasattr(aten, name) else f"special_{name}").default


def register(name: str, program: Program) -> None:
    """Register a declared function under PyTorch's names."""
    function = computed(name)
    if program.torch:
        implements(_operator(program.torch[0]))(function)
    for other in program.undifferentiated:
        implements(_operator(other))(_undifferentiated(other, function))
    if program.derivative is not None:
        for other in (*program.torch, *program.undifferentiated):
            implements(*forms(other, torch.special, F))(getattr(of, name))


for _name, _program in [*PROGRAMS.items()]:
    if _program.torch or _program.undifferentiated:
        register(_name, _program)
_pdf_inside: Any = by_element("normal_pdf", of.normal_pdf, lambda x: -x * _pdf_inside(x))
implements_inside("special_ndtr")(by_element("normal_cdf", of.normal_cdf, lambda x: _pdf_inside(x)))


# Gradients of tanh and the logistic function by their results, for PyTorch's derivatives.
implements(aten.tanh_backward.default)(lambda grad, result: grad * (1 - result * result))
implements(aten.sigmoid_backward.default)(lambda grad, result: grad * ((1 - result) * result))


def of_two(name: str, x: Any, y: Any, function: Any = None) -> MCFTensor:
    """Evaluate a named elementary function of two expansions, plain tensors or numbers."""
    if type(x) in (int, float) and type(y) is MCFTensor:
        x = tensor(x, y.terms, y.dtype, y.device)
    found = selected(Formula(name), x, y)
    if found is not None:
        return found
    function = function or FUNCTIONS[name]
    a, b = operands(x, y)
    check_broadcast((a, b))
    terms = max(v.terms for v in (x, y) if isinstance(v, MCFTensor))
    # The result has the terms of the tensors, even if both operands have one component.
    return wrap(function(padded(a, terms), b))


atan2 = implements(aten.atan2.default)(functools.partial(of_two, "atan2"))
implements(aten.hypot.default)(functools.partial(of_two, "hypot"))


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
    if not pulled_back((input, other)):
        return forward(torch.atan2, (input, other), {})
    return _Angle.apply(input, other)  # type: ignore[no-untyped-call]
