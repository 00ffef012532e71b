"""Decompose whole small matrices in one loop, if an executor has it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mcf.convert.rounding import convert
from mcf.kernels import registry
from mcf.kernels.decomposition import DONE, Numbers, decomposition
from mcf.linalg.orthogonal_rows import SHARES, exponent, steps
from mcf.linalg.parts import Components, each
from mcf.linalg.residuals import LIMITS
from mcf.linalg.triangular import alike
from mcf.linalg.working_matrices import working_terms

Loop = Callable[..., Sequence[int]]


def prepared(symmetric: bool, given: int, batch: int, shape: tuple[int, int]) -> Loop | None:
    """Return the loop for `batch` matrices of float64 components on a CPU, with rows <= columns."""
    terms = decomposition(given).terms
    tolerances = exponent(1), exponent(terms)
    numbers = Numbers(symmetric, *tolerances, steps(terms), SHARES[symmetric], LIMITS)
    return _prepared(registry.get_executor(), given, batch, shape, numbers)


@functools.lru_cache(64)
def _prepared(
    executor: str, given: int, batch: int, shape: tuple[int, int], numbers: Numbers
) -> Loop | None:
    found = registry.on(torch.device("cpu"))
    return found.prepare_decomposition(decomposition(given), batch, shape, numbers)


def decomposed(
    symmetric: bool,
    a: Components,
    others: Callable[[Components], tuple[Any, ...]],
    upper: bool = False,
    vectors: bool = True,
) -> tuple[Any, ...] | None:
    """Return values and, if wanted, vectors of A [..., m, n], and which matrices converged.

    Args:
        symmetric: whether it is `eigh`, with V; else with U and V^T.
        a: components.
        others: decomposes the matrices [batch, m, n] that the loop leaves.
        upper: which triangle is read.
        vectors: whether vectors are wanted.

    Returns:
        Components, and bool [...]; None if there is no loop.
    """
    *batch, m, n = a[0].shape
    count, fmt = math.prod(batch), a[0].dtype
    if a[0].device.type != "cpu" or count * m * n == 0:
        return None
    given = len(a) if fmt is torch.float64 else working_terms(a)
    loop = prepared(symmetric, given, count, (min(m, n), max(m, n)))
    if loop is None:
        return None
    flat = each(lambda c: c.reshape(count, m, n), a)
    wide = alike(flat if fmt is torch.float64 else convert(flat, torch.float64, given))
    k = min(m, n)
    sizes = [(count, k), (count, m, k), (count, k, n)][: (3 - symmetric) if vectors else 1]
    found = [tuple(wide[0].new_empty(size) for _ in wide) for size in sizes]
    done = torch.tensor(run(loop, wide, found, upper, m > n), device="cpu") == DONE
    if fmt is not torch.float64:
        found = [convert(x, fmt, len(a)) for x in found]
    if not bool(done.all()):
        left = (~done).nonzero().flatten()
        *parts, ended = others(each(lambda c: c[left], flat))
        done[left] = ended
        for x, some in zip(found, [p for p in parts if p is not None], strict=True):
            for c, new in zip(x, some, strict=True):
                c[left] = new
    whole = [each(lambda c: c.reshape(*batch, *c.shape[1:]), x) for x in found]
    return *whole, done.reshape(batch)


def run(
    loop: Loop, a: Components, results: Sequence[Components], upper: bool, tall: bool
) -> Sequence[int]:
    """Run the loop on matrices [batch, m, n] of equal strides.

    Args:
        loop: see `prepared`.
        a: components.
        results: values, and vectors where they are wanted.
        upper: whether `eigh` reads the upper triangle.
        tall: whether there are more rows than columns.
    """
    batch, row, column = a[0].stride()
    if upper or tall:
        row, column = column, row
    places = [[c.data_ptr() for c in x] for x in results]
    given: list[Any] = [places[min(k, len(places) - 1)] for k in range(3)]
    where = [place for each in given for place in each]
    return loop([c.data_ptr() for c in a], (batch, row, column), where, len(places) > 1, tall)
