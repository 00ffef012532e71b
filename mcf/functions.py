"""Arithmetic and elementary functions of expansion tensors, plain tensors and component tuples.

Every function takes

- `MCFTensor`s, together with plain tensors and numbers (any that `mcf.tensor` accepts). The result
  is an `MCFTensor`, with a derivative; promotion and broadcasting follow the operators. The
  functions equal torch's functions of the same names.
- tuples of 1 to 4 components, largest first, of one dtype and device, together with plain tensors.
  The result is a tuple with as many components as the longest argument and the same bits, without a
  derivative.
- plain tensors alone, for elementary functions. The result is a plain tensor, rounded once from the
  expansion, with a derivative.

`mcf.bound` returns error bounds. Infinities, NaN and signed zeros follow IEEE 754 and C99
(Annex F).

Every function raises `TypeError` for a tuple with an `MCFTensor`, other dtypes, mixed dtypes or
devices; `ValueError` for shapes that do not broadcast or a wrong number of components;
`RuntimeError` for components that require grad while grad mode is on.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from mcf import elementary
from mcf.complexes.tensor import MCFComplexTensor
from mcf.elementary.declarations import PROGRAMS
from mcf.elementary.operator import FUNCTIONS
from mcf.expansions import MCFTensor
from mcf.expansions.conversion import promote, to_plain
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.launch.operations import selected
from mcf.expansions.ops.elementary.elementary import of
from mcf.expansions.promotion import aligned, common_device
from mcf.expansions.tensor import Components, wrap
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.operators import FMA

_TENSORS = (MCFTensor, MCFComplexTensor)
# The modules of PyTorch that have functions of the declared names.
_OWNERS = (torch, torch.special)


def _tensors(*values: Any) -> tuple[Tensor, ...]:
    """Return the arguments as tensors; numbers become the nearest expansion."""
    like = next(v for v in values if isinstance(v, MCFTensor))
    return tuple(
        promote(v) if isinstance(v, Tensor) else tensor(v, like.terms, like.dtype, like.device)
        for v in values
    )


__all__ = [
    "acos", "acosh", "add", "airy_ai", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos",
    "cosh", "digamma", "div", "erf", "erfc", "erfcx", "erfinv", "exp", "expm1", "floor", "fma",
    "fmod", "gelu", "gelu_tanh", "hypot", "i0", "i0e", "i1", "i1e", "j0", "j1", "k0", "k0e", "k1",
    "k1e", "lgamma", "log", "log1p", "log2", "log10", "log_ndtr", "log_softmax", "logsumexp", "mul",
    "ndtri", "normal_cdf", "normal_pdf", "pow", "reciprocal", "remainder", "round", "rsqrt",
    "sigmoid", "sin", "sinh", "softmax", "spherical_bessel_j0", "sqrt", "square", "sub", "tan",
    "tanh", "trigamma", "trunc", "y0", "y1",
]  # fmt: skip


class Function(Protocol):
    """An operation or function: it returns an expansion, a tuple or a tensor as it is given one."""

    @overload
    def __call__(self, x: MCFTensor, /, *args: Any, **options: Any) -> MCFTensor: ...
    @overload
    def __call__(self, x: MCFComplexTensor, /, *args: Any, **options: Any) -> MCFComplexTensor: ...
    @overload
    def __call__(self, x: Any, y: MCFTensor, /, *args: Any, **options: Any) -> MCFTensor: ...
    @overload
    def __call__(self, x: Tensor, /, *args: Any, **options: Any) -> Tensor: ...
    @overload
    def __call__(self, x: Components, /, *args: Any, **options: Any) -> Components: ...


# Editors and `help` show this type of operands and results.
_OPERAND = "MCFTensor | Tensor | tuple[Tensor, ...]"


def _typed(function: Callable[..., Any], arguments: int | None = None) -> Function:
    """Have editors and `help` show the types of a function's first arguments, and its result's."""
    shown = inspect.signature(function)
    operands = [
        p.replace(annotation=_OPERAND) if arguments is None or k < arguments else p
        for k, p in enumerate(shown.parameters.values())
    ]
    function.__signature__ = shown.replace(  # type: ignore[attr-defined]
        parameters=operands, return_annotation=_OPERAND
    )
    return function


@_typed
def add(x: Any, y: Any) -> Any:
    """x + y for two expansions, commutative; error of pairs at most 2u^2, under cancellation too.

    Tuples of 1 to 4 components, or one and a plain tensor: as many components as the longest. The
    two-term network of Zhang and Aiken 2025, doi:10.1007/978-3-031-98682-6_12. With an
    `MCFTensor` among the arguments it is `torch.add`, which see: any terms, with a gradient.
    """
    if are_components("add", x, y):
        return operations.add(x, y)
    return x + y


@_typed
def mul(x: Any, y: Any) -> Any:
    """x * y for two expansions, commutative; error of pairs at most 5u^2.

    Tuples of 1 to 4 components, or one and a plain tensor: as many components as the longest. Of
    pairs it is DWTimesDW1 of Joldes, Muller, Popescu 2017, with the bound of Muller and Rideau
    2022, doi:10.1145/3484514. With an `MCFTensor` among the arguments it is `torch.mul`, which see:
    any terms, with a gradient.
    """
    if are_components("mul", x, y):
        return operations.mul(x, y)
    return x * y


def are_components(function: str, *values: Any) -> bool:
    """Return whether all values are component tuples or plain tensors, none an `MCFTensor`.

    Raises:
        TypeError: for a mixture of tuples and `MCFTensor`s, and if there are neither.
    """
    expansion = any(isinstance(v, _TENSORS) for v in values)
    components = any(isinstance(v, (tuple, list)) for v in values)
    if expansion and components:
        raise TypeError(
            f"{function}: cannot combine a tuple of components with an mcf.MCFTensor; convert one "
            "of them, mcf.from_components(components) or x.components"
        )
    if not expansion and not components:
        kinds = ", ".join(type(v).__name__ for v in values)
        raise TypeError(
            f"{function} needs an mcf.MCFTensor or a tuple of 1 to 4 components among its "
            f"arguments, got {kinds}"
        )
    return components


def _of_two(of_tensors: Any, of_components: Any, x: Any, y: Any) -> Any:
    if are_components(of_components.__name__, x, y):
        return of_components(x, y)
    if isinstance(x, MCFComplexTensor) or isinstance(y, MCFComplexTensor):
        return of_tensors(x, y)
    return of_tensors(*_tensors(x, y))


@_typed
def sub(x: Any, y: Any) -> Any:
    """x - y."""
    return _of_two(operator.sub, operations.sub, x, y)


@_typed
def div(x: Any, y: Any) -> Any:
    """x / y."""
    return _of_two(operator.truediv, operations.div, x, y)


class _Fma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return wrap(operations.fma(*aligned(x, y, z)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x, grad


@_typed
def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z with the error of one operation; `mcf.bound("fma", ...)` has the bound."""
    if are_components("fma", x, y, z):
        return operations.fma(x, y, z)
    if not any(map(recorded, (x, y, z))) and len({v.terms for v in (x, y, z)}) == 1:
        found = selected(FMA, x, y, z)
        if found is not None:
            return found
    values = _tensors(x, y, z)
    device = common_device(*values)
    a, b, c = (v if v.dim() else v.to(device) for v in values)
    shape = torch.broadcast_shapes(a.shape, b.shape, c.shape)  # type: ignore[no-untyped-call]
    return _Fma.apply(a.expand(shape), b.expand(shape), c.expand(shape))  # type: ignore[no-untyped-call]


