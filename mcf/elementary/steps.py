"""Elementwise steps of functions along a dimension, one kernel each.

A step is a program over tensors. The torch executor runs it; the others run its formula
(`mcf.elementary.formula_recording`), with the same bits, as a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mcf.elementary import formula_recording
from mcf.elementary.declarations import Compute
from mcf.elementary.format import computing_in, working
from mcf.elementary.fused import NO_SCALARS, declared, stored
from mcf.elementary.tables import Components, table
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import Format


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
def kernel(
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


def kernel_on(
    step: Step, fmt: Format, count: int, terms: tuple[int, ...], device: torch.device
) -> tuple[Elementwise, list[torch.Tensor]]:
    """Return the kernel of a step in the working format, and the tables that it reads."""
    register = working().format
    if not (step.enters or step.leaves):
        fmt = register
    spec = kernel(step, fmt, count, terms, register)
    with computing_in(register):
        return spec, [table(f.name, device) for f in spec.fields if f.table]


def run(
    step: Step,
    fmt: Format,
    count: int,
    given: Sequence[Components],
    out: Sequence[torch.Tensor] | None = None,
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
    spec, tables = kernel_on(step, fmt, count, tuple(map(len, given)), first.device)
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


def _into(out: Sequence[torch.Tensor] | None, found: Components) -> Components:
    """Store results in the given tensors, if any."""
    if out is None:
        return found
    return tuple(o.copy_(c) for o, c in zip(out, found, strict=True))
