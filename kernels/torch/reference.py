"""The executor that all others must agree with: plain torch operations on any device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import fold, streams
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import DRAWN, Elementwise, Field, parameters
from mcf.kernels.executor import Executor
from mcf.kernels.fold import CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import Format
from mcf.kernels.layouts import sums_of_nothing
from mcf.kernels.torch.registers import primitives, rounding

# Block sizes bound the memory of intermediate results, and keep them in cache on a CPU.
BLOCK = {"cpu": 1 << 16}
DEVICE_BLOCK = 1 << 24

State = tuple[Tensor, ...]
Combine = Callable[[State, State], State]


class Reference(Executor):
    """Run kernels as PyTorch operations, one block of elements at a time; folds work on lanes."""

    name = "torch"

    def run(
        self,
        spec: Elementwise,
        rows: Sequence[Sequence[Tensor]],
        scalars: Tensor,
        live: Tensor | None = None,
    ) -> Tensor | None:
        bind = _bindings(spec.register, spec.arithmetic, spec.roundings, spec.slots)
        function = bind(spec.function)
        sum_terms = bind(spec.sums) if spec.sums is not None else None
        helpers = {name: bind(each) for name, each in spec.helpers().items()}
        corrected, correction = "", ""
        if spec.correction is not None:
            corrected, formula = spec.correction
            correction = spec.call_of(formula)
        fields = {f.name: f for f in spec.fields}
        kind, home = spec.register.dtype, rows[0][0].device
        total = sums_of_nothing(spec, len(rows), home)
        numbers = scalars.to(kind)
        for k, row in enumerate(rows):
            device = row[0].device
            size = row[0].numel()
            flat = {f.name: _flat(t) for f, t in zip(spec.fields, row, strict=True)}
            constants = {
                name: numbers[k, j].to(device=device) for j, name in enumerate(spec.scalars)
            }
            constants["ZERO"] = torch.zeros((), dtype=kind, device=device)
            block = BLOCK.get(device.type, DEVICE_BLOCK)
            for start in range(0, size, block):
                part = slice(start, min(start + block, size))
                values = {f.name: _read(f, flat[f.name], part, kind) for f in spec.fields if f.read}
                values |= constants
                for code in (c for c in spec.codes if fields[c.field].read):
                    given = [values[name] for name in (code.field, *code.beside)]
                    values[code.field] = helpers[f"decode_{code.field}"](*given)
                if spec.random:
                    end = min(start + block, size)
                    index = torch.arange(start, end, device=device).to(torch.int32)
                    values |= _drawn(spec, helpers, index, constants)
                out = function(*[spec.argument(p, values) for p in parameters(spec.function)])
                values |= {f"out_{name}": x for name, x in zip(spec.results, out, strict=True)}
                for result, field in spec.ordered_stores():
                    if result == corrected:
                        values[f"out_{result}"] = helpers["correct"](*_named(correction, values))
                    kept, rounded = _kept(spec, helpers, values, result, fields[field])
                    values |= {f"new_{field}": rounded, f"kept_{field}": kept}
                    cells, stored = _cells(fields[field], part), _packed(fields[field], kept)
                    stored = stored.to(flat[field].dtype)
                    if live is not None:
                        stored = torch.where(live != 0, stored, flat[field][cells])
                    flat[field][cells] = stored
                if spec.sums is not None and sum_terms is not None and total is not None:
                    terms = sum_terms(*_named(spec.call_of(spec.sums), values))
                    sums = torch.stack([t.sum(dtype=torch.float64) for t in terms])
                    total[k] += sums if live is None else torch.where(live != 0, sums, 0.0)
        return total

    def fold(self, spec: Fold, operands: list[list[Tensor]]) -> Tensor:
        length = operands[0][0].shape[1]
        blocks = []
        for start in range(0, length, fold.BLOCK):
            block = [[c[:, start : start + fold.BLOCK] for c in o] for o in operands]
            part = [_wide(spec, o) for o in block]
            blocks.append(_block(spec, part))
        combine = _functions(spec)[2]
        stacked = tuple(torch.stack(registers, -1) for registers in zip(*blocks, strict=True))
        return torch.stack(halve(combine, stacked))

    def product(self, spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
        a, b = _wide(spec, left), _wide(spec, right)

        def element(k: int) -> list[State]:
            rows = tuple(c[:, :, k : k + 1] for c in a)
            columns = tuple(c[:, k : k + 1, :] for c in b)
            shape = torch.broadcast_shapes(rows[0].shape, columns[0].shape)
            return [tuple(c.expand(shape) for c in rows), tuple(c.expand(shape) for c in columns)]

        return torch.stack(sequence(spec, element, a[0].shape[2]))


@functools.cache
def _bindings(register: Format, arithmetic: Format, roundings: Any, slots: Any) -> Binder:
    return Binder(lambda f: f, primitives(register, arithmetic, dict(roundings)), dict(slots))


def _read(field: Field, flat: Tensor, part: slice, kind: torch.dtype | None) -> Tensor:
    """Return a copy of part of a field's elements, in the register's dtype."""
    if not field.uniform:
        flat = flat[_cells(field, part)]
    if field.format.packed > 1:
        flat = torch.stack((flat & 15, flat >> 4), -1).view(-1)
    return flat.to(kind, copy=True)


def _cells(field: Field, part: slice) -> slice:
    """Return the range of a field's elements for a range of indices that starts at an even one."""
    return slice(part.start // field.format.packed, part.stop // field.format.packed)


def _packed(field: Field, kept: Tensor) -> Tensor:
    """Return the elements that store some numbers, packed if the format packs two."""
    if field.format.packed == 1:
        return kept
    first, second = kept.to(torch.uint8).view(-1, 2).unbind(-1)
    return first | second << 4


def _drawn(
    spec: Elementwise,
    helpers: Mapping[str, Callable[..., Any]],
    index: Tensor,
    constants: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the random bits of some elements, by their names in generated code."""
    found = {}
    if "draw" in helpers:
        found["random"] = helpers["draw"](index, *(constants[s] for s in streams.WEIGHT))
    if "draw_pair" in helpers:
        pair = helpers["draw_pair"](index, *(constants[s] for s in streams.MOMENTS))
        found |= dict(zip((DRAWN["first"], DRAWN["second"]), pair, strict=True))
    return found


def _kept(
    spec: Elementwise,
    helpers: Mapping[str, Callable[..., Any]],
    values: Mapping[str, Tensor],
    result: str,
    field: Field,
) -> tuple[Tensor, Tensor]:
    """Return the stored form of a result, and the number that it represents."""
    number, random = values[f"out_{result}"], values.get(DRAWN[field.draw])
    for code in spec.codes:
        if code.field == field.name:
            results = {name: r for r, name in spec.stores}
            given = [x for b in code.beside for x in (f"out_{results[b]}", spec.kept(b))]
            kept = helpers[f"encode_{code.field}"](number, random, *(values[x] for x in given))
            beside = [values[f"new_{b}"] for b in code.beside]
            return kept, helpers[f"decode_{code.field}"](kept, *beside)
    if field.rounding is not None:
        rounded = helpers[f"stochastic_{field.name}"](number, random)
    else:
        rounded = rounding(spec.register, field.format)(number)
    return rounded, rounded


def _named(call: str, values: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the arguments of a call in generated code."""
    return [values[name] for name in call.split(", ")]


def _flat(t: Tensor) -> Tensor:
    """Return the elements of a dense tensor in memory order, as a view."""
    return t.as_strided((t.numel(),), (1,))


def _wide(spec: Fold, components: Sequence[Tensor]) -> State:
    """Return components converted to the registers of a fold."""
    assert spec.register.dtype is not None
    return tuple([c.to(spec.register.dtype) for c in components])


@functools.cache
def _functions(spec: Fold) -> tuple[Callable[..., State], Combine, Combine]:
    table = primitives(spec.register, spec.register, {"rc": spec.register})
    bind = Binder(lambda f: f, table)
    term = bind(spec.term)

    def expanded(*operands: State) -> State:
        """Evaluate the term, with its constants expanded to tensors."""
        parts = term(*operands)
        like = parts[0]
        return tuple([p if isinstance(p, Tensor) else torch.full_like(like, p) for p in parts])

    return expanded, bind(spec.merge), bind(spec.combine)


def _tree(merge: Combine, parts: list[State]) -> State:
    while len(parts) > 1:
        parts = [merge(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def halve(combine: Combine, state: State) -> State:
    """Combine j with j + ceil(c / 2) along the last dimension until one element is left."""
    left = torch.stack(state)
    while (count := left.shape[-1]) > 1:
        half = (count + 1) // 2
        both = combine(left[..., : count - half].unbind(), left[..., half:].unbind())
        left = torch.cat([torch.stack(both), left[..., count - half : half]], -1)
    return left[..., 0].unbind()


def sequence(spec: Fold, element: Callable[[int], list[State]], count: int) -> State:
    """Fold as one lane: trees of GROUP terms as long as possible, then term by term."""
    term, merge, combine = _functions(spec)
    state: State | None = None
    k = 0
    while k < count:
        if k + GROUP <= count:
            part = _tree(merge, [term(*element(k + i)) for i in range(GROUP)])
            k += GROUP
        else:
            part = term(*element(k))
            k += 1
        state = part if state is None else combine(state, part)
    assert state is not None
    return state


def _block(spec: Fold, operands: list[State]) -> State:
    """Fold [M, K] with K <= fold.BLOCK."""
    term, merge, combine = _functions(spec)
    length = operands[0][0].shape[1]
    state: State | None = None
    start = 0
    while start + CHUNK <= length:
        # [M, lanes / STEP, GROUP, STEP]
        chunk = [
            tuple(c[:, start : start + CHUNK].unflatten(1, (-1, GROUP, STEP)) for c in operand)
            for operand in operands
        ]
        terms = [
            term(*(tuple(c[:, :, r].flatten(1) for c in operand) for operand in chunk))
            for r in range(GROUP)
        ]
        part = _tree(merge, terms)
        state = part if state is None else combine(state, part)
        start += CHUNK
    while start < length:
        part = term(*[tuple([c[:, start : start + LANES] for c in o]) for o in operands])
        if state is None:
            state = part
        else:
            count = part[0].shape[1]
            both = combine(tuple(s[:, :count] for s in state), part)
            state = tuple(torch.cat([b, s[:, count:]], 1) for b, s in zip(both, state, strict=True))
        start += LANES
    assert state is not None
    return halve(combine, state)


EXECUTOR = Reference()