@_typed
def sqrt(x: Any) -> Any:
    """Return the square root of x; NaN for x < 0."""
    return operations.sqrt(x) if are_components("sqrt", x) else x.sqrt()


@_typed
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return operations.rsqrt(x) if are_components("rsqrt", x) else x.rsqrt()


@_typed
def reciprocal(x: Any) -> Any:
    """1 / x."""
    return operations.reciprocal(x) if are_components("reciprocal", x) else x.reciprocal()


@_typed
def square(x: Any) -> Any:
    """x * x."""
    # The square of a tensor is computed as this product, too.
    return operations.mul(x, x) if are_components("square", x) else x.square()


def _public(name: str) -> Function:
    """Extend a declared function of component tuples to tensors."""
    program = PROGRAMS[name]
    names = (*program.torch, *program.undifferentiated, name)
    found = [getattr(owner, n) for n in names for owner in _OWNERS if hasattr(owner, n)]
    of_tensors = program.tensors or (found[0] if found else getattr(of, name))
    return _extended(FUNCTIONS[name], of_tensors, len(program.arguments))


def _extended(
    function: Callable[..., Components], of_tensors: Callable[..., Any], arguments: int = 1
) -> Function:
    """Extend a function of component tuples to tensors.

    Args:
        function: the function of tuples of components.
        of_tensors: the function of tensors, some of which are expansions.
        arguments: the number of tensor arguments; the others are passed on.
    """
    name = function.__name__

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        values, rest = given[:arguments], given[arguments:]
        if any(isinstance(v, (tuple, list)) for v in values):
            are_components(name, *values)
            parts = [(v,) if isinstance(v, Tensor) else v for v in values]
            return function(*parts, *rest, **options)
        if any(isinstance(v, _TENSORS) for v in values):
            return of_tensors(*values, *rest, **options)
        for v in values:
            if not isinstance(v, Tensor):
                raise TypeError(
                    f"{name} needs a tensor or a tuple of 1 to 4 components, got {type(v).__name__}"
                )
            format_of(v.dtype, name)
        # The result is rounded once: it is an expansion of one component.
        result = of_tensors(*map(promote, values), *rest, **options)
        return to_plain(result)

    return _typed(call, arguments)


