"""Q and R of small matrices by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.real_diagonals import RealDiagonals
from mcf.kernels.reflection import reflection
from mcf.linalg.triangular import BLOCK
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, flat, new, through_float64
from mcf.tensor.gathered import elements_in_order
from mcf.tensor.launches import SMALL
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_copy, _cpu = np.copyto, torch.device("cpu")
_FLOAT64 = torch.float64

# Of the components of A those of Q and of R.
Factors = Callable[[Components], "tuple[list[Tensor], list[Tensor]]"]


def sizes(a: Tensor, mode: str) -> tuple[int, torch.Size, torch.Size]:
    """How many columns of Q are wanted; the sizes of Q, which is empty for "r", and of R."""
    *batch, m, n = a.shape
    height = m if mode == "complete" else min(m, n)
    wanted = 0 if mode == "r" else height
    return (
        wanted,
        torch.Size((*batch, m, wanted) if wanted else (0,)),
        torch.Size((*batch, height, n)),
    )


def orthogonal(terms: int, a: Tensor, mode: str) -> Run | None:
    """Q and R of A = Q R, as many columns and rows as `mode` says; an empty Q for "r"."""
    if a.dtype is not _FLOAT64:
        return through_float64(orthogonal, terms, a, mode)
    made = factors(terms, a, mode)
    if made is None:
        return None
    compute, (_, left, right) = made, sizes(a, mode)

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor]:
        q, r = compute(parts)
        return fresh(q, left, _FLOAT64, _cpu), fresh(r, right, _FLOAT64, _cpu)

    return run


def factors(terms: int, a: Tensor, mode: str, parts: int = 1) -> Factors | None:
    """What computes Q and R of float64 components, of `parts` of complex numbers."""
    # The bound of `mcf.linalg.qr_factors`.
    if a.shape[-2] > 2 * BLOCK:
        return None
    wanted, left, right = sizes(a, mode)
    loop = registry.on(a.device).prepare_reflection(reflection(terms, parts), flat(a), wanted)
    if loop is None:
        return None
    few = _of_few(loop, terms * parts, a, mode, parts) if a.numel() <= SMALL else None
    if few is not None or parts == 2:
        return few
    call, likes = loop, (new(left), new(right))
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    height, n = right[-2:]
    below = np.tril(np.ones((height, n), dtype=bool), -1)
    rows = (..., slice(height), slice(None))

    def run(given: Components) -> tuple[list[Tensor], list[Tensor]]:
        room = copies.taken(given)
        q = [_empty_like(likes[0]) for _ in given]
        call(room[1], [*map(_address, q)] if wanted else [])
        r = [_empty_like(likes[1]) for _ in given]
        for x, c in zip(r, room[0], strict=True):
            array = _array(x)
            _copy(array, c[rows])
            _copy(array, 0.0, where=below)
        copies.freed(room)
        return q, r

    return run


def _of_few(loop: Any, count: int, a: Tensor, mode: str, parts: int) -> Factors | None:
    """The same in one native call, of no more than one thread takes."""
    *batch, m, n = a.shape
    wanted, left, right = sizes(a, mode)
    likes, elements, height = (new(left), new(right)), a.numel(), right[-2]
    # Behind the elements of copies, which lie in rooms, is a zero.
    number = np.arange(elements).reshape(a.shape)[..., :height, :]
    upper = np.where(np.tril(np.ones((height, n), dtype=bool), -1), elements, number)
    nothing = np.zeros(elements + 1)
    given, r = range(count), range(count, 2 * count)
    q = range(2 * count, 3 * count)
    copies = [*range(3 * count, 4 * count)]
    steps: list[Step] = [
        Move([4 * count] * count, copies, elements + 1),
        Move(given, copies, elements, elements_in_order(a, range(a.ndim))),
        Launch(loop, [*copies, *(q if wanted else copies)]),
        Move(copies, r, upper.size, upper),
    ]
    if parts == 2:
        real = RealDiagonals(math.prod(batch), m, height, n, wanted)
        steps.append(Launch(real, [*r, *(q if wanted else ())]))
    rooms = [8 * (elements + 1)] * count
    program = Program.of(steps, 3 * count, rooms, [nothing.ctypes.data], nothing)
    if program is None:
        return None

    def run(x: Components) -> tuple[list[Tensor], list[Tensor]]:
        made = [[_empty_like(like) for _ in x] for like in likes]
        program([*map(_address, (*x, *made[1], *made[0]))])
        return made[0], made[1]

    return run
