"""Eigenvalues and singular values of few small matrices by plan: `mcf.tensor.factor_plans`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.kernels.decomposition import DONE
from mcf.linalg.singular import at_once
from mcf.linalg.whole import prepared
from mcf.tensor.factor_plans import Run, new, through_float64
from mcf.tensor.launches import SMALL
from mcf.tensor.tensor import Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64, _cpu = torch.float64, torch.device("cpu")


def eigenvectors(terms: int, a: Tensor, upper: bool, vectors: bool) -> Run | None:
    """Eigenvalues of square A, of which one triangle is read, and eigenvectors if wanted."""
    if a.shape[-1] != a.shape[-2]:
        return None
    if a.dtype is not _FLOAT64:
        return through_float64(eigenvectors, terms, a, upper, vectors)
    return _decomposed(True, terms, a, [a.shape[:-1], a.shape], upper, vectors)


def singular_vectors(terms: int, a: Tensor, full: bool, vectors: bool) -> Run | None:
    """U, singular values and V^T; the values alone if the others are not wanted."""
    *batch, m, n = a.shape
    if not at_once(m, n, full and vectors):
        return None
    if a.dtype is not _FLOAT64:
        return through_float64(singular_vectors, terms, a, full, vectors)
    k = min(m, n)
    sizes = [torch.Size((*batch, *s)) for s in ((k,), (m, k), (k, n))]
    return _decomposed(False, terms, a, sizes, False, vectors)


def _decomposed(
    symmetric: bool, terms: int, a: Tensor, sizes: list[Any], upper: bool, vectors: bool
) -> Run | None:
    if a.numel() > SMALL:
        return None
    *_, m, n = a.shape
    count, least = a.numel() // (m * n), min(m, n)
    loop = prepared(symmetric, terms, count, (least, max(m, n)))
    if loop is None:
        return None
    sizes = sizes[: None if vectors else 1]
    likes = [new(size) for size in sizes]
    # What is not wanted has any address.
    places = [min(k, len(sizes) - 1) for k in range(3)]
    steps = (m * n, 1, n) if upper or m > n else (m * n, n, 1)

    def run(parts: Components) -> tuple[MCFTensor, ...] | None:
        given = [c if c.is_contiguous() else c.contiguous() for c in parts]
        made = [[_empty_like(like) for _ in parts] for like in likes]
        at = [[*map(_address, x)] for x in made]
        where = [place for k in places for place in at[k]]
        done = loop([*map(_address, given)], steps, where, vectors, m > n)
        if done.count(DONE) != count:
            return None
        return tuple([fresh(x, s, _FLOAT64, _cpu) for x, s in zip(made, sizes, strict=True)])

    return run
