"""Implement arithmetic operators, powers, `exp2` and `ldexp`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.elementary.fused import Formula
from mcf.elementary.operator import apply
from mcf.elementary.power import EXPONENTS, name_of, serves
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import differentiated, pulled_back, recorded
from mcf.expansions.dispatch.registry import WRITES, implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.fused_formulas import Written, composed, composed_into
from mcf.expansions.launch.operations import into, planned, selected, shares_part
from mcf.expansions.ops.arithmetic.constants import in_format
from mcf.expansions.ops.elementary.elementary import of_two
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.components import padded
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.operators import ADD, DIV, FMA, MUL, RECIPROCAL, RSQRT, SQRT, SUB, Operation
from mcf.kernels.register_choice import registers_for

aten = torch.ops.aten


# An operation or a formula, and its operands.
Step = tuple[Operation | Written, tuple[Any, ...]]


def _computed(step: Step) -> Any:
    formula, values = step
    if type(formula) is Operation:
        return planned(formula, *values)
    return composed(formula, *values)  # type: ignore[arg-type]


def _register(step: Callable[..., Step], *funcs: OpOverload) -> None:
    """Let a step compute the forms of operators that write into an argument."""

    def write(target: Any, args: tuple[Any, ...], **named: Any) -> bool:
        if not isinstance(target, MCFTensor):
            return False
        formula, values = step(*args, **named)
        if type(formula) is Operation:
            return into(formula, values, target)
        return not shares_part(target, args) and composed_into(formula, values, target)  # type: ignore[arg-type]

    for func in funcs:
        WRITES[func] = write


implements(aten.neg.default)(lambda x: wrap([-c for c in x.components]))
implements(aten.positive.default)(lambda x: x)


def _multiple(operation: Operation) -> Callable[..., Step]:
    """Return the step of x + alpha y for ADD, of x - alpha y for SUB."""

    def formula(o: Any, x: Any, y: Any, alpha: Any) -> Any:
        return o(operation, x, o(MUL, y, alpha))

    def step(x: Any, y: Any, alpha: Any = 1) -> Step:
        if type(alpha) is bool:
            raise RuntimeError("Boolean alpha only supported for Boolean results.")
        if alpha == 1:
            return operation, (x, y)
        if not isinstance(y, Tensor):
            return operation, (x, Fraction(y) * Fraction(alpha))
        if _alike(x, y):
            return formula, (x, y, alpha)
        return operation, (x, _like(y, x) * alpha)

    return step


_sum, _difference = _multiple(ADD), _multiple(SUB)


def _alike(x: Any, y: Any) -> bool:
    """Return whether both are expansions of one format, so that alpha * y has it too."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor:
        return False
    return x.terms == y.terms and x.dtype is y.dtype


