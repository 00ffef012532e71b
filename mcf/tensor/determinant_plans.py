"""Determinants of small matrices, and their logarithms, by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import log
from mcf.elementary.fused import Formula
from mcf.kernels import operations
from mcf.kernels.operators import ABS
from mcf.kernels.pivots import Signs
from mcf.kernels.program import Launch, Program, Step
from mcf.reductions import sum as summed
from mcf.tensor.chain_programs import Chain
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, loop, new
from mcf.tensor.launches import SMALL
from mcf.tensor.sums import SumPlan
from mcf.tensor.tensor import Components, MCFTensor, fresh, wrap

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_cpu = torch.device("cpu")


def _turned(a: Tensor) -> tuple[int, ...]:
    """The order of a matrix's dimensions that a determinant factorises, see `ops.linalg`."""
    order = tuple(range(a.ndim))
    return (*order[:-2], order[-1], order[-2]) if a.is_contiguous() else order


def determinant(terms: int, a: Tensor) -> Run | None:
    """Of square A."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("lu", terms, a, 0, True)
    if call is None:
        return None
    copies, size = Copies(terms, a.shape, _turned(a), a.dtype), a.shape[:-2]
    like = new(size, a.dtype)

    def run(parts: Components) -> MCFTensor:
        room = copies.taken(parts)
        out = [_empty_like(like) for _ in parts]
        call(room[1], None, [*map(_address, out)])
        copies.freed(room)
        return fresh(out, size, like.dtype, _cpu)

    return run


def _logarithm_of_size(o: Any, x: Any) -> Any:
    """log(|x|)."""
    return o(Formula("log"), o(ABS, x))


def signed_logarithm(terms: int, a: Tensor) -> Run | None:
    """The sign of the determinant of square A, and the logarithm of its absolute value."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("lu", terms, a)
    if call is None:
        return None
    n, rows, size = a.shape[-1], a.shape[:-1], a.shape[:-2]
    likes = tuple(new(rows, a.dtype) for _ in range(terms))
    total = SumPlan.of(likes, -1, False, False)
    if total is None:
        return _of_many(call, terms, a)
    copies, like = Copies(terms, a.shape, _turned(a), a.dtype), new(size, a.dtype)
    diagonals = copies.numbers().diagonal(0, -2, -1)
    ones = wrap([torch.ones(rows, dtype=a.dtype, device="cpu")] * terms)
    logarithms = Chain.of(_logarithm_of_size, [ones], [(range(terms), diagonals)], SMALL)
    if logarithms is None:
        return None
    # Copies, pivots, signs and logarithms are given; rows of logarithms are in rooms.
    count, item = math.prod(size), a.dtype.itemsize
    at = 3 * terms + 1
    given, signs = [*range(terms)], [*range(terms + 1, 2 * terms + 1)]
    found = [*range(2 * terms + 1, at)]
    logs = [*range(at, at + terms)]
    program = Program.of(
        [
            Launch(Signs(count, n, terms, item), [0, terms, *signs]),
            Launch(logarithms.program, [*given, *logs]),
            Launch(total.program, [*logs, *found]),
        ],
        at,
        [item * count * n] * terms,
    )
    if program is None:
        return None

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor] | None:
        copied = copies.taken(parts)
        pivots = call(copied[1])[1]
        sign = [_empty_like(like) for _ in parts]
        out = [_empty_like(like) for _ in parts]
        places = [*copied[1], pivots.buffer_info()[0], *map(_address, (*sign, *out))]
        done = program(places)
        copies.freed(copied)
        if not done:
            return None
        return fresh(sign, size, like.dtype, _cpu), fresh(out, size, like.dtype, _cpu)

    return run


def _of_many(call: Any, terms: int, a: Tensor) -> Run | None:
    """The same of many matrices, whose logarithms and sums are operators."""
    size, item = a.shape[:-2], a.dtype.itemsize
    copies, like = Copies(terms, a.shape, _turned(a), a.dtype), new(size, a.dtype)
    signs: Step = Launch(Signs(math.prod(size), a.shape[-1], terms, item), [*range(terms + 2)])
    program = Program.of([signs], terms + 2)
    if program is None:
        return None

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor]:
        copied = copies.taken(parts)
        pivots = call(copied[1])[1]
        sign = [_empty_like(like) for _ in parts]
        program([copied[1][0], pivots.buffer_info()[0], *map(_address, sign)])
        diagonal = tuple(torch.from_numpy(c).diagonal(0, -2, -1) for c in copied[0])
        out = summed(log(operations.abs(diagonal)), -1)
        copies.freed(copied)
        return fresh(sign, size, like.dtype, _cpu), fresh(out, size, like.dtype, _cpu)

    return run
