"""Arithmetic on expansions of one to four components, as opaque operators.

An expansion is a tuple of 1 to 4 tensors of one dtype (bfloat16, float16, float32, float64) and
device, largest component first, |x[k + 1]| <= ulp(x[k]) / 2; an infinity or NaN has low components
of zero. Arguments broadcast; a plain tensor is an expansion of one component; a result has as many
components as the longest argument. One component is the plain format, correctly rounded.

Infinities, NaN and signed zeros behave as IEEE 754 has them: inf + 1 = inf, -0 + -0 = -0,
1 / 0 = inf, sqrt(-0) = -0. Bounds are in `mcf.kernels.bounds`. Nothing here has a derivative.

Every function takes `out`, a tuple of tensors of the result's shape, dtype and device that the
result is written to; it may be an argument.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices, or what is no tensor;
`ValueError` for shapes that do not broadcast, a wrong number of components, a wrong `out`;
`RuntimeError` for a tensor that requires grad while grad mode is on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import distillation, ieee
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FORMATS, Format, format_of

Components = tuple[Tensor, ...]
Argument = Tensor | Sequence[Tensor]
Out = Sequence[Tensor] | None

MAX_TERMS = 4
# The longest tuple that `renormalize` takes: its algorithm grows with the square.
MAX_FLOATS = 16

_library = torch.library.Library("mcf", "FRAGMENT")


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function on expansions: its name, its arguments, its algorithm by number of components."""

    name: str
    arguments: tuple[str, ...]
    algorithms: tuple[Algorithm, ...]

    @property
    def operator(self) -> str:
        """The operator's name under `torch.ops.mcf`."""
        return f"expansion_{self.name}"


ADD = Operation("add", ("x", "y"), (ieee.add1, ieee.add2, ieee.add3, ieee.add4))
SUB = Operation("sub", ("x", "y"), (ieee.sub1, ieee.sub2, ieee.sub3, ieee.sub4))
MUL = Operation("mul", ("x", "y"), (ieee.mul1, ieee.mul2, ieee.mul3, ieee.mul4))
DIV = Operation("div", ("x", "y"), (ieee.div1, ieee.div2, ieee.div3, ieee.div4))
SQRT = Operation("sqrt", ("x",), (ieee.sqrt1, ieee.sqrt2, ieee.sqrt3, ieee.sqrt4))

OPERATIONS = (ADD, SUB, MUL, DIV, SQRT)


def _kernel(
    name: str,
    function: Algorithm,
    fmt: Format,
    arguments: Sequence[tuple[str, int, int]],
    terms: int,
) -> Elementwise:
    """A kernel whose parameters are tuples.

    Args:
        name: of the kernel.
        function: the algorithm.
        fmt: the format of components and arithmetic.
        arguments: per parameter its name, its components in memory and those the algorithm takes;
            what memory lacks is zero.
        terms: components of the result.
    """
    results = tuple(f"r{k}" for k in range(terms))
    stored = tuple(f"{a}{k}" for a, given, _ in arguments for k in range(given))
    return Elementwise(
        name=name,
        function=function,
        results=results,
        fields=(
            *(Field(n, fmt) for n in stored),
            *(Field(r, fmt, read=False, written=True) for r in results),
        ),
        stores=tuple((r, r) for r in results),
        arithmetic=fmt,
        roundings=(("rc", fmt),),
        groups=tuple((a, tuple(f"{a}{k}" for k in range(taken))) for a, _, taken in arguments),
        absent=tuple(f"{a}{k}" for a, given, taken in arguments for k in range(given, taken)),
        # Results are sums that end in `rc`, or selections among those.
        rounded=results,
    )


@functools.cache
def kernel(operation: Operation, fmt: Format, *given: int) -> Elementwise:
    """The kernel of an operation for the number of components of each argument."""
    terms = max(given)
    name = f"expansion_{operation.name}_{''.join(map(str, given))}_{fmt.name}"
    arguments = [(a, g, terms) for a, g in zip(operation.arguments, given, strict=True)]
    return _kernel(name, operation.algorithms[terms - 1], fmt, arguments, terms)