@implements(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """Return x + alpha * y."""
    return _computed(_sum(x, y, alpha))  # type: ignore[no-any-return]


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
    return _computed(_difference(x, y, alpha))  # type: ignore[no-any-return]


_register(_sum, aten.add.Tensor, aten.add.Scalar)
_register(_difference, aten.sub.Tensor, aten.sub.Scalar)


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


implements(aten.reciprocal.default)(lambda x: planned(RECIPROCAL, x))
implements(aten.rsqrt.default)(lambda x: planned(RSQRT, x))
implements(aten.sqrt.default)(lambda x: planned(SQRT, x))


class _Reciprocal(torch.autograd.Function):
    """Reciprocal whose derivative avoids the square of the result, which overflows earlier."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        result = planned(RECIPROCAL, x.detach())
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


def _as_long(*values: Any) -> bool:
    """Return whether all values have equally many components; plain tensors have one."""
    return len({getattr(v, "terms", 1) for v in values}) == 1


def product_plus(o: Any, x: Any, a: Any, b: Any) -> Any:
    """Return x + a b."""
    return o(ADD, x, o(MUL, a, b))


def _multiple_product_plus(o: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    return o(ADD, x, o(MUL, o(MUL, a, b), value))


def _addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Step:
    if not isinstance(a, MCFTensor) and not isinstance(b, MCFTensor):
        return ADD, (x, a * b * value)
    if value != 1:
        return _multiple_product_plus, (x, a, b, value)
    # FMA reads memory once; for one component it rounds once.
    return (FMA, (a, b, x)) if _as_long(x, a, b) else (product_plus, (x, a, b))


def _quotient_plus(o: Any, x: Any, a: Any, b: Any) -> Any:
    return o(ADD, x, o(DIV, a, b))


def _multiple_quotient_plus(o: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    return o(ADD, x, o(DIV, o(MUL, a, value), b))


def _addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Step:
    if not isinstance(a, MCFTensor) and not isinstance(b, MCFTensor):
        return ADD, (x, a * value / b)
    if value != 1:
        return _multiple_quotient_plus, (x, a, b, value)
    return _quotient_plus, (x, a, b)


def _between(o: Any, x: Any, end: Any, weight: Any) -> Any:
    return o(ADD, x, o(MUL, weight, o(SUB, end, x)))


def _lerp(x: Any, end: Any, weight: Any) -> Step:
    if isinstance(x, MCFTensor) or isinstance(end, MCFTensor):
        return _between, (x, end, weight)
    return ADD, (x, weight * (end - x))


def _in_one_pass(step: Callable[..., Step], *funcs: OpOverload) -> Any:
    """Register the step of operators, and return the function that computes it."""
    _register(step, *funcs)
    return implements(*funcs)(lambda *args, **named: _computed(step(*args, **named)))


# x + value a b, x + value a / b, and x + weight (end - x).
addcmul = _in_one_pass(_addcmul, aten.addcmul.default)
addcdiv = _in_one_pass(_addcdiv, aten.addcdiv.default)
lerp = _in_one_pass(_lerp, aten.lerp.Scalar, aten.lerp.Tensor)


@implements(torch.addcdiv, Tensor.addcdiv)
def _addcdiv_recorded(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Return x + value a / b; recorded as a product and a quotient, derivatives need no b^2."""
    given = (input, tensor1, tensor2)
    if not pulled_back(given):
        return forward(torch.addcdiv, given, {"value": value})
    return input + (tensor1 if value == 1 else tensor1 * value) / tensor2


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


@implements(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(x: Any, y: Any) -> Any:
    """Return x**y; by products or a reciprocal if y is 2, -1 or another small half-integer."""
    if isinstance(y, int | float) and isinstance(x, MCFTensor):
        if y == 2:
            return planned(MUL, x, x)
        if y == 1:
            return wrap([c.clone() for c in x.components])
        if y == -1:
            return reciprocal_times(x, 1)
        # `x.dtype` would go through `__torch_function__`.
        fmt = format_of(x.__dict__["_c0"].dtype)
        if y in EXPONENTS and serves(x.terms) and registers_for(fmt, x.device) is FP64:
            return _of_few_products(y, x)
    return of_two("pow", x, y)


def _of_few_products(k: float, x: MCFTensor) -> MCFTensor:
    name = name_of(k)
    found = selected(Formula(name), x)
    return wrap(apply(name, x.components)) if found is None else found


@implements(torch.pow, Tensor.pow, Tensor.__pow__)
def _power(x: Any, y: Any) -> Any:
    """Return x**y; convert a scalar base to an expansion, so that its logarithm has all components.

    A scalar exponent that is no half-integer is converted too if x requires grad: the derivative
    has the exponent y - 1.
    """
    if not recorded(x) and (type(y) in (int, float) or not recorded(y)):
        return power(x, y)
    if not isinstance(x, Tensor):
        x = tensor(x, y.terms, y.dtype, y.device)
    differs = torch.is_grad_enabled() and x.requires_grad
    if differs and isinstance(y, float) and not (2 * y).is_integer():
        y = tensor(y, x.terms, x.dtype, x.device)
    return forward(torch.pow, (x, y), {})


@implements(torch.float_power, Tensor.float_power)
def float_power(x: Any, y: Any) -> Any:
    """Return x**y with float64 components."""
    x, y = (v.to(torch.float64) if isinstance(v, Tensor) else v for v in (x, y))
    return _power(x, y)


# The first argument of `Tensor.__rpow__` is the exponent.
implements(Tensor.__rpow__)(lambda y, x: _power(x, y))
implements(torch.exp2, Tensor.exp2, torch.special.exp2)(lambda x: _power(2.0, x))


@implements(torch.ldexp, Tensor.ldexp)
def ldexp(x: Any, other: Any) -> Any:
    """Return x 2**other by products with powers of two, exact while all components are in range.

    For integer exponents 2**other may be out of range; for others the result is x * 2**other.
    """
    like = x if isinstance(x, MCFTensor) else other
    x = in_format(x, like)
    if isinstance(other, Tensor) and other.is_floating_point():
        return x * torch.exp2(other)
    fmt = format_of(x.dtype)
    # An int8 exponent cannot hold the exponent range of a format.
    e = torch.as_tensor(other, device=x.device).to(torch.int64)
    # After three steps the result is zero or infinite.
    for _ in range(3):
        step = e.clamp(fmt.emin, fmt.emax)
        e = e - step
        x = x * torch.ldexp(torch.ones_like(step, dtype=torch.float64), step).to(x.dtype)
    return x


implements(Tensor.ldexp_)(lambda x, other: x.copy_(ldexp(x, other)))
