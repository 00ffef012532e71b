"""The executor that all others must agree with: plain torch operations on any device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.kernels import fold
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.executor import Executor
from mcf.kernels.fold import CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.layouts import sums_of_nothing
from mcf.kernels.statements import written
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
        function = _function_of(spec)
        names = [f.name for f in spec.fields]
        read = [k for k, f in enumerate(spec.fields) if f.read]
        stores = [names.index(field) for _, field in spec.stores]
        kind = spec.register.dtype
        total = sums_of_nothing(spec, len(rows), rows[0][0].device)
        numbers = scalars.to(kind)
        for k, row in enumerate(rows):
            device, size = row[0].device, row[0].numel()
            flat = [_flat(t) for t in row]
            constants = [numbers[k, j].to(device=device) for j in range(len(spec.scalars))]
            constants.append(torch.zeros((), dtype=kind, device=device))
            block = BLOCK.get(device.type, DEVICE_BLOCK)
            for start in range(0, size, block):
                part = slice(start, min(start + block, size))
                i: Tensor | None = None
                if spec.random:
                    i = torch.arange(start, part.stop, device=device).to(torch.int32)
                given = [_read(spec.fields[j], flat[j], part, kind) for j in read]
                stored, terms = function(i, *given, *constants)
                for j, number in zip(stores, stored, strict=True):
                    cells = _cells(spec.fields[j], part)
                    kept = _packed(spec.fields[j], number).to(flat[j].dtype)
                    if live is not None:
                        kept = torch.where(live != 0, kept, flat[j][cells])
                    flat[j][cells] = kept
                if total is not None:
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
def _function_of(spec: Elementwise) -> Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Return a kernel's statements as a function of an index, fields, scalars and zero.

    It returns what is stored, in the order of `stores`, and the terms of sums.
    """
    table = primitives(spec.register, spec.arithmetic, dict(spec.roundings))
    bind = Binder(lambda f: f, table, dict(spec.slots))
    names = {name: bind(f) for name, f in ({"function": spec.function} | spec.helpers()).items()}
    coded = {code.field for code in spec.codes}
    for f in spec.fields:
        if f.written and f.name not in coded:
            names[f"round_{f.name}"] = rounding(spec.register, f.format)
    stored, terms = ", ".join(spec.kept(field) for _, field in spec.stores), "()"
    if spec.sums is not None:
        names["sum_terms"], terms = bind(spec.sums), f"sum_terms({spec.call_of(spec.sums)})"
    lines = [
        *spec.decode_statements(),
        *spec.draw_statements("i"),
        f"{spec.outputs()} = function({spec.call()})",
        *spec.store_statements(),
        f"return ({stored},), {terms}",
    ]
    given = ("i", *(f.name for f in spec.fields if f.read), *spec.scalars, "ZERO")
    filename = f"<mcf torch {spec.name}>"
    return written("block", ", ".join(given), lines, "A block.", filename, **names)


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
