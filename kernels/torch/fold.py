"""Folds as plain torch operations on lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.bind import Binder
from mcf.kernels.fold import BLOCK, CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.torch.primitives import primitives

State = tuple[Tensor, ...]
Combine = Callable[[State, State], State]


@functools.cache
def _functions(spec: Fold) -> tuple[Callable[..., State], Combine, Combine]:
    table: dict[str, Any] = primitives(FP64, FP64, {"rc": FP64})
    bind = Binder(lambda f: f, table)
    term = bind(spec.term)

    def expanded(*operands: State) -> State:
        """The term with its constants as tensors."""
        parts = term(*operands)
        like = parts[0]
        return tuple(p if isinstance(p, Tensor) else torch.full_like(like, p) for p in parts)

    return expanded, bind(spec.merge), bind(spec.combine)


def _tree(merge: Combine, parts: list[State]) -> State:
    while len(parts) > 1:
        parts = [merge(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def halve(combine: Combine, state: State) -> State:
    """Combine along the last dimension until one is left: j with j + ceil(c / 2)."""
    count = state[0].shape[-1]
    while count > 1:
        half = (count + 1) // 2
        low = tuple(s[..., : count - half] for s in state)
        high = tuple(s[..., half:count] for s in state)
        both = combine(low, high)
        state = tuple(
            torch.cat([b, s[..., count - half : half]], -1)
            for b, s in zip(both, state, strict=True)
        )
        count = half
    return tuple(s[..., 0] for s in state)


def sequence(spec: Fold, element: Callable[[int], list[State]], count: int) -> State:
    """Trees of GROUP terms while there are as many, then one by one."""
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
    """Fold [M, K] with K <= BLOCK."""
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
        part = term(*(tuple(c[:, start : start + LANES] for c in o) for o in operands))
        if state is None:
            state = part
        else:
            count = part[0].shape[1]
            both = combine(tuple(s[:, :count] for s in state), part)
            state = tuple(torch.cat([b, s[:, count:]], 1) for b, s in zip(both, state, strict=True))
        start += LANES
    assert state is not None
    return halve(combine, state)


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """See `mcf.kernels.fold.fold`."""
    length = operands[0][0].shape[1]
    blocks = []
    for start in range(0, length, BLOCK):
        part = [tuple(c[:, start : start + BLOCK].double() for c in o) for o in operands]
        blocks.append(_block(spec, part))
    combine = _functions(spec)[2]
    stacked = tuple(torch.stack(registers, -1) for registers in zip(*blocks, strict=True))
    return torch.stack(halve(combine, stacked))


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """See `mcf.kernels.fold.product`."""
    a = [c.double() for c in left]
    b = [c.double() for c in right]

    def element(k: int) -> list[State]:
        rows = tuple(c[:, :, k : k + 1] for c in a)
        columns = tuple(c[:, k : k + 1, :] for c in b)
        shape = torch.broadcast_shapes(rows[0].shape, columns[0].shape)
        return [tuple(c.expand(shape) for c in rows), tuple(c.expand(shape) for c in columns)]

    return torch.stack(sequence(spec, element, a[0].shape[2]))