@functools.cache
def renormalize_kernel(fmt: Format, count: int, terms: int) -> Elementwise:
    """The kernel of `renormalize` for a number of floats and of components."""
    name = f"expansion_renormalize_{count}to{terms}_{fmt.name}"
    return _kernel(name, distillation.distill(count, terms), fmt, [("x", count, count)], terms)


_NO_SCALARS = torch.zeros(1, 0, dtype=torch.float64)


def _run(spec: Elementwise, given: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    registry.run(spec, [[*given, *out]], _NO_SCALARS)


def _empty(first: Tensor, terms: int) -> list[Tensor]:
    return [torch.empty_like(first, memory_format=torch.contiguous_format) for _ in range(terms)]


def _flat(arguments: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [t for a in arguments for t in a]


def _register(name: str, inputs: str, spec: Callable[..., Elementwise]) -> None:
    """Define an operator that returns new tensors and one that writes into given ones.

    Args:
        name: under `torch.ops.mcf`.
        inputs: the schema of its arguments: lists of tensors, then integers.
        spec: the kernel for these arguments.
    """

    def lists(arguments: Sequence[object]) -> list[list[Tensor]]:
        return [a for a in arguments if isinstance(a, list)]

    def run(*arguments: object) -> list[Tensor]:
        given = _flat(lists(arguments))
        kernel = spec(*arguments)
        out = _empty(given[0], len(kernel.results))
        _run(kernel, given, out)
        return out

    def fake(*arguments: object) -> list[Tensor]:
        given = _flat(lists(arguments))
        return _empty(given[0], len(spec(*arguments).results))

    def run_into(*arguments: object, out: list[Tensor]) -> None:
        _run(spec(*arguments), _flat(lists(arguments)), out)

    def fake_into(*arguments: object, out: list[Tensor]) -> None:
        return None

    _library.define(f"{name}({inputs}) -> Tensor[]")
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{name}", fake, lib=_library)
    into = f"{name}_into"
    _library.define(f"{into}({inputs}, *, Tensor(a!)[] out) -> ()")
    _library.impl(into, run_into, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{into}", fake_into, lib=_library)


def _spec_of(operation: Operation) -> Callable[..., Elementwise]:
    def spec(*arguments: list[Tensor]) -> Elementwise:
        return kernel(operation, FORMATS[arguments[0][0].dtype], *map(len, arguments))

    return spec


for _operation in OPERATIONS:
    _inputs = ", ".join(f"Tensor[] {a}" for a in _operation.arguments)
    _register(_operation.operator, _inputs, _spec_of(_operation))

_register(
    "expansion_renormalize",
    "Tensor[] x, int terms",
    lambda x, terms: renormalize_kernel(FORMATS[x[0].dtype], len(x), terms),
)


def _components(function: str, name: str, argument: Argument, most: int) -> tuple[Tensor, ...]:
    if isinstance(argument, Tensor):
        return (argument,)
    if not isinstance(argument, Sequence) or not all(isinstance(t, Tensor) for t in argument):
        raise TypeError(
            f"{function}: {name} must be a tensor or a tuple of tensors, largest component first, "
            f"got {type(argument).__name__}"
        )
    if not 1 <= len(argument) <= most:
        raise ValueError(
            f"{function}: {name} must have 1 to {most} components, got {len(argument)}"
        )
    return tuple(argument)


def _checked(
    function: str, names: Sequence[str], arguments: Sequence[Argument], most: int = MAX_TERMS
) -> list[list[Tensor]]:
    """The components of each argument, broadcast to one shape."""
    grouped = [_components(function, n, a, most) for n, a in zip(names, arguments, strict=True)]
    first = grouped[0][0]
    same_shape = True
    for name, group in zip(names, grouped, strict=True):
        for k, t in enumerate(group):
            _check_tensor(function, f"{name}[{k}]", t, first, f"{names[0]}[0]")
            same_shape = same_shape and t.shape == first.shape
    if same_shape:
        return [list(group) for group in grouped]
    try:
        shape = torch.broadcast_shapes(*(t.shape for group in grouped for t in group))
    except RuntimeError:
        shapes = ", ".join(
            f"{n} {list(group[0].shape)}" for n, group in zip(names, grouped, strict=True)
        )
        raise ValueError(f"{function}: shapes do not broadcast: {shapes}") from None
    return [[t.expand(shape) for t in group] for group in grouped]


def _check_tensor(function: str, name: str, t: Tensor, first: Tensor, first_name: str) -> None:
    if t is first:
        format_of(t.dtype, f"{function}: {name}")
    elif t.dtype != first.dtype or t.device != first.device:
        what = "dtype" if t.dtype != first.dtype else "device"
        raise TypeError(
            f"{function}: {name} has {what} {getattr(t, what)} and {first_name} has "
            f"{getattr(first, what)}; convert one, nothing is rounded or moved silently"
        )
    if t.layout is not torch.strided:
        raise TypeError(
            f"{function}: {name} has layout {t.layout}; only dense (torch.strided) tensors are "
            "allowed"
        )
    if t.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{function}: {name} requires grad, and this function has no derivative; detach it or "
            "use torch.no_grad()"
        )


def _check_out(function: str, out: Sequence[Tensor], first: Tensor, terms: int) -> None:
    if not isinstance(out, (tuple, list)) or not all(isinstance(t, Tensor) for t in out):
        raise TypeError(f"{function}: out must be a tuple of {terms} tensors")
    if len(out) != terms:
        raise ValueError(f"{function}: out must have {terms} components, got {len(out)}")
    for k, t in enumerate(out):
        _check_tensor(function, f"out[{k}]", t, first, "the first argument")
        if t.shape != first.shape:
            raise ValueError(
                f"{function}: out[{k}] has shape {list(t.shape)}, the result has "
                f"{list(first.shape)}"
            )


def _call(
    operator: str,
    function: str,
    given: list[list[Tensor]],
    extra: Sequence[int],
    terms: int,
    out: Out,
) -> Components:
    if out is None:
        return tuple(getattr(torch.ops.mcf, operator)(*given, *extra))
    _check_out(function, out, given[0][0], terms)
    used = {t.untyped_storage().data_ptr() for t in _flat(given)}
    own = [t.untyped_storage().data_ptr() for t in out]
    if used.isdisjoint(own) and len(set(own)) == len(own):
        getattr(torch.ops.mcf, f"{operator}_into")(*given, *extra, out=list(out))
    else:
        # A kernel's tensors must not overlap what it writes.
        results = getattr(torch.ops.mcf, operator)(*given, *extra)
        for t, r in zip(out, results, strict=True):
            t.copy_(r)
    return tuple(out)


def _apply(operation: Operation, arguments: Sequence[Argument], out: Out) -> Components:
    given = _checked(operation.name, operation.arguments, arguments)
    return _call(operation.operator, operation.name, given, (), max(map(len, given)), out)


def add(x: Argument, y: Argument, *, out: Out = None) -> Components:
    """x + y, commutative; relative error as `mcf.bound("add", ...)`, also under cancellation."""
    return _apply(ADD, (x, y), out)


def sub(x: Argument, y: Argument, *, out: Out = None) -> Components:
    """x - y; relative error as `add`."""
    return _apply(SUB, (x, y), out)


def mul(x: Argument, y: Argument, *, out: Out = None) -> Components:
    """x * y, commutative."""
    return _apply(MUL, (x, y), out)


def div(x: Argument, y: Argument, *, out: Out = None) -> Components:
    """x / y."""
    return _apply(DIV, (x, y), out)


def sqrt(x: Argument, *, out: Out = None) -> Components:
    """The square root of x; NaN for x < 0."""
    return _apply(SQRT, (x,), out)


def renormalize(x: Argument, terms: int | None = None, *, out: Out = None) -> Components:
    """The sum of 1 to 16 floats in any order, overlapping and cancelling, as an expansion.

    Args:
        x: the floats; each broadcasts.
        terms: components of the result, 1 to 4; None for as many as there are floats, at most 4.
        out: where the result goes.
    """
    given = _checked("renormalize", ("x",), (x,), MAX_FLOATS)
    if terms is None:
        terms = min(len(given[0]), MAX_TERMS)
    if isinstance(terms, bool) or not isinstance(terms, int):
        raise TypeError(f"renormalize: terms must be an int, got {type(terms).__name__}")
    if not 1 <= terms <= MAX_TERMS:
        raise ValueError(f"renormalize: terms must be 1 to {MAX_TERMS}, got {terms}")
    return _call("expansion_renormalize", "renormalize", given, (terms,), terms, out)
