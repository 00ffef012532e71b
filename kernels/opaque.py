"""Register the operations as opaque operators `torch.ops.mcf.*` for `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise, parameters
from mcf.kernels.formats import FORMATS
from mcf.kernels.operators import (
    BARE,
    COMPARISONS,
    COMPLEX,
    OPERATIONS,
    TRANSFORMS,
    Operation,
    kernel,
    renormalize_kernel,
    result_dtypes,
    settle_kernel,
)

_library = torch.library.Library("mcf", "FRAGMENT")

_NO_SCALARS = torch.zeros(1, 0, dtype=torch.float64, device="cpu")

# Operands with at most this many elements are copied if they are not contiguous.
_FEW = 1024

# A function from an operator's arguments to its kernel; `uniform` lists the arguments that are one
# number.
Maker = Callable[..., Elementwise]


def _run(spec: Elementwise, given: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    # A kernel stores booleans as bytes.
    stored = [t.view(torch.int8) if t.dtype is torch.bool else t for t in out]
    registry.run(spec, [[*stored, *given]], _NO_SCALARS)


def _empty(spec: Elementwise, like: Tensor) -> list[Tensor]:
    """Return new tensors for the results of a kernel, of one shape and device."""
    kinds = result_dtypes(spec)
    return [torch.empty_like(like, dtype=k, memory_format=torch.contiguous_format) for k in kinds]


def _one_element(group: Sequence[Tensor]) -> bool:
    """Return whether a group of components is one number, expanded to more elements."""
    return all(t.numel() > 1 and not any(t.stride()) for t in group)


def _prepare(make: Maker, arguments: Sequence[Any]) -> tuple[Elementwise, list[Tensor]]:
    """Return the kernel for an operator's arguments, and the tensors it reads."""
    uniform = []
    given = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, list):
            if not argument[0].is_contiguous() and _one_element(argument):
                uniform.append(position)
                argument = [t.as_strided((), ()) for t in argument]
            given += argument
    return make(*arguments, uniform=uniform), given


def _computed(make: Maker, arguments: Sequence[Any]) -> list[Tensor]:
    spec, given = _prepare(make, arguments)
    out = _empty(spec, arguments[0][0])
    if out[0].numel() <= _FEW and out[0].is_cpu:
        # Copying is faster than analysing the layout of such tensors.
        given = [t.contiguous() for t in given]
    _run(spec, given, out)
    return out


def _maker(operation: Operation) -> Maker:
    def make(*arguments: list[Tensor], uniform: Sequence[int]) -> Elementwise:
        names = frozenset([operation.arguments[k] for k in uniform])
        fmt = FORMATS[arguments[0][0].dtype]
        return kernel(operation, fmt, *map(len, arguments), uniform=names)

    return make


def _register(name: str, inputs: str, make: Maker) -> None:
    """Define an operator that returns new tensors.

    Args:
        name: under `torch.ops.mcf`.
        inputs: the schema of its arguments: lists of tensors, then integers.
        make: the kernel for these arguments and the positions of those that are one number.
    """

    def run(*arguments: Any) -> list[Tensor]:
        return _computed(make, arguments)

    def fake(*arguments: Any) -> list[Tensor]:
        return _empty(make(*arguments, uniform=()), arguments[0][0])

    _library.define(f"{name}({inputs}) -> Tensor[]")
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{name}", fake, lib=_library)


def _register_transform(operation: Operation) -> None:
    """Define the operator of a function with a fixed number of components: tensors, not lists."""
    algorithm = operation.algorithms[1]
    terms = operation.terms(())

    def run(*components: Tensor) -> tuple[Tensor, ...]:
        spec = kernel(operation, FORMATS[components[0].dtype])
        out = _empty(spec, components[0])
        _run(spec, components, out)
        return tuple(out)

    def fake(*components: Tensor) -> tuple[Tensor, ...]:
        return tuple(_empty(kernel(operation, FORMATS[components[0].dtype]), components[0]))

    inputs = ", ".join(f"Tensor {p}" for p in parameters(algorithm))
    _library.define(f"{operation.name}({inputs}) -> ({', '.join(['Tensor'] * terms)})")
    _library.impl(operation.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mcf::{operation.name}", fake, lib=_library)


def _renormalize_maker(x: list[Tensor], terms: int, uniform: Sequence[int]) -> Elementwise:
    return renormalize_kernel(FORMATS[x[0].dtype], len(x), terms, bool(uniform))


def _settle_maker(x: list[Tensor], uniform: Sequence[int]) -> Elementwise:
    return settle_kernel(len(x), bool(uniform), FORMATS[x[0].dtype])


for _operation in TRANSFORMS:
    _register_transform(_operation)
for _operation in (*OPERATIONS, *COMPARISONS, *COMPLEX, *BARE):
    _inputs = ", ".join(f"Tensor[] {a}" for a in _operation.arguments)
    _register(_operation.operator, _inputs, _maker(_operation))
_register("expansion_renormalize", "Tensor[] x, int terms", _renormalize_maker)
_register("expansion_settle", "Tensor[] x", _settle_maker)