exp = _public("exp")
expm1 = _public("expm1")
log = _public("log")
log1p = _public("log1p")
log2 = _public("log2")
log10 = _public("log10")
sin = _public("sin")
cos = _public("cos")
tan = _public("tan")
asin = _public("asin")
acos = _public("acos")
atan = _public("atan")
sinh = _public("sinh")
cosh = _public("cosh")
tanh = _public("tanh")
asinh = _public("asinh")
acosh = _public("acosh")
atanh = _public("atanh")
sigmoid = _public("sigmoid")
erf = _public("erf")
erfc = _public("erfc")
erfinv = _public("erfinv")
erfcx = _public("erfcx")
log_ndtr = _public("log_ndtr")
ndtri = _public("ndtri")
lgamma = _public("lgamma")
digamma = _public("digamma")
trigamma = _public("trigamma")
i0 = _public("i0")
i0e = _public("i0e")
i1 = _public("i1")
i1e = _public("i1e")
spherical_bessel_j0 = _public("spherical_bessel_j0")
airy_ai = _public("airy_ai")
j0 = _public("j0")
j1 = _public("j1")
y0 = _public("y0")
y1 = _public("y1")
k0 = _public("k0")
k0e = _public("k0e")
k1 = _public("k1")
k1e = _public("k1e")
floor = _public("floor")
ceil = _public("ceil")
round = _public("round")
trunc = _public("trunc")
normal_cdf = _public("normal_cdf")
normal_pdf = _public("normal_pdf")
gelu = _public("gelu")
gelu_tanh = _public("gelu_tanh")
atan2 = _public("atan2")
pow = _public("pow")
hypot = _public("hypot")
fmod = _public("fmod")
remainder = _public("remainder")
softmax = _extended(elementary.softmax, torch.softmax)
log_softmax = _extended(elementary.log_softmax, torch.log_softmax)
logsumexp = _extended(elementary.logsumexp, torch.logsumexp)
