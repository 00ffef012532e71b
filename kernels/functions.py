"""The expansion algorithms on tensors, as opaque operators that `torch.compile` leaves alone.

An expansion is a tuple of tensors, largest component first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import algorithms, registry
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import Format, format_of

_library = torch.library.Library("mcf", "FRAGMENT")


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function on components: the algorithm, and the components of each argument by name."""

    algorithm: Algorithm
    arguments: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The operator's name under `torch.ops.mcf`."""
        return str(self.algorithm.__name__)


def _operation(algorithm: Algorithm, **arguments: int) -> Operation:
    return Operation(algorithm, tuple(arguments.items()))


TWO_SUM = _operation(algorithms.two_sum, a=1, b=1)
FAST_TWO_SUM = _operation(algorithms.fast_two_sum, a=1, b=1)
SPLIT = _operation(algorithms.split, a=1)
TWO_PROD = _operation(algorithms.two_prod, a=1, b=1)
GROW = _operation(algorithms.grow, x=2, a=1)
SCALE = _operation(algorithms.scale, x=2, a=1)
ADD = _operation(algorithms.add, x=2, y=2)
MUL = _operation(algorithms.mul, x=2, y=2)
RENORMALIZE = _operation(algorithms.renormalize, x=2)

OPERATIONS = (TWO_SUM, FAST_TWO_SUM, SPLIT, TWO_PROD, GROW, SCALE, ADD, MUL, RENORMALIZE)

# Every algorithm for two components returns as many.
TERMS = 2


@functools.cache
def kernel(operation: Operation, fmt: Format) -> Elementwise:
    """The kernel of an operation on one format; every operation rounds to the format."""
    names = parameters(operation.algorithm)
    results = tuple(f"r{k}" for k in range(TERMS))
    return Elementwise(
        name=f"{operation.name}_{fmt.name}",
        function=operation.algorithm,
        results=results,
        fields=(
            *(Field(n, fmt) for n in names),
            *(Field(r, fmt, read=False, written=True) for r in results),
        ),
        stores=tuple((r, r) for r in results),
        arithmetic=fmt,
        roundings=(("rc", fmt),),
    )


def _run(operation: Operation, *components: Tensor) -> tuple[Tensor, ...]:
    first = components[0]
    out = [torch.empty_like(first, memory_format=torch.contiguous_format) for _ in range(TERMS)]
    spec = kernel(operation, format_of(first.dtype))
    nothing = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    registry.run(spec, [[*components, *out]], nothing)
    return tuple(out)


def _fake(operation: Operation, *components: Tensor) -> tuple[Tensor, ...]:
    first = components[0]
    return tuple(
        torch.empty_like(first, memory_format=torch.contiguous_format) for _ in range(TERMS)
    )


for _op in OPERATIONS:
    _inputs = ", ".join(f"Tensor {n}" for n in parameters(_op.algorithm))
    _library.define(f"{_op.name}({_inputs}) -> ({', '.join(['Tensor'] * TERMS)})")
    _library.impl(_op.name, functools.partial(_run, _op), "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{_op.name}", functools.partial(_fake, _op), lib=_library)


def apply(operation: Operation, *arguments: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Check the arguments, broadcast them and run the operator."""
    tensors = check(operation, *arguments)
    result: tuple[Tensor, ...] = getattr(torch.ops.mcf, operation.name)(*tensors)
    return tuple(result)


def check(operation: Operation, *arguments: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The components of all arguments, broadcast.

    Raises:
        TypeError, ValueError, RuntimeError: for what the operation does not take.
    """
    flat: list[tuple[str, Tensor]] = []
    for (name, terms), argument in zip(operation.arguments, arguments, strict=True):
        flat += _components(operation.name, name, terms, argument)
    first_name, first = flat[0]
    format_of(first.dtype, f"{operation.name}: {first_name}")
    for name, t in flat:
        for what in ("dtype", "device"):
            if getattr(t, what) != getattr(first, what):
                raise TypeError(
                    f"{operation.name}: {name} has {what} {getattr(t, what)} and {first_name} has "
                    f"{getattr(first, what)}; convert one, nothing is rounded or moved silently"
                )
        if t.layout is not torch.strided:
            raise TypeError(
                f"{operation.name}: {name} has layout {t.layout}; only dense (torch.strided) "
                "tensors are allowed"
            )
        if t.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{operation.name}: {name} requires grad, and this function has no derivative; "
                "detach it or use torch.no_grad()"
            )
    try:
        return tuple(torch.broadcast_tensors(*(t for _, t in flat)))
    except RuntimeError:
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in flat)
        raise ValueError(f"{operation.name}: shapes do not broadcast: {shapes}") from None


def _components(
    function: str, name: str, terms: int, argument: Tensor | Sequence[Tensor]
) -> list[tuple[str, Tensor]]:
    if terms == 1:
        if not isinstance(argument, Tensor):
            raise TypeError(f"{function}: {name} must be a tensor, got {type(argument).__name__}")
        return [(name, argument)]
    if (
        isinstance(argument, Tensor)
        or not isinstance(argument, Sequence)
        or not all(isinstance(t, Tensor) for t in argument)
    ):
        raise TypeError(
            f"{function}: {name} must be a tuple of {terms} tensors, largest component first, got "
            f"{type(argument).__name__}"
        )
    if len(argument) != terms:
        raise ValueError(f"{function}: {name} must have {terms} components, got {len(argument)}")
    return [(f"{name}[{k}]", t) for k, t in enumerate(argument)]
