"""P, L and U of few small matrices by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.pivots import Permutations
from mcf.kernels.program import Launch, Step
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, loop, new
from mcf.tensor.launches import SMALL
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_cpu = torch.device("cpu")


def factors(terms: int, a: Tensor) -> Run | None:
    """P, L and U with P L U = A, of A with at least as many rows as columns."""
    rows, columns = a.shape[-2:]
    if a.numel() > SMALL:
        return None
    call = loop("lu", terms, a) if rows >= columns else None
    if call is None:
        return None
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    batch, dtype = a.shape[:-2], a.dtype
    sizes = [torch.Size((*batch, rows, rows)), a.shape, torch.Size((*batch, columns, columns))]
    likes = [new(size, a.dtype) for size in sizes]
    number = copies.numbers()
    above = np.triu(np.ones((rows, columns), dtype=bool), 1)
    below = np.tril(np.ones((columns, columns), dtype=bool), -1)
    low_of = np.where(np.eye(rows, columns, dtype=bool), copies.one, number)
    # The pivots come behind the results.
    pivoted = Permutations(math.prod(batch), rows, columns, dtype.itemsize)
    ones: Step = Launch(pivoted, [4 * terms, terms])
    take = copies.taking(
        np.full(sizes[0], copies.zero),
        np.where(above, copies.zero, low_of),
        np.where(below, copies.zero, number[..., :columns, :]),
        steps=[ones],
        more=1,
    )
    if take is None:
        return None

    def run(parts: Components) -> tuple[MCFTensor, ...] | None:
        room = copies.taken(parts)
        info, pivots = call(room[1])
        if any(info):
            return None
        p, low, up = ([_empty_like(like) for _ in parts] for like in likes)
        take([*room[1], *map(_address, (*p, *low, *up)), pivots.buffer_info()[0]])
        copies.freed(room)
        made = zip((p, low, up), sizes, strict=True)
        return tuple([fresh(x, size, dtype, _cpu) for x, size in made])

    return run
