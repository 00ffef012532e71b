"""Eliminations on the CPU, with one call of a compiled loop per panel.

`elimination_text` generates it, and `elimination_lanes` the loop for batches of small matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import elimination_lanes, elimination_text, lane_text
from mcf.kernels.numba.loops.matrices.matrix_loop import MatrixLoop, memory

# Columns of a substitution per item: with 32 rows they stay in the first-level cache.
TILE = 64


@functools.cache
def _compiled(spec: Elimination, lanes: bool) -> objects.Native:
    written = elimination_lanes if lanes else elimination_text
    text, letters = written.source(spec), written.operands(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(compiler.elimination(spec, text, letters, "pwhef"))

    used = (spec.head, spec.quotient, spec.update, spec.magnitude, spec.product, spec.minus)
    algorithms = [keys.algorithm(f) for f in used]
    sizes = [spec.kind, spec.format, spec.terms]
    return stored.native(("elimination", text, algorithms, sizes), make)


def _of_rows(
    spec: Elimination, words: dict[str, int], items: int, length: int, work: int
) -> MatrixLoop:
    """Return the loop over items whose rows are vectors of `length` numbers."""
    padding = elimination_text.padding(spec)
    length += padding
    # Rows of right-hand sides follow those of the panel.
    sides = words.get("sides", 0)
    side = sides + padding if sides else 0
    sizes = {"p": words["width"] * (length + side), "w": max(length, side)}
    words |= {"length": length, "side": side, "scratch": sizes["p"], "row_size": sizes["w"]}
    counts = dict.fromkeys("pw", spec.terms)
    workspace = functools.partial(memory, counts, sizes, spec.format.register.dtype)
    with stored.lock:
        address = _compiled(spec, False).address
    return MatrixLoop(address, elimination_text.words(spec), words, items, work, workspace)


def _of_lanes(
    spec: Elimination, words: dict[str, int], batch: int, rows: int, sides: int, work: int
) -> MatrixLoop:
    """Return the loop over blocks of small matrices."""
    sizes = elimination_lanes.sizes(spec, rows, words["width"], sides)
    words |= {"batch": batch, "p_size": sizes["p"], "w_size": sizes["w"]}
    counts = elimination_lanes.operands(spec)
    workspace = functools.partial(memory, counts, sizes, spec.format.register.dtype)
    with stored.lock:
        address = _compiled(spec, True).address
    items = lane_text.blocks(batch, elimination_lanes.size(spec))
    return MatrixLoop(address, elimination_lanes.words(spec), words, items, work, workspace)


@functools.lru_cache(1024)
def _panel(
    spec: Elimination,
    shape: torch.Size,
    start: int,
    width: int,
    exchange: bool,
    sides: int,
    determinant: bool,
) -> MatrixLoop:
    """Return the loop over the panels of matrices [B, m, n], and over right-hand sides."""
    batch, rows, columns = shape
    lu = spec.kind == "lu"
    height = rows - start if lu else width
    work = batch * width * width * (height + sides)
    words = {"width": width, "start": start, "rows": rows, "columns": columns, "sides": sides}
    words |= {"exchange": int(exchange), "wanted": int(determinant), "count": width if lu else 0}
    whole = start == 0 and width == columns <= rows
    size = elimination_lanes.size(spec)
    if whole and lane_text.across(batch, max(rows, sides), size):
        words["stored"] = 1
        return _of_lanes(spec, words, batch, rows, sides, work)
    return _of_rows(spec, words, batch, height, work)


def panel(
    spec: Elimination,
    a: Sequence[Tensor],
    start: int,
    width: int,
    info: Tensor,
    pivots: Tensor | None,
    exchange: bool,
    sides: Sequence[Tensor] | None,
    determinant: Sequence[Tensor] | None,
) -> None:
    """Factorise a panel, see `mcf.kernels.executor.Executor.eliminate`."""
    lu = spec.kind == "lu"
    counted = info.to(torch.int64)
    found = counted if pivots is None else pivots.to(torch.int64).contiguous()
    x = a if sides is None else sides
    many = 0 if sides is None else x[0].shape[2]
    loop = _panel(spec, a[0].shape, start, width, exchange, many, determinant is not None)
    at = {"pivots": found.data_ptr(), "info": counted.data_ptr()}
    # Number of pivots of all panels.
    at["count"] = 0 if pivots is None else pivots.shape[1]
    loop.run([*a, *x] if lu else a, determinant or (a if lu else ()), **at)
    info.copy_(counted)
    if pivots is not None:
        pivots.copy_(found)


def substitute(
    spec: Elimination, a: Sequence[Tensor], x: Sequence[Tensor], upper: bool, unit: bool
) -> None:
    """Substitute, see `mcf.kernels.executor.Executor.substitute`."""
    shape = x[0].shape
    operands = [_from_last(c, 2) for c in a] + [_from_last(c, 1) for c in x] if upper else [*a, *x]
    _substitution(spec, shape, a[0].stride(), x[0].stride(), upper, unit).run(operands)


def _substitution(
    spec: Elimination,
    shape: Sequence[int],
    a: Sequence[int],
    x: Sequence[int],
    upper: bool,
    unit: bool,
) -> MatrixLoop:
    """Return the loop that solves for X, for a shape and the strides of A and X."""
    (a_batch, a_row, a_column), (x_batch, x_row, x_column) = a, x
    batch, width, columns = shape
    tiles, sign = -(-columns // TILE), -1 if upper else 1
    words = {"width": width, "tiles": tiles, "tile": TILE, "columns": columns, "unit": int(unit)}
    words |= {"a_batch": a_batch, "a_row": sign * a_row, "a_column": sign * a_column}
    words |= {"x_batch": x_batch, "x_row": sign * x_row, "x_column": x_column}
    work = batch * width * width * columns
    if lane_text.across(batch, max(width, columns), elimination_lanes.size(spec)):
        return _of_lanes(spec, words, batch, width, columns, work)
    return _of_rows(spec, words, batch * tiles, min(TILE, columns), work)


def _from_last(c: Tensor, dims: int) -> Tensor:
    """Return a view whose address is that of the last row (and column), for reversed traversal."""
    return c[:, -1:, -1:] if dims == 2 else c[:, -1:, :]
