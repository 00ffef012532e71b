"""The operations on expansions as declarations, their kernels, and their opaque operators.

`mcf.kernels.expansions` has the functions that call them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms import distillation, ieee
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FORMATS, FP64, Format

MAX_TERMS = 4
# The longest tuple that `renormalize` takes: its algorithm grows with the square.
MAX_FLOATS = 16

_library = torch.library.Library("mcf", "FRAGMENT")


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function on expansions.

    Args:
        name: of the function, and after `expansion_` under `torch.ops.mcf`.
        arguments: their names.
        algorithms: by the largest number of components among the arguments, from one.
        special: algorithms for some numbers of components of the arguments.
        constants: names of parameters that are 1.
        results: the number of components of the result where it is not the arguments'.
    """

    name: str
    arguments: tuple[str, ...]
    algorithms: tuple[Algorithm, ...]
    special: tuple[tuple[tuple[int, ...], Algorithm], ...] = ()
    constants: tuple[str, ...] = ()
    results: int | None = None

    def terms(self, given: Sequence[int]) -> int:
        """How many components the result has."""
        return self.results or max(given)


def _family(name: str) -> tuple[Algorithm, ...]:
    return tuple(getattr(ieee, f"{name}{terms}") for terms in range(1, MAX_TERMS + 1))


def _float_second(
    name: str, least: int, most: int
) -> tuple[tuple[tuple[int, ...], Algorithm], ...]:
    """The algorithms for a float as second argument."""
    return tuple(((n, 1), getattr(ieee, f"{name}_float{n}")) for n in range(least, most + 1))


_FMA_FLOAT = tuple(
    ((n, 1, m), getattr(ieee, f"fma_float{n}")) for n in (2, 3, 4) for m in range(1, n + 1)
)

ADD = Operation("add", ("x", "y"), _family("add"), _float_second("add", 2, 2))
SUB = Operation("sub", ("x", "y"), _family("sub"), _float_second("sub", 2, 2))
MUL = Operation("mul", ("x", "y"), _family("mul"), _float_second("mul", 2, 4))
DIV = Operation("div", ("x", "y"), _family("div"), _float_second("div", 2, 2))
FMA = Operation("fma", ("x", "y", "z"), _family("fma"), _FMA_FLOAT)
SQUARE = Operation("square", ("x",), _family("square"))
SQRT = Operation("sqrt", ("x",), _family("sqrt"))
RECIPROCAL = Operation("reciprocal", ("x",), _family("reciprocal"), constants=("one",))
RSQRT = Operation("rsqrt", ("x",), _family("rsqrt"), constants=("one",))
COMPARE = Operation("compare", ("x", "y"), _family("compare"), results=1)

OPERATIONS = (ADD, SUB, MUL, DIV, FMA, SQUARE, SQRT, RECIPROCAL, RSQRT, COMPARE)
# Those in which x and y may be exchanged.
COMMUTATIVE = (ADD, MUL, FMA)


def _kernel(
    name: str,
    function: Algorithm,
    fmt: Format,
    arguments: Sequence[tuple[str, int, int]],
    terms: int,
    constants: tuple[str, ...] = (),
    uniform: frozenset[str] = frozenset(),
) -> Elementwise:
    """A kernel whose parameters are tuples.

    Args:
        name: of the kernel.
        function: the algorithm.
        fmt: the format of components and arithmetic.
        arguments: per parameter its name, its components in memory and those the algorithm takes;
            what memory lacks is zero.
        terms: components of the result.
        constants: names of parameters that a launch gives as scalars.
        uniform: names of parameters of which there is one for all elements.
    """
    results = tuple(f"r{k}" for k in range(terms))
    stored = [
        Field(f"{a}{k}", fmt, uniform=a in uniform)
        for a, given, _ in arguments
        for k in range(given)
    ]
    return Elementwise(
        name=name,
        function=function,
        results=results,
        fields=(*(Field(r, fmt, read=False, written=True) for r in results), *stored),
        stores=tuple((r, r) for r in results),
        arithmetic=fmt,
        roundings=(("rc", fmt),),
        groups=tuple((a, tuple(f"{a}{k}" for k in range(taken))) for a, _, taken in arguments),
        absent=tuple(f"{a}{k}" for a, given, taken in arguments for k in range(given, taken)),
        scalars=constants,
        # Results are sums that end in `rc`, or selections among those.
        rounded=results,
    )


@functools.cache
def kernel(
    operation: Operation, fmt: Format, *given: int, uniform: frozenset[str] = frozenset()
) -> Elementwise:
    """The kernel of an operation for the number of components of each argument.

    `uniform` names the arguments that are one number for all elements.
    """
    name = f"expansion_{operation.name}_{''.join(map(str, given))}_{fmt.name}"
    name += "".join(f"_one_{a}" for a in sorted(uniform))
    special = dict(operation.special).get(given)
    widest = max(given)
    arguments = []
    for argument, count in zip(operation.arguments, given, strict=True):
        # An algorithm for a float takes one component of it and all of the others.
        taken = 1 if special and (argument, count) == ("y", 1) else widest
        arguments.append((argument, count, taken))
    return _kernel(
        name,
        special or operation.algorithms[widest - 1],
        fmt,
        arguments,
        operation.terms(given),
        operation.constants,
        uniform,
    )


