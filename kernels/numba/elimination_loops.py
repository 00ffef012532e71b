"""Eliminations on the CPU: one call of a compiled loop a panel; `elimination_text` writes it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba import elimination_text, keys, objects, rewrite, stored, team

# Columns of a substitution that an item solves: with 32 rows they stay in the first level of cache.
TILE = 64


@functools.cache
def _compiled(spec: Elimination) -> objects.Native:
    substitution = spec.kind == "substitution"
    source = elimination_text.substitution_source if substitution else elimination_text.panel_source
    text = source(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba import compiler

        return rewrite.rewritten(compiler.elimination(spec, text))

    used = (spec.head, spec.quotient, spec.update, spec.magnitude, spec.product, spec.minus)
    algorithms = [keys.algorithm(f) for f in used]
    sizes = [spec.kind, spec.format, spec.terms]
    return stored.native(("elimination", text, algorithms, sizes), make)


def _run(
    spec: Elimination,
    operands: Sequence[Tensor],
    items: int,
    length: int,
    work: int,
    words: dict[str, int],
    results: Sequence[Tensor] = (),
) -> None:
    """Call the loop; `words` lacks addresses, shares and the scratch memory."""
    threads = torch.get_num_threads() if work > team.SERIAL else 1
    parts = max(1, min(threads, items))
    padding = elimination_text.padding(spec)
    length += padding
    # Of right-hand sides, whose rows lie behind those of the panel.
    sides = words.get("sides", 0)
    side = sides + padding if sides else 0
    scratch = words["width"] * (length + side)
    row_size = max(length, side)
    kind = spec.format.register.dtype
    each = parts * (scratch + row_size)
    memory = torch.zeros(spec.terms * each, dtype=kind, device="cpu")
    place, size = memory.data_ptr(), memory.element_size()
    panels = [place + k * each * size for k in range(spec.terms)]
    rows = [p + parts * scratch * size for p in panels]
    given = [c.data_ptr() for c in operands] + panels + rows + [c.data_ptr() for c in results]
    bases = array("Q", given)
    shares = team.shares(items, parts)
    words |= {"bases": bases.buffer_info()[0], "shares": shares.buffer_info()[0], "parts": parts}
    words |= {"length": length, "side": side, "scratch": scratch, "row_size": row_size}
    table = array("q", [words[name] for name in elimination_text.words(spec)])
    with stored.lock:
        address = _compiled(spec).address
    team.run(address, table.buffer_info()[0], parts)


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
    """See `mcf.kernels.executor.Executor.eliminate`."""
    batch, rows, columns = a[0].shape
    lu = spec.kind == "lu"
    height = rows - start if lu else width
    counted = info.to(torch.int64)
    found = counted if pivots is None else pivots.to(torch.int64).contiguous()
    words = {"width": width, "start": start, "rows": rows, "columns": columns}
    words |= {"pivots": found.data_ptr(), "info": counted.data_ptr()}
    words |= {"count": 0 if pivots is None else pivots.shape[1]}
    words |= {"exchange": int(exchange) if lu else -1}
    x = a if sides is None else sides
    words |= {
        "sides": 0 if sides is None else x[0].shape[2],
        "wanted": int(determinant is not None),
    }
    work = batch * width * width * (height + words["sides"])
    operands = [*a, *x] if lu else a
    _run(spec, operands, batch, height, work, words, determinant or (a if lu else ()))
    info.copy_(counted)
    if pivots is not None:
        pivots.copy_(found)


def substitute(
    spec: Elimination, a: Sequence[Tensor], x: Sequence[Tensor], upper: bool, unit: bool
) -> None:
    """See `mcf.kernels.executor.Executor.substitute`."""
    batch, width, columns = x[0].shape
    tiles = -(-columns // TILE)
    strides = [c.stride() for c in (a[0], x[0])]
    (a_batch, a_row, a_column), (x_batch, x_row, x_column) = strides
    operands = [_from_last(c, 2) for c in a] + [_from_last(c, 1) for c in x] if upper else [*a, *x]
    sign = -1 if upper else 1
    words = {"width": width, "tiles": tiles, "tile": TILE, "columns": columns, "unit": int(unit)}
    words |= {"a_batch": a_batch, "a_row": sign * a_row, "a_column": sign * a_column}
    words |= {"x_batch": x_batch, "x_row": sign * x_row, "x_column": x_column}
    work = batch * width * width * columns
    length = min(TILE, columns)
    _run(spec, operands, batch * tiles, length, work, words)


def _from_last(c: Tensor, dims: int) -> Tensor:
    """A view whose address is that of the last row (and column), from where rows go backwards."""
    return c[:, -1:, -1:] if dims == 2 else c[:, -1:, :]
