"""Least squares of small matrices of full rank by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import FORMATS
from mcf.tensor.factor_plans import Run, flat, new
from mcf.tensor.product_plans import multiplied
from mcf.tensor.reflection_plans import orthogonal
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.tensor.triangle_plans import substitution

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_cpu, _INT64 = torch.device("cpu"), torch.int64


def least(terms: int, a: Tensor, b: Tensor) -> Run | None:
    """X with the least |A X - B| of A with no more columns than rows, and what torch has beside it.

    The steps are those of `mcf.linalg.least_squares.solve`: R X = Q^T B. A matrix that is not seen
    to have full rank is the operator's. B is a vector beside one matrix, or matrices.
    """
    m, n = a.shape[-2:]
    vector = a.ndim == 2 and b.shape == (m,)
    if m < n:
        return None
    if not vector and (b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]):
        return None
    factor = orthogonal(terms, a, "reduced")
    size = torch.Size((*a.shape[:-2], n, *(() if vector else b.shape[-1:])))
    triangles = new((*a.shape[:-2], n, n), a.dtype)
    given = new((*size, 1) if vector else size, a.dtype)
    solve = substitution(terms, triangles, given, True, False)
    if factor is None or solve is None:
        return None
    # Where `mcf.tensor.ops.spectral` sees a smaller rank.
    border = m * 2 * float(FORMATS[a.dtype].u ** terms)
    kind = np.float64 if a.dtype is torch.float64 else np.float32
    # Products have plans of one dimension of batches.
    turned = ((0, 2, 1), None) if a.ndim > 2 else ((1, 0), None)
    wide = a.ndim > 3
    left, second = (torch.Size(flat(x)) if wide else x.shape for x in (a, b))
    ranks, empty, none = new(a.shape[:-2], _INT64), new((0,), a.dtype), torch.Size((0,))

    def run(parts: Components, right: Components) -> tuple[Any, ...] | None:
        found = factor(parts)
        if found is None:
            return None
        q, r = found
        factors = COMPONENTS[terms](r.__dict__)
        sizes = np.abs(factors[0].numpy().diagonal(0, -2, -1)).reshape(-1, n)
        for low, top in zip(sizes.min(1).tolist(), sizes.max(1).tolist(), strict=True):
            # Rounded as the operator's; NaN is above no number.
            if not top > 0 or not float(kind(low / top)) > border:
                return None
        if wide:
            q, y = _shaped(COMPONENTS[terms](q.__dict__), left), _shaped(right, second)
        else:
            y = fresh([*right], second, a.dtype, _cpu)
        x = multiplied(q, y, turned)
        if x is None:
            return None
        solve([*map(_address, factors)], [*map(_address, COMPONENTS[terms](x.__dict__))])
        nothing = [fresh([_empty_like(empty) for _ in parts], none, a.dtype, _cpu) for _ in "ab"]
        x = _shaped(COMPONENTS[terms](x.__dict__), size) if wide else x
        return x, nothing[0], _empty_like(ranks).fill_(n), nothing[1]

    return run


def _shaped(x: Components, size: torch.Size) -> MCFTensor:
    return fresh([c.reshape(size) for c in x], size, x[0].dtype, _cpu)
