"""Q and R of small matrices by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.reflection import reflection
from mcf.linalg.triangular import BLOCK
from mcf.tensor.copies import Copies
from mcf.tensor.factor_plans import Run, flat, new, through_float64
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_copy, _cpu = np.copyto, torch.device("cpu")
_FLOAT64 = torch.float64


def orthogonal(terms: int, a: Tensor, mode: str) -> Run | None:
    """Q and R of A = Q R, as many columns and rows as `mode` says; an empty Q for "r"."""
    if a.dtype is not _FLOAT64:
        return through_float64(orthogonal, terms, a, mode)
    *batch, m, n = a.shape
    count = min(m, n)
    height = m if mode == "complete" else count
    wanted = 0 if mode == "r" else height
    # The bound of `mcf.linalg.qr_factors`.
    if m > 2 * BLOCK:
        return None
    call = registry.on(a.device).prepare_reflection(reflection(terms), flat(a), wanted)
    if call is None:
        return None
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    left = torch.Size((*batch, m, wanted) if wanted else (0,))
    right = torch.Size((*batch, height, n))
    likes = new(left), new(right)
    below = np.tril(np.ones((height, n), dtype=bool), -1)
    rows = (..., slice(height), slice(None))

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor]:
        room = copies.taken(parts)
        q = [_empty_like(likes[0]) for _ in parts]
        call(room[1], [*map(_address, q)] if wanted else [])
        r = [_empty_like(likes[1]) for _ in parts]
        for x, c in zip(r, room[0], strict=True):
            array = _array(x)
            _copy(array, c[rows])
            _copy(array, 0.0, where=below)
        copies.freed(room)
        return fresh(q, left, _FLOAT64, _cpu), fresh(r, right, _FLOAT64, _cpu)

    return run
