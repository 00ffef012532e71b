"""Implement arithmetic operators: promote the operands, then call `mcf.kernels.operations`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import differentiated, pulled_back
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.fused_formulas import Written, composed, composed_into
from mcf.expansions.launch.operations import into, planned, shares_part
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.components import padded
from mcf.kernels.operators import ADD, DIV, FMA, MUL, RECIPROCAL, RSQRT, SQRT, SUB, Operation

aten = torch.ops.aten


def _scaled(y: Any, alpha: Any) -> Any:
    """Return alpha * y, rounded to the format of the result."""
    if alpha == 1:
        return y
    if not isinstance(y, Tensor):
        return Fraction(y) * Fraction(alpha)
    return y * alpha


@implements(aten.neg.default)
def neg(x: MCFTensor) -> MCFTensor:
    """Return -x, exact."""
    return wrap([-c for c in x.components])


@implements(aten.positive.default)
def positive(x: MCFTensor) -> MCFTensor:
    """Return +x."""
    return x


def _multiple(operation: Operation) -> Any:
    def multiple(o: Any, x: Any, y: Any, alpha: Any) -> Any:
        return o(operation, x, o(MUL, y, alpha))

    return multiple


# x + alpha y and x - alpha y.
plus_multiple, minus_multiple = _multiple(ADD), _multiple(SUB)


def _alike(x: Any, y: Any) -> bool:
    """Return whether both are expansions of one format, so that alpha * y has it too."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor:
        return False
    return x.terms == y.terms and x.dtype is y.dtype


def multiple_into(operation: Any, out: MCFTensor, x: Any, y: Any, alpha: Any) -> bool:
    """Write x + alpha y or x - alpha y into `out`; return False if unsupported."""
    formula = {ADD: plus_multiple, SUB: minus_multiple}.get(operation)
    if formula is None or type(alpha) is bool or not _alike(x, y) or shares_part(out, (x, y)):
        return False
    return composed_into(formula, (x, y, alpha), out)


def _check_alpha(alpha: Any) -> None:
    if type(alpha) is bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")


