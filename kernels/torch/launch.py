"""Run a kernel as plain torch operations, a block of elements at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.algorithms.words import random16, stochastic
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import Format
from mcf.kernels.torch.primitives import primitives, rounding

# Bounds the memory of intermediate results, and keeps them in cache on a CPU. Powers of two, and so
# multiples of the block of any field.
BLOCK = {"cpu": 1 << 16}
DEVICE_BLOCK = 1 << 24


@functools.cache
def _bindings(register: Format, arithmetic: Format, roundings: Any, slots: Any) -> Binder:
    return Binder(lambda f: f, primitives(register, arithmetic, dict(roundings)), dict(slots))


def run(
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
    live: Tensor | None = None,
) -> Tensor | None:
    """Apply a kernel to each row of tensors; see `mcf.kernels.numba.launch.run`."""
    bind = _bindings(spec.register, spec.arithmetic, spec.roundings, spec.slots)
    function = bind(spec.function)
    sum_terms = bind(spec.sums) if spec.sums is not None else None
    corrected, correction, correct = "", "", None
    if spec.correction is not None:
        corrected, formula = spec.correction
        correction, correct = spec.call_of(formula), bind(formula)
    draw, round_up_or_down = bind(random16), bind(stochastic)
    stochastically = {f.name for f in spec.fields if f.stochastic}
    kind = spec.register.dtype
    home = rows[0][0].device
    total = torch.zeros(len(rows), spec.sum_count, dtype=torch.float64, device=home)
    for k, row in enumerate(rows):
        device = row[0].device
        size = row[0].numel()
        flat = {f.name: _flat(t) for f, t in zip(spec.fields, row, strict=True)}
        constants = {
            name: scalars[k, j].to(device=device, dtype=kind) for j, name in enumerate(spec.scalars)
        }
        constants["ZERO"] = torch.zeros((), dtype=kind, device=device)
        block = BLOCK.get(device.type, DEVICE_BLOCK)
        for start in range(0, size, block):
            part = slice(start, min(start + block, size))
            values = {f.name: _read(f, flat[f.name], part, kind) for f in spec.fields if f.read}
            values |= constants
            if spec.random:
                end = min(start + block, size)
                index = torch.arange(start, end, device=device).to(torch.int32)
                values["random"] = draw(index, *(constants[s] for s in streams.SCALARS))
            out = function(*(spec.argument(p, values) for p in parameters(spec.function)))
            values |= {f"out_{name}": x for name, x in zip(spec.results, out, strict=True)}
            formats = {f.name: f.format for f in spec.fields}
            for result, field in spec.ordered_stores():
                if correct is not None and result == corrected:
                    values[f"out_{result}"] = correct(*_named(correction, values))
                if field in stochastically:
                    rounded = round_up_or_down(values[f"out_{result}"], values["random"])
                else:
                    rounded = rounding(spec.register, formats[field])(values[f"out_{result}"])
                values[f"new_{field}"] = rounded
                stored = rounded.to(flat[field].dtype)
                if live is not None:
                    stored = torch.where(live != 0, stored, flat[field][part])
                flat[field][part] = stored
            if spec.sums is not None and sum_terms is not None:
                terms = sum_terms(*_named(spec.call_of(spec.sums), values))
                sums = torch.stack([t.sum(dtype=torch.float64) for t in terms])
                total[k] += sums if live is None else torch.where(live != 0, sums, 0.0)
    return total if spec.sums is not None else None


def _read(field: Field, flat: Tensor, part: slice, kind: torch.dtype | None) -> Tensor:
    """A copy of a field's elements for a part of the indices, in a register's format."""
    if field.block > 1:
        # A part begins where a block does.
        some = flat[part.start // field.block : -(-part.stop // field.block)]
        flat = some.repeat_interleave(field.block)[: part.stop - part.start]
    elif not field.uniform:
        flat = flat[part]
    return flat.to(kind, copy=True)


def _named(call: str, values: Mapping[str, Tensor]) -> list[Tensor]:
    """The arguments of a call in generated code."""
    return [values[name] for name in call.split(", ")]


def _flat(t: Tensor) -> Tensor:
    """The elements of a dense tensor in memory order, as a view."""
    return t.as_strided((t.numel(),), (1,))