@functools.cache
def renormalize_kernel(fmt: Format, count: int, terms: int, uniform: bool = False) -> Elementwise:
    """The kernel of `renormalize` for a number of floats and of components."""
    name = f"expansion_renormalize_{count}to{terms}_{fmt.name}{'_one_x' * uniform}"
    function = distillation.distill(count, terms)
    names = frozenset("x" if uniform else "")
    return _kernel(name, function, fmt, [("x", count, count)], terms, uniform=names)


@functools.cache
def settle_kernel(count: int, uniform: bool = False) -> Elementwise:
    """The kernel that makes an expansion of the partial sum that a fold leaves in float64."""
    name = f"expansion_settle_{count}{'_one_x' * uniform}"
    function = distillation.distill(count, count, partial=True)
    names = frozenset("x" if uniform else "")
    return _kernel(name, function, FP64, [("x", count, count)], count, uniform=names)


# Every scalar is the constant 1.
_SCALARS = {k: torch.ones(1, k, dtype=torch.float64, device="cpu") for k in range(2)}


def _run(spec: Elementwise, given: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    registry.run(spec, [[*out, *given]], _SCALARS[len(spec.scalars)])


def _empty(first: Tensor, terms: int) -> list[Tensor]:
    return [torch.empty_like(first, memory_format=torch.contiguous_format) for _ in range(terms)]


def _separate(given: Sequence[Tensor], out: Sequence[Tensor]) -> bool:
    """Whether what is written overlaps nothing: a kernel's tensors must not."""
    written = {t.untyped_storage().data_ptr() for t in out}
    read = {t.untyped_storage().data_ptr() for t in given}
    return len(written) == len(out) and written.isdisjoint(read)


def _one_element(group: Sequence[Tensor]) -> bool:
    """Whether a group is one number, expanded to more elements."""
    return all(t.numel() > 1 and not any(t.stride()) for t in group)


def _prepare(
    spec: Callable[..., Elementwise], arguments: Sequence[Any]
) -> tuple[Elementwise, list[Tensor]]:
    """The kernel for an operator's arguments, and the tensors it reads."""
    uniform = []
    given = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, list):
            if not argument[0].is_contiguous() and _one_element(argument):
                uniform.append(position)
                argument = [t.as_strided((), ()) for t in argument]
            given += argument
    return spec(*arguments, uniform=uniform), given


def _register(name: str, inputs: str, spec: Callable[..., Elementwise]) -> None:
    """Define an operator that returns new tensors and one that writes into given ones.

    Args:
        name: under `torch.ops.mcf`.
        inputs: the schema of its arguments: lists of tensors, then integers.
        spec: the kernel for these arguments and the positions of those that are one number.
    """

    def run(*arguments: Any) -> list[Tensor]:
        kernel, given = _prepare(spec, arguments)
        out = _empty(arguments[0][0], len(kernel.results))
        _run(kernel, given, out)
        return out

    def fake(*arguments: Any) -> list[Tensor]:
        return _empty(arguments[0][0], len(spec(*arguments, uniform=()).results))

    def run_into(*arguments: Any, out: list[Tensor]) -> None:
        kernel, given = _prepare(spec, arguments)
        if _separate(given, out):
            _run(kernel, given, out)
            return
        results = _empty(arguments[0][0], len(kernel.results))
        _run(kernel, given, results)
        for t, r in zip(out, results, strict=True):
            t.copy_(r)

    def fake_into(*arguments: Any, out: list[Tensor]) -> None:
        return None

    _library.define(f"{name}({inputs}) -> Tensor[]")
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{name}", fake, lib=_library)
    into = f"{name}_into"
    _library.define(f"{into}({inputs}, *, Tensor(a!)[] out) -> ()")
    _library.impl(into, run_into, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{into}", fake_into, lib=_library)


def _spec_of(operation: Operation) -> Callable[..., Elementwise]:
    def spec(*arguments: list[Tensor], uniform: Sequence[int]) -> Elementwise:
        names = frozenset(operation.arguments[k] for k in uniform)
        fmt = FORMATS[arguments[0][0].dtype]
        return kernel(operation, fmt, *map(len, arguments), uniform=names)

    return spec


def _renormalize_spec(x: list[Tensor], terms: int, uniform: Sequence[int]) -> Elementwise:
    return renormalize_kernel(FORMATS[x[0].dtype], len(x), terms, bool(uniform))


for _operation in OPERATIONS:
    _inputs = ", ".join(f"Tensor[] {a}" for a in _operation.arguments)
    _register(f"expansion_{_operation.name}", _inputs, _spec_of(_operation))


def _settle_spec(x: list[Tensor], uniform: Sequence[int]) -> Elementwise:
    return settle_kernel(len(x), bool(uniform))


_register("expansion_renormalize", "Tensor[] x, int terms", _renormalize_spec)
_register("expansion_settle", "Tensor[] x", _settle_spec)
