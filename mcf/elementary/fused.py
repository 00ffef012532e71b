"""Kernels of elementary functions, and of elementwise steps of functions along a dimension.

The torch executor runs the program of a function or step over tensors. The others run its formula
(`mcf.elementary.formula_recording`), with the same bits, as one kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import formula_recording
from mcf.elementary.declarations import PROGRAMS as PROGRAMS
from mcf.elementary.declarations import Compute
from mcf.elementary.format import computing_in, working
from mcf.elementary.tables import Components, table
from mcf.kernels import registry
from mcf.kernels.algorithms.primitives import ZERO
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.kernels.register_choice import registers_for


class Formula(NamedTuple):
    """An elementary function that can run as one kernel."""

    name: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return PROGRAMS[self.name].arguments


NO_SCALARS = torch.zeros(1, 0, dtype=torch.float64, device="cpu")


def is_rare(out_rare):  # type: ignore[no-untyped-def]
    """Return whether an element needs a step that its formula lacks."""
    return (out_rare > ZERO,)


def stored(fmt: Format) -> Format:
    """Return the format of the tensors that a kernel reads and writes.

    16-bit numbers are passed as float32: no executor loads them into float64 registers. In float32
    registers too, so that kernels differ only in the final rounding.
    """
    return FP32 if fmt in (BF16, FP16) else fmt


@functools.cache
def kernel(name: str, fmt: Format, *terms: int, register: Format = FP64) -> Elementwise:
    """Return the kernel of a function on expansions of these numbers of components.

    Its fields are the components of the result, those of the arguments, and tables, whose numbers
    have the format of the registers.
    """
    compute, arguments, *_ = PROGRAMS[name]
    found = formula_recording.formula(name, compute, arguments, fmt, terms, register)
    held = stored(fmt)
    return declared(found, dict(zip(arguments, terms, strict=True)), held, held, fmt, register)


def declared(
    found: formula_recording.Formula,
    arguments: Mapping[str, int],
    given: Format,
    held: Format,
    fmt: Format,
    register: Format,
) -> Elementwise:
    """Return the kernel of a formula.

    Args:
        found: the formula.
        arguments: the number of components of each argument.
        given: the format of the argument tensors.
        held: the format of the result tensors.
        fmt: the format to which `narrow` rounds in float32 registers; in float64 ones it is `held`.
        register: the format of the registers.
    """
    results = tuple(f"r{k}" for k in range(found.results))
    groups = tuple((a, tuple(f"{a}{k}" for k in range(n))) for a, n in arguments.items())
    return Elementwise(
        name=found.function.__name__,
        function=found.function,
        results=(*results, "rare") if found.partial else results,
        fields=(
            *(Field(r, held, read=False, written=True) for r in results),
            *(Field(c, given) for _, names in groups for c in names),
            *(Field(t, register, uniform=True, table=True) for t in found.tables),
        ),
        stores=tuple((r, r) for r in results),
        arithmetic=register,
        roundings=(("rc", register), ("narrow", held if register is FP64 else fmt)),
        groups=groups,
        rounded=results,
        long=True,
        sums=is_rare if found.partial else None,
        sum_count=int(found.partial),
        counts=int(found.partial),
    )


def is_known(name: str) -> bool:
    """Return whether a function runs as one kernel."""
    return name in PROGRAMS and PROGRAMS[name].fused


def kernel_for(
    name: str, fmt: Format, terms: Sequence[int], device: torch.device
) -> tuple[Elementwise, list[Tensor]] | None:
    """Return the kernel of a function on a device, and its tables, which are its last fields.

    It uses the registers that are chosen for the format on the device.
    """
    if not is_known(name) or registry.executor_for(device) == "torch":
        return None
    register = registers_for(fmt, device)
    spec = kernel(name, fmt, *terms, register=register)
    with computing_in(register):
        return spec, [table(f.name, device) for f in spec.fields if f.table]


def run(
    name: str, fmt: Format, terms: Sequence[int], given: Sequence[Tensor], out: Sequence[Tensor]
) -> bool:
    """Compute a function on components in one kernel.

    Return False if there is no kernel, or if an element needs a step that it lacks: then the
    contents of `out` are not usable.
    """
    found = kernel_for(name, fmt, terms, given[0].device)
    if found is None:
        return False
    spec, tables = found
    dtype = stored(fmt).dtype
    dense = [c.to(dtype).contiguous() for c in given]
    results = [c if c.dtype == dtype else torch.empty_like(c, dtype=dtype) for c in out]
    rare = registry.run(spec, [[*results, *dense, *tables]], NO_SCALARS)
    for target, c in zip(out, results, strict=True):
        if target is not c:
            target.copy_(c)
    return rare is None or rare.item() == 0


class Step(NamedTuple):
    """A program from floats to floats.

    Args:
        name: the name of the step.
        compute: the program: arguments, the function's format and a number of components.
        arguments: their names.
        enters: whether the arguments have the function's format; else they have that of the
            registers.
        leaves: whether the results have the function's format.
    """

    name: str
    compute: Compute
    arguments: tuple[str, ...]
    enters: bool = False
    leaves: bool = False


@functools.cache
def step_kernel(
    step: Step, fmt: Format, count: int, terms: tuple[int, ...], register: Format
) -> Elementwise:
    """Return the kernel of a step.

    Args:
        step: the step.
        fmt: the function's format; that of the registers if neither arguments nor results have it.
        count: the number of components passed to the program.
        terms: the number of floats of each argument.
        register: the format of the registers.
    """
    given = fmt if step.enters else register
    name = f"{step.name}_{count}"
    found = formula_recording.formula(
        name, step.compute, step.arguments, fmt, terms, register, given, count
    )
    arguments = dict(zip(step.arguments, terms, strict=True))
    # Results of another format have already been rounded to it.
    held = stored(fmt) if step.leaves else register
    return declared(found, arguments, stored(given), held, fmt, register)


def step_kernel_on(
    step: Step, fmt: Format, count: int, terms: tuple[int, ...], device: torch.device
) -> tuple[Elementwise, list[Tensor]]:
    """Return the kernel of a step in the working format, and the tables that it reads."""
    register = working().format
    if not (step.enters or step.leaves):
        fmt = register
    spec = step_kernel(step, fmt, count, terms, register)
    with computing_in(register):
        return spec, [table(f.name, device) for f in spec.fields if f.table]


def run_step(
    step: Step,
    fmt: Format,
    count: int,
    given: Sequence[Components],
    out: Sequence[Tensor] | None = None,
) -> Components:
    """Run a step on contiguous components of one shape, in the working format.

    Args:
        step: the step.
        fmt: the function's format.
        count: the number of components passed to its program.
        given: its arguments.
        out: tensors for the results, in their format.
    """
    first = given[0][0]
    if registry.executor_for(first.device) == "torch" or first.numel() == 0:
        return _into(out, step.compute(tuple(given), fmt, count))
    spec, tables = step_kernel_on(step, fmt, count, tuple(map(len, given)), first.device)
    kinds = [field.format.dtype for field in spec.fields if field.written]
    dense = [c.to(stored(fmt).dtype) if step.enters else c for x in given for c in x]
    if out is not None and all(
        c.dtype is kind and c.is_contiguous() for c, kind in zip(out, kinds, strict=True)
    ):
        results = [*out]
    else:
        results = [torch.empty_like(first, dtype=kind) for kind in kinds]
    registry.run(spec, [[*results, *dense, *tables]], NO_SCALARS)
    if out is not None and results[0] is out[0]:
        return tuple(results)
    return _into(out, tuple(c.to(fmt.dtype) for c in results) if step.leaves else tuple(results))


def _into(out: Sequence[Tensor] | None, found: Components) -> Components:
    """Store results in the given tensors, if any."""
    if out is None:
        return found
    return tuple(o.copy_(c) for o, c in zip(out, found, strict=True))
