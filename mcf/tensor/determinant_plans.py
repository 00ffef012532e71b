"""Determinants of few small matrices, and their logarithms, by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, loop, new
from mcf.tensor.launches import Plan
from mcf.tensor.sums import SumPlan
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_cpu = torch.device("cpu")
_copy, _negative = np.copyto, np.negative


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


class _Room(NamedTuple):
    """Memory of a call: a diagonal's signs, its absolute values and their logarithms."""

    signs: Any
    sizes: list[Any]
    logarithms: Components
    places: list[int]


def signed_logarithm(terms: int, a: Tensor) -> Run | None:
    """The sign of the determinant of square A, and the logarithm of its absolute value."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("lu", terms, a)
    n, rows, size = a.shape[-1], a.shape[:-1], a.shape[:-2]
    likes = tuple(new(rows, a.dtype) for _ in range(terms))
    log = Plan.of_formula(Formula("log"), [likes])
    total = SumPlan.of(likes, -1, False, False)
    if call is None or log is None or total is None:
        return None
    copies, like = Copies(terms, a.shape, _turned(a), a.dtype), new(size, a.dtype)
    home = range(1, n + 1)
    matrices = range(0, n * math.prod(size), n)
    free: list[_Room] = []
    kind = np.float64 if a.dtype is torch.float64 else np.float32

    def made() -> _Room:
        sizes, out = ([np.empty(rows, kind) for _ in range(terms)] for _ in range(2))
        places = [c.ctypes.data for c in (*out, *sizes)] + log.behind
        return _Room(np.empty(rows, dtype=bool), sizes, tuple(map(torch.from_numpy, out)), places)

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor] | None:
        # A call's room is one that no other call has at the time.
        room = free.pop() if free else made()
        copied = copies.taken(parts)
        pivots = call(copied[1])[1]
        diagonal = [c.diagonal(0, -2, -1) for c in copied[0]]
        lead = diagonal[0].ravel().tolist()
        np.signbit(diagonal[0], out=room.signs)
        for x, c in zip(room.sizes, diagonal, strict=True):
            _copy(x, c)
            _negative(x, out=x, where=room.signs)
        copies.freed(copied)
        counted = log.launch(room.places)
        if counted is not None and counted[0]:
            return None
        found = total.run(room.logarithms)
        free.append(room)
        if found is None:
            return None
        signs = []
        for k in matrices:
            sign = 1.0
            for x, other, at in zip(lead[k : k + n], pivots[k : k + n], home, strict=True):
                sign *= (x > 0) - (x < 0)
                sign = sign if other == at else -sign
            signs.append(sign)
        out = [_empty_like(like) for _ in parts]
        _array(out[0]).reshape(-1)[:] = signs
        for x in out[1:]:
            _array(x).fill(0.0)
        return fresh(out, size, like.dtype, _cpu), found

    return run
