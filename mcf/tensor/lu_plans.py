"""What becomes of L U of small matrices by plan: factors, solutions, inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.pivots import Permutations
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.linalg.lu_factors import SIDES
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, loop, narrowed, new
from mcf.tensor.gathered import elements_in_order
from mcf.tensor.launches import SMALL
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_copy, _cpu = np.copyto, torch.device("cpu")


def solution(terms: int, a: Tensor, b: Tensor) -> Run | None:
    """X with A X = B of square A, for vectors or matrices B."""
    n, batch = a.shape[-1], a.shape[:-2]
    if a.shape[-2] != n:
        return None
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    of, sides = (b.shape[:-1], 1) if vector else (b.shape[:-2], b.shape[-1])
    if b.shape[len(of)] != n or sides > SIDES or len(of) > len(batch):
        return None
    if any(s not in (1, t) for s, t in zip(reversed(of), reversed(batch), strict=False)):
        return None
    call = loop("lu", terms, a, sides)
    if call is None:
        return None
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    size = torch.Size((*batch, *b.shape[len(of) :]))
    like = new(size, a.dtype)

    def run(parts: Components, right: Components) -> MCFTensor | None:
        room = copies.taken(parts)
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            _copy(_array(x), _array(c))
        info, _ = call(room[1], [*map(_address, out)])
        copies.freed(room)
        return None if any(info) else fresh(out, size, like.dtype, _cpu)

    return run


def inverse(terms: int, a: Tensor) -> Run | None:
    """Of square A."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("lu", terms, a, a.shape[-1])
    if call is None:
        return None
    copies, size = Copies(terms, a.shape, range(a.ndim), a.dtype), a.shape
    like, eye = new(size, a.dtype), np.eye(a.shape[-1])
    sides = [eye, *(np.zeros(()) for _ in range(terms - 1))]

    def run(parts: Components) -> MCFTensor | None:
        room = copies.taken(parts)
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, sides, strict=True):
            _copy(_array(x), c)
        info, _ = call(room[1], [*map(_address, out)])
        copies.freed(room)
        return None if any(info) else fresh(out, size, like.dtype, _cpu)

    return run


def pivoted(terms: int, a: Tensor) -> Run | None:
    """L and U in one matrix, and pivots, of A with at least as many rows as columns."""
    if a.shape[-2] < a.shape[-1]:
        return None
    call = loop("lu", terms, a)
    if call is None:
        return None
    size, rows = a.shape, torch.Size((*a.shape[:-2], a.shape[-1]))
    like, numbers = new(size, a.dtype), new(rows, torch.int32)
    narrow = narrowed(math.prod(rows))

    def run(parts: Components) -> tuple[MCFTensor, Tensor] | None:
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, parts, strict=True):
            _copy(_array(x), _array(c))
        info, found = call([*map(_address, out)])
        if any(info):
            return None
        pivots = _empty_like(numbers)
        narrow([found.buffer_info()[0], _address(pivots)])
        return fresh(out, size, like.dtype, _cpu), pivots

    return run


def factors(terms: int, a: Tensor) -> Run | None:
    """P, L and U with P L U = A, of A with at least as many rows as columns."""
    rows, columns = a.shape[-2:]
    call = loop("lu", terms, a) if rows >= columns else None
    if call is None:
        return None
    few = _factors_of_few(call, terms, a) if a.numel() <= SMALL else None
    return few or _factors_of_many(call, terms, a)


def _factors_of_few(call: Any, terms: int, a: Tensor) -> Run | None:
    """The same in one native call, of no more than one thread takes."""
    *batch, rows, columns = a.shape
    count, elements, dtype = math.prod(batch), a.numel(), a.dtype
    item = dtype.itemsize
    sizes = [torch.Size((*batch, *s)) for s in ((rows, rows), (rows, columns), (columns, columns))]
    likes = [new(size, dtype) for size in sizes]
    # Copies, with the components of 0 and of 1 behind their elements, info and pivots in rooms.
    zero, one, number = elements, elements + 1, np.arange(elements).reshape(a.shape)
    constants = np.zeros((2, elements + 2), np.float64 if item == 8 else np.float32)
    constants[0, one] = 1.0
    given = 4 * terms
    copies = [*range(given, given + terms)]
    info, pivots, first, nothing = range(given + terms, given + terms + 4)
    above = np.triu(np.ones((rows, columns), dtype=bool), 1)
    below = np.tril(np.ones((columns, columns), dtype=bool), -1)
    low = np.where(above, zero, np.where(np.eye(rows, columns, dtype=bool), one, number))
    up = np.where(below, zero, number[..., :columns, :])
    p = np.full(sizes[0], zero)
    results = [range(terms * k, terms * (k + 1)) for k in (1, 2, 3)]
    steps: list[Step] = [
        Move([first, *[nothing] * (terms - 1)], copies, elements + 2, None, item),
        Move(range(terms), copies, elements, elements_in_order(a, range(a.ndim)), item),
        # Nobody asks which of them are singular.
        Launch(call, [*copies * 3, info, pivots]),
        *(Move(copies, to, i.size, i, item) for to, i in zip(results, (p, low, up), strict=True)),
        Launch(Permutations(count, rows, columns, item), [pivots, terms]),
    ]
    rooms = [*[item * (elements + 2)] * terms, 8 * count, 8 * count * columns]
    fixed = [c.ctypes.data for c in constants]
    program = Program.of(steps, given, rooms, fixed, constants)
    if program is None:
        return None

    def run(parts: Components) -> tuple[MCFTensor, ...]:
        made = [[_empty_like(like) for _ in parts] for like in likes]
        program([place for x in (parts, *made) for place in map(_address, x)])
        return tuple([fresh(x, s, dtype, _cpu) for x, s in zip(made, sizes, strict=True)])

    return run


def _factors_of_many(call: Any, terms: int, a: Tensor) -> Run | None:
    """The same of more elements, of which an index would take much memory."""
    *batch, rows, columns = a.shape
    sizes = [torch.Size((*batch, *s)) for s in ((rows, rows), (rows, columns), (columns, columns))]
    like, dtype = new(a.shape, a.dtype), a.dtype
    pivoted = Permutations(math.prod(batch), rows, columns, dtype.itemsize)
    permute = Program.of([Launch(pivoted, [0, 1])], 2)
    if permute is None:
        return None

    def run(parts: Components) -> tuple[MCFTensor, ...]:
        lu = [_empty_like(like).copy_(c) for c in parts]
        _, pivots = call([*map(_address, lu)])
        p = [torch.zeros(sizes[0], dtype=dtype, device=_cpu) for _ in parts]
        permute([pivots.buffer_info()[0], _address(p[0])])
        up = [c[..., :columns, :].triu() for c in lu]
        low = [c.tril_(-1) for c in lu]
        low[0].diagonal(0, -2, -1).fill_(1)
        made = zip((p, low, up), sizes, strict=True)
        return tuple([fresh(x, size, dtype, _cpu) for x, size in made])

    return run
