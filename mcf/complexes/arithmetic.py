"""Compute with complex expansions: one kernel if nothing records, else operations on parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.each_part import halves, node
from mcf.complexes.tensor import (
    MCFComplexTensor,
    formatted,
    gradient,
    implements,
    made,
    method,
    pair,
    parts,
    untraced,
)
from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.recorded import differentiated, watched
from mcf.expansions.launch.operations import launched
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import MCFTensor, fresh
from mcf.kernels import operations
from mcf.kernels.algorithms import complex_numbers
from mcf.kernels.operators import (
    COMPLEX_ADD,
    COMPLEX_DIV,
    COMPLEX_MUL,
    COMPLEX_SCALE,
    COMPLEX_SUB,
    COMPLEX_UNSCALE,
    Operation,
)

_duals = torch.autograd.forward_ad


def unrecorded(values: Sequence[Any]) -> bool:
    """Return whether autograd, modes, transforms and torch.compile are all inactive."""
    if torch.compiler.is_compiling() or _duals._current_level >= 0 or watched():
        return False
    return not differentiated(values)


def planned(operation: Operation | Formula, *values: Any) -> MCFComplexTensor | None:
    """Run an operation on parts by its cached launch; return None without one."""
    found = launched(operation, values)
    if found is None:
        return None
    plan, groups = found
    out = plan.compute(groups)
    if out is None:
        return None
    half, dtype = len(out) // 2, plan.dtypes[0]
    real, imag = (fresh(c, plan.size, dtype, plan.device) for c in (out[:half], out[half:]))
    return made(real, imag)


def applied(operation: Operation, *values: Any) -> MCFComplexTensor | None:
    """Run one of `operators.COMPLEX` on parts and numbers; return None if it is recorded.

    In that case the caller runs the operations on parts, which have the same bits.
    """
    if not unrecorded(values):
        return None
    found = planned(operation, *values)
    if found is not None:
        return found
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        # mpmath numbers and Fractions become the nearest expansions.
        values = tuple(formatted(*values))
    out = operations.apply(operation, operands(*values))
    return made(*halves(out))


# The quotient of complex expansions, scaled so that nothing between overflows.


def _quotient(*given: Tensor) -> tuple[Any, Any]:
    return halves(operations.apply(COMPLEX_DIV, [v.components for v in given]))  # type: ignore[attr-defined]


def _backward(saved: Any, grads: Any) -> Any:
    a, b, c, d = saved
    x, y, g = MCFComplexTensor(a, b), MCFComplexTensor(c, d), gradient(grads)
    inner = g / y.conj()
    outer = -inner * (x / y).conj()
    return inner.real, inner.imag, outer.real, outer.imag


_Divide = node("Divide", _quotient, _backward)


@untraced
def divide(x: tuple[Any, Any], y: tuple[Any, Any]) -> MCFComplexTensor:
    """Return x / y by parts, with a derivative; the imaginary part of x may be None.

    A zero y gives x / Re y by parts, which is infinite or NaN. An infinite y under a finite x gives
    zeros. Otherwise the result is NaN where a part is not finite, as in the product.
    """
    a, b = x
    given = (a, 0.0 if b is None else b, *y)
    found = applied(COMPLEX_DIV, *given)
    if found is not None:
        return found
    alike = formatted(*given)
    shape = torch.broadcast_shapes(*(v.shape for v in alike))  # type: ignore[no-untyped-call]
    return MCFComplexTensor(*_Divide.apply(*(v.expand(shape) for v in alike)))


Parts = tuple[Any, Any]


def add(x: Parts, y: Parts) -> MCFComplexTensor:
    """Return x + y by parts; each part has at most the error of a real sum."""
    if y[1] is None:
        return pair(x[0] + y[0], _broadcast(x[1], y[0]))
    if x[1] is None:
        return add(y, x)
    return _computed(COMPLEX_ADD, complex_numbers.plus, *_ordered(x, y))


def _broadcast(x: Any, other: Any) -> Any:
    """Return a copy of x in the broadcast shape of x and the other operand."""
    if not isinstance(x, torch.Tensor):
        # A number takes the format of the real expansion that it is combined with.
        return torch.zeros_like(other) + x
    if isinstance(other, torch.Tensor) and other.shape != x.shape:
        shape = torch.broadcast_shapes(x.shape, other.shape)  # type: ignore[no-untyped-call]
        return x.expand(shape).clone()
    return x.clone()


def _computed(
    operation: Operation, formula: Callable[..., tuple[Any, Any]], *given: Any
) -> MCFComplexTensor:
    """Run one kernel, or the formula of the parts under autograd, tracing or transforms."""
    found = applied(operation, *given)
    return pair(*formula(*given)) if found is None else found


def _ordered(x: Parts, y: Parts) -> tuple[Any, Any, Any, Any]:
    """Order the operands of a commutative operation: more components first, as for real ones."""
    first, second = x[0], y[0]
    if type(second) is MCFTensor and (type(first) is not MCFTensor or first._terms < second._terms):
        return (*y, *x)
    return (*x, *y)


def sub(x: Parts, y: Parts) -> MCFComplexTensor:
    """Return x - y by parts."""
    if y[1] is None:
        return pair(x[0] - y[0], _broadcast(x[1], y[0]))
    if x[1] is None:
        return pair(x[0] - y[0], -_broadcast(y[1], x[0]))
    return _computed(COMPLEX_SUB, complex_numbers.minus, *x, *y)


def mul(x: Parts, y: Parts) -> MCFComplexTensor:
    """Return (a + ib)(c + id) = (ac - bd) + i(ad + bc), by four products and two sums.

    `mcf.bound("complex_mul", ...)` is relative to |x y|, not to each part.
    """
    if y[1] is None:
        return _computed(COMPLEX_SCALE, complex_numbers.times_real, *x, y[0])
    if x[1] is None:
        return mul(y, x)
    return _computed(COMPLEX_MUL, complex_numbers.times, *_ordered(x, y))


def div(x: Parts, y: Parts) -> MCFComplexTensor:
    """Return x / y; `mcf.kernels.algorithms.complex_quotients` has the formula."""
    if y[1] is None:
        return _computed(COMPLEX_UNSCALE, complex_numbers.over_real, *x, y[0])
    return divide(x, y)


# The largest exponent that is computed by products.
POWERS = 64


def by_squaring(x: Any, n: int, product: Callable[[Any, Any], Any]) -> Any:
    """Return x**n for n > 0 by repeated squaring."""
    found: Any = None
    while n:
        if n & 1:
            found = x if found is None else product(found, x)
        n >>= 1
        x = product(x, x) if n else x
    return found


def power(x: Parts, n: int) -> Any:
    """Return x**n for a whole n of at most 64 in magnitude."""
    base: Any = pair(*x)
    if n < 0:
        return 1 / power(x, -n)
    return by_squaring(base, n, operator.mul) if n else torch.ones_like(base)


def pow(x: Parts, y: Parts) -> Any:
    """Return x**y: products for whole |y| <= 64, else exp(y log x); 0**y = 0 for Re y > 0.

    The error of n factors is at most n - 1 times that of a product. The error of exp(y log x) is |y
    log x| times the errors of log and product, plus that of exp.
    """
    if y[1] is None and isinstance(y[0], (int, float)):
        whole = int(y[0]) if y[0] == y[0] // 1 and abs(y[0]) <= POWERS else None
        if whole is not None:
            return power(x, whole)
    whole_x = [0.0 if v is None else v for v in (*x, *y)]
    a, b, c, d = formatted(*whole_x)
    base, exponent = pair(a, b), pair(c, d)
    zero = (a == 0) & (b == 0)
    where: Any = torch.where
    found = (where(zero, 1.0, base).log() * exponent).exp()
    return where(zero & (c > 0), 0.0, found)


def equal(x: Parts, y: Parts) -> Any:
    """Return where both parts are equal by value; exact."""
    same = x[0] == y[0]
    imaginary = [0.0 if v is None else v for v in (x[1], y[1])]
    return same & (imaginary[0] == imaginary[1])


def _operator(
    function: Callable[[Parts, Parts], Any], swapped: bool = False
) -> Callable[[Any, Any], Any]:
    def apply(self: Any, other: Any) -> Any:
        x, y = parts(self), parts(other)
        if x is None or y is None:
            return NotImplemented
        return function(y, x) if swapped else function(x, y)

    return apply


def _function(name: str, function: Callable[[Parts, Parts], Any]) -> Callable[..., Any]:
    def call(x: Any, y: Any, *, alpha: Any = 1, rounding_mode: Any = None) -> Any:
        if rounding_mode is not None:
            raise TypeError(
                f"torch.{name}: rounding_mode must be None for complex "
                f"numbers, got {rounding_mode!r}"
            )
        both = parts(x), parts(y if alpha == 1 else y * alpha)
        if both[0] is None or both[1] is None:
            given = (x, y)[both[0] is not None]
            raise TypeError(
                f"torch.{name}: operands must be tensors or numbers, got {type(given).__name__}"
            )
        return function(both[0], both[1])

    return call


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def change(self: MCFComplexTensor, other: Any) -> Any:
        result = function(self, other)
        if result is NotImplemented:
            return result
        return self.copy_(result)

    return change


NAMES: dict[str, tuple[Callable[[Parts, Parts], Any], tuple[str, ...]]] = {
    "add": (add, ("add",)),
    "sub": (sub, ("sub", "subtract")),
    "mul": (mul, ("mul", "multiply")),
    "truediv": (div, ("div", "divide", "true_divide")),
    "pow": (pow, ("pow",)),
}
for _name, (_meaning, _names) in NAMES.items():
    _own, _other = _operator(_meaning), _operator(_meaning, swapped=True)
    method(f"__{_name}__", _own)
    method(f"__r{_name}__", _other)
    method(f"__i{_name}__", _in_place(_own))
    for _torch in _names:
        implements(_torch, f"__{_torch}__")(_function(_torch, _meaning))
        implements(f"{_torch}_")(_in_place(_function(_torch, _meaning)))
    implements(f"__{_name}__")(_function(_name, _meaning))
    implements(f"__r{_name}__")(lambda x, y, _meaning=_meaning: _function("", _meaning)(y, x))
implements("rsub")(lambda x, y: _function("rsub", sub)(y, x))
implements("eq", "__eq__")(_function("eq", equal))
implements("ne", "__ne__")(lambda x, y: ~_function("ne", equal)(x, y))
method("__eq__", _operator(equal))
method("__ne__", lambda x, y: ~(x == y))
method("__hash__", object.__hash__)
method("__neg__", lambda z: pair(-z.real, -z.imag))
method("__pos__", lambda z: z)
for _name in ("neg", "negative", "__neg__"):
    implements(_name)(lambda z: -z)
implements("square")(lambda z: z * z)
implements("reciprocal")(lambda z: 1 / z)