@implements(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """Return x + alpha * y."""
    _check_alpha(alpha)
    if alpha != 1 and _alike(x, y):
        return composed(plus_multiple, x, y, alpha)  # type: ignore[no-any-return]
    if alpha != 1 and isinstance(y, Tensor):
        y = _like(y, x)
    return planned(ADD, x, _scaled(y, alpha))


def _is_truth(x: Any) -> bool:
    return type(x) is bool or (isinstance(x, Tensor) and x.dtype is torch.bool)


@implements(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """Return x - alpha * y."""
    if _is_truth(x) or _is_truth(y):
        raise NotImplementedError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
            "trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    _check_alpha(alpha)
    if alpha != 1 and _alike(x, y):
        return composed(minus_multiple, x, y, alpha)  # type: ignore[no-any-return]
    if alpha != 1 and isinstance(y, Tensor):
        y = _like(y, x)
    return planned(SUB, x, _scaled(y, alpha))


def _like(y: Tensor, x: Any) -> MCFTensor:
    """Convert y to the format of its operation with x, so that products have all components."""
    terms = max(v.terms for v in (x, y) if isinstance(v, MCFTensor))
    b, _ = operands(y, x)
    return wrap(padded(b, terms))


@implements(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """Return y - alpha * x."""
    return sub(y, x, alpha)


@implements(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, y: Any) -> MCFTensor:
    """Return x * y."""
    return planned(MUL, x, y)


@implements(aten.div.Tensor, aten.div.Scalar)
def div(x: Any, y: Any) -> MCFTensor:
    """Return x / y."""
    return planned(DIV, x, y)


@implements(aten.reciprocal.default)
def reciprocal(x: MCFTensor) -> MCFTensor:
    """Return 1 / x."""
    return planned(RECIPROCAL, x)


class _Reciprocal(torch.autograd.Function):
    """Reciprocal whose derivative avoids the square of the result, which overflows earlier."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        result = reciprocal(x.detach())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (result,) = ctx.saved_tensors
        return -(grad * result) * result


@implements(torch.reciprocal, Tensor.reciprocal)
def _reciprocal_of(input: Any) -> Any:
    if not pulled_back((input,)):
        return forward(torch.reciprocal, (input,), {})
    return _Reciprocal.apply(input)  # type: ignore[no-untyped-call]


@implements(Tensor.__rdiv__)
def _over(x: Any, other: Any) -> Any:
    """Return other / x; for a number, like PyTorch, its product with the reciprocal."""
    if isinstance(other, Tensor):
        return torch.true_divide(other, x)
    return torch.reciprocal(x) * other


@implements(aten.rsqrt.default)
def rsqrt(x: MCFTensor) -> MCFTensor:
    """Return 1 / sqrt(x)."""
    return planned(RSQRT, x)


@implements(aten.sqrt.default)
def sqrt(x: MCFTensor) -> MCFTensor:
    """Return the square root of x."""
    return planned(SQRT, x)


def product_plus(o: Any, x: Any, a: Any, b: Any) -> Any:
    """Return x + a b."""
    return o(ADD, x, o(MUL, a, b))


def multiple_product_plus(o: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    """Return x + value a b."""
    return o(ADD, x, o(MUL, o(MUL, a, b), value))


def quotient_plus(o: Any, x: Any, a: Any, b: Any) -> Any:
    """Return x + a / b."""
    return o(ADD, x, o(DIV, a, b))


def multiple_quotient_plus(o: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    """Return x + (value a) / b."""
    return o(ADD, x, o(DIV, o(MUL, a, value), b))


def _as_long(*values: Any) -> bool:
    """Return whether all values have equally many components; plain tensors have one."""
    return len({getattr(v, "terms", 1) for v in values}) == 1


def _combined(operation: Operation, plain: Written, scaled: Written) -> tuple[Any, Any]:
    """Return the function x + value * operation(a, b) and its variant that writes into `out`."""

    def combined(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
        if not isinstance(a, MCFTensor) and not isinstance(b, MCFTensor):
            inner = a * value / b if operation is DIV else a * b * value
            return x + inner
        if value != 1:
            return composed(scaled, x, a, b, value)
        if operation is MUL and _as_long(x, a, b):
            # FMA reads memory once; for one component it rounds once.
            return planned(FMA, a, b, x)
        return composed(plain, x, a, b)

    def combined_into(out: MCFTensor, x: Any, a: Any, b: Any, *, value: Any = 1) -> bool:
        if not isinstance(a, MCFTensor) and not isinstance(b, MCFTensor):
            return False
        if value != 1:
            return composed_into(scaled, (x, a, b, value), out)
        if operation is MUL and _as_long(x, a, b):
            return into(FMA, (a, b, x), out)
        return composed_into(plain, (x, a, b), out)

    return combined, combined_into


# x + value * a * b and x + value * a / b.
addcmul, addcmul_into = _combined(MUL, product_plus, multiple_product_plus)
addcdiv, addcdiv_into = _combined(DIV, quotient_plus, multiple_quotient_plus)
implements(aten.addcmul.default)(addcmul)
implements(aten.addcdiv.default)(addcdiv)


@implements(torch.addcdiv, Tensor.addcdiv)
def _addcdiv_recorded(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Return x + value a / b; recorded as a product and a quotient, derivatives need no b^2."""
    given = (input, tensor1, tensor2)
    if not pulled_back(given):
        return forward(torch.addcdiv, given, {"value": value})
    return input + (tensor1 if value == 1 else tensor1 * value) / tensor2


def between(o: Any, x: Any, end: Any, weight: Any) -> Any:
    """Return x + weight (end - x)."""
    return o(ADD, x, o(MUL, weight, o(SUB, end, x)))


@implements(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(x: Any, end: Any, weight: Any) -> Tensor:
    """Return x + weight * (end - x)."""
    if isinstance(x, MCFTensor) or isinstance(end, MCFTensor):
        return composed(between, x, end, weight)  # type: ignore[no-any-return]
    return x + weight * (end - x)  # type: ignore[no-any-return]


def lerp_into(out: MCFTensor, x: Any, end: Any, weight: Any) -> bool:
    """Write x + weight * (end - x) into `out`; return False if unsupported."""
    if isinstance(x, MCFTensor) or isinstance(end, MCFTensor):
        return composed_into(between, (x, end, weight), out)
    return False


def _product_with_reciprocal(o: Any, x: Any, y: Any) -> Any:
    return o(MUL, o(RECIPROCAL, x), y)


def reciprocal_times(x: MCFTensor, y: Any) -> Any:
    """Return y / x for a number y: like PyTorch, a product with the reciprocal."""
    return composed(_product_with_reciprocal, x, y)


_duals = torch.autograd.forward_ad


class _Lerp(torch.autograd.Function):
    """Linear interpolation x + w (end - x) with exact derivatives 1 - w and w."""

    @staticmethod
    def forward(ctx: Any, x: Any, end: Any, weight: float) -> Any:
        ctx.weight, ctx.shapes = weight, (x.shape, end.shape)
        return lerp(x.detach(), end.detach(), weight)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        first, second = ctx.shapes
        rest = tensor(1 - Fraction(ctx.weight), grad.terms, grad.dtype, grad.device)
        return (
            (grad * rest).sum_to_size(first),
            (grad * ctx.weight).sum_to_size(second),
            None,
        )


@implements(torch.lerp, Tensor.lerp)
def lerp_by(input: Any, end: Any, weight: Any) -> Any:
    """Return x + w (end - x)."""
    own = type(weight) is float and type(input) is type(end) is MCFTensor and weight - weight == 0
    if own and not torch.compiler.is_compiling() and _duals._current_level < 0:
        alike = input.terms == end.terms and input.dtype is end.dtype
        if alike and differentiated((input, end)):
            return _Lerp.apply(input, end, weight)  # type: ignore[no-untyped-call]
    return forward(torch.lerp, (input, end, weight), {})
