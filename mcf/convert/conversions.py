"""Compile conversions: one kernel per pair of formats and numbers of components.

The torch executor runs the program of `mcf.convert.rounding`. The others run its recorded formula
(`mcf.elementary.formula_recording`), with the same bits. It computes in the wider of both formats.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary import formula_recording
from mcf.elementary.fused import NO_SCALARS, declared, stored
from mcf.kernels import registry
from mcf.kernels.components import Components
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FORMATS, FP32, FP64, Format

# Smaller CPU inputs do not pay for compiling a kernel (some 0.1 s): the program takes about 0.1 ms.
FEWEST = 2048
# Small inputs have another path, integer arithmetic. It is faster than compiling a kernel of
# hundreds of operations, and slower than running it: compile after so many requests.
OFTEN = 256
_requests: Counter[Hashable] = Counter()
# A function of components, the dtype of the result and its number of components.
Program = Callable[[Sequence[Tensor], torch.dtype, int], Components]


@functools.cache
def formula(
    program: Program, source: Format, count: int, target: Format, terms: int
) -> formula_recording.Formula:
    """Record the formula of a conversion to another format or number of components.

    It computes in the wider of the two formats, float64 or float32.

    Args:
        program: the function that computes it.
        source: the format of the argument.
        count: the number of its components.
        target: the format of the result.
        terms: the number of its components.
    """

    def compute(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        assert fmt.dtype is not None
        return program(arguments[0], fmt.dtype, terms)

    name = f"{program.__name__}_{terms}_of_{source.name}"
    register = _register(source, target)
    return formula_recording.formula(
        name, compute, ("x",), target, (count,), register, source, terms
    )


def _register(source: Format, target: Format) -> Format:
    return FP64 if FP64 in (source, target) else FP32


@functools.cache
def kernel(
    program: Program, source: Format, count: int, target: Format, terms: int, small: bool = False
) -> Elementwise:
    """Return the kernel of a conversion formula.

    Its fields are the components of the result and those of the argument; those of 16 bits are
    float32 unless they may be `small` (`Executor.small`).
    """
    found, register = formula(program, source, count, target, terms), _register(source, target)
    given, held = (f if small else stored(f) for f in (source, target))
    return declared(found, {"x": count}, given, held, target, register)


def run(
    program: Program, components: Sequence[Tensor], dtype: torch.dtype, terms: int
) -> list[Tensor] | None:
    """Run a conversion as one kernel with new tensors as results.

    Return None if there is no kernel, or if an element needs a step that it lacks.
    """
    first = components[0]
    source, target = FORMATS[first.dtype], FORMATS[dtype]
    if first.numel() < (FEWEST if first.device.type == "cpu" else 1):
        return None
    if registry.executor_for(first.device) == "torch":
        return None
    small = registry.on(first.device).small
    spec = kernel(program, source, len(components), target, terms, small)
    kinds = [field.format.dtype for field in spec.fields if field.written]
    given = spec.fields[-1].format.dtype
    dense = [c.to(given).contiguous() for c in components]
    out = [torch.empty(first.shape, dtype=kind, device=first.device) for kind in kinds]
    counted = registry.run(spec, [[*out, *dense]], NO_SCALARS)
    if counted is not None and counted.item() != 0:
        return None
    return [c.to(dtype) for c in out]


_MOST = 1024
_address, _empty_like = Tensor.data_ptr, torch.empty_like
_prepared: dict[tuple[Any, ...], Callable[[Sequence[Tensor]], list[Tensor] | None] | None] = {}


def run_few(
    program: Program, components: Sequence[Tensor], dtype: torch.dtype, terms: int
) -> list[Tensor] | None:
    """Run a conversion of contiguous CPU tensors with fewer than `FEWEST` elements.

    Return None as `run` does, or if the conversion has not been requested often enough to compile
    it.
    """
    first = components[0]
    kind = (program, first.dtype, len(components), dtype, terms, registry.get_executor())
    key = (kind, first.shape)
    try:
        call = _prepared[key]
    except KeyError:
        _requests[kind] += 1
        if _requests[kind] < OFTEN:
            return None
        if len(_prepared) >= _MOST:
            _prepared.clear()
        call = _prepared[key] = _launch(program, first, len(components), dtype, terms)
    return None if call is None else call(components)


def _launch(
    program: Program, first: Tensor, count: int, dtype: torch.dtype, terms: int
) -> Callable[[Sequence[Tensor]], list[Tensor] | None] | None:
    """Prepare the kernel for `count` components like the first; return None if unsupported."""
    if not 0 < first.numel() < FEWEST or min(first.dtype.itemsize, dtype.itemsize) < 4:
        return None
    spec = kernel(program, FORMATS[first.dtype], count, FORMATS[dtype], terms)
    launch = registry.prepare(spec, [[first] * len(spec.fields)])
    if launch is None:
        return None
    of_row: Any = launch.row(np.ones((1, 0)))
    call = getattr(of_row, "call", of_row)
    with torch.inference_mode(False):
        like = torch.empty(first.shape, dtype=dtype, device=first.device)
    likes = [like] * sum(field.written for field in spec.fields)

    def converted(components: Sequence[Tensor]) -> list[Tensor] | None:
        out = [*map(_empty_like, likes)]
        counted = call([*map(_address, out), *map(_address, components)])
        return out if counted is None or not counted[0] else None

    return converted
