"""Eliminations on the CPU: one call of a compiled loop a panel.

`elimination_text` writes it, and `elimination_lanes` that of small matrices of a batch.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import elimination_lanes, elimination_text, lane_text
from mcf.kernels.numba.loops.matrices.one_panel import OnePanel, Room, memory
from mcf.kernels.numba.runtime import team
from mcf.kernels.sequence import Bindable, Bound

# Columns of a substitution that an item solves: with 32 rows they stay in the first level of cache.
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


class _Loop(NamedTuple):
    """A loop over matrices of one shape.

    Args:
        address: of its code.
        names: of its words.
        words: those that are neither addresses nor shares.
        items: how many it has.
        work: how many numbers are computed in all.
        room: its scratch memory, by the number of threads.
    """

    address: int
    names: Sequence[str]
    words: dict[str, int]
    items: int
    work: int
    room: Room

    def run(self, operands: Sequence[Tensor], results: Sequence[Tensor] = (), **at: int) -> None:
        """Call it once; `at` are further addresses."""
        threads = torch.get_num_threads() if self.work > team.SERIAL else 1
        parts = max(1, min(threads, self.items))
        _memory, scratch = self.room(parts)
        bases = array("Q", [*map(_address, operands), *scratch, *map(_address, results)])
        shares = team.shares(self.items, parts)
        words = self.words | at | {"bases": bases.buffer_info()[0], "parts": parts}
        words["shares"] = shares.buffer_info()[0]
        table = array("q", [words[name] for name in self.names])
        team.run(self.address, table.buffer_info()[0], parts)

    def prepared(self, pivots: int = 0, infos: int = 0) -> OnePanel:
        """The same for many calls, with so many pivots and numbers of bad ones."""
        given = self.address, self.names, self.words, self.items, self.work, self.room
        return OnePanel(*given, pivots, infos)


_address = Tensor.data_ptr


def _of_rows(spec: Elimination, words: dict[str, int], items: int, length: int, work: int) -> _Loop:
    """The loop over items whose rows are vectors, of so many numbers each."""
    padding = elimination_text.padding(spec)
    length += padding
    # Of right-hand sides, whose rows lie behind those of the panel.
    sides = words.get("sides", 0)
    side = sides + padding if sides else 0
    sizes = {"p": words["width"] * (length + side), "w": max(length, side)}
    words |= {"length": length, "side": side, "scratch": sizes["p"], "row_size": sizes["w"]}
    counts = dict.fromkeys("pw", spec.terms)
    room = functools.partial(memory, counts, sizes, spec.format.register.dtype)
    with stored.lock:
        address = _compiled(spec, False).address
    return _Loop(address, elimination_text.words(spec), words, items, work, room)


def _of_lanes(
    spec: Elimination, words: dict[str, int], batch: int, rows: int, sides: int, work: int
) -> _Loop:
    """The loop over blocks of small matrices."""
    sizes = elimination_lanes.sizes(spec, rows, words["width"], sides)
    words |= {"batch": batch, "p_size": sizes["p"], "w_size": sizes["w"]}
    counts = elimination_lanes.operands(spec)
    room = functools.partial(memory, counts, sizes, spec.format.register.dtype)
    with stored.lock:
        address = _compiled(spec, True).address
    items = lane_text.blocks(batch, elimination_lanes.size(spec))
    return _Loop(address, elimination_lanes.words(spec), words, items, work, room)


def _panel(
    spec: Elimination,
    shape: Sequence[int],
    start: int,
    width: int,
    exchange: bool,
    sides: int,
    determinant: bool,
    stored: bool = True,
) -> _Loop:
    """The loop over the panels of matrices of a shape [B, m, n], and over right-hand sides.

    Unless `stored` says so nobody asks for factors of matrices whose determinants or solutions are
    wanted.
    """
    batch, rows, columns = shape
    lu = spec.kind == "lu"
    height = rows - start if lu else width
    work = batch * width * width * (height + sides)
    words = {"width": width, "start": start, "rows": rows, "columns": columns, "sides": sides}
    words |= {"exchange": int(exchange), "wanted": int(determinant), "count": width if lu else 0}
    whole = start == 0 and width == columns <= rows
    size = elimination_lanes.size(spec)
    if whole and lane_text.across(batch, max(rows, sides), size):
        words["stored"] = int(stored)
        return _of_lanes(spec, words, batch, rows, sides, work)
    return _of_rows(spec, words, batch, height, work)


def one_elimination(
    spec: Elimination, shape: Sequence[int], sides: int, determinant: bool
) -> OneElimination:
    """See `mcf.kernels.executor.Executor.prepare_elimination`."""
    batch, _, width = shape
    lu, kept = spec.kind == "lu", sides == 0 and not determinant
    loop = _panel(spec, shape, 0, width, True, sides, determinant, kept)
    return OneElimination(loop.prepared(batch * width if lu else 0, batch), spec)


class OneElimination(Bindable):
    """What `prepare_elimination` returns; as a step it takes A, `info` and pivots of an "lu"."""

    def __init__(self, panel: OnePanel, spec: Elimination) -> None:
        """The loop of a kind."""
        self._panel, self._lu, self._terms = panel, spec.kind == "lu", spec.terms

    def __call__(self, a: list[int], x: Any = None, z: Any = None) -> tuple[Any, Any]:
        """See `mcf.kernels.executor.Executor.prepare_elimination`."""
        # Of what is not wanted the loop sees any address.
        return self._panel(a + (x or a), z or a) if self._lu else self._panel(a, [])

    def bound(self, addresses: Sequence[int]) -> Bound | None:
        """The call for A's components three times, `info` and a place for pivots."""
        *a, info, pivots = addresses
        first, last = a[: 2 * self._terms], a[2 * self._terms :]
        return self._panel.bound(first, last, info=info, pivots=pivots)


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
    lu = spec.kind == "lu"
    counted = info.to(torch.int64)
    found = counted if pivots is None else pivots.to(torch.int64).contiguous()
    x = a if sides is None else sides
    many = 0 if sides is None else x[0].shape[2]
    loop = _panel(spec, a[0].shape, start, width, exchange, many, determinant is not None)
    # Pivots of all panels.
    loop.words["count"] = 0 if pivots is None else pivots.shape[1]
    at = {"pivots": found.data_ptr(), "info": counted.data_ptr()}
    loop.run([*a, *x] if lu else a, determinant or (a if lu else ()), **at)
    info.copy_(counted)
    if pivots is not None:
        pivots.copy_(found)


def substitute(
    spec: Elimination, a: Sequence[Tensor], x: Sequence[Tensor], upper: bool, unit: bool
) -> None:
    """See `mcf.kernels.executor.Executor.substitute`."""
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
) -> _Loop:
    """The loop that solves for X of a shape, of strides of A and X."""
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


def one_substitution(
    spec: Elimination, shape: Sequence[int], strides: Sequence[int], upper: bool, unit: bool
) -> Callable[[list[int], list[int]], Any] | None:
    """See `mcf.kernels.executor.Executor.prepare_substitution`."""
    _, width, columns = shape
    x = width * columns, columns, 1
    call = _substitution(spec, shape, strides, x, upper, unit).prepared()
    if not upper:
        return lambda a, x: call(a + x, [])
    # The last row and column.
    size = (width - 1) * int(spec.format.itemsize)
    low, under = size * (strides[1] + strides[2]), size * columns
    return lambda a, x: call([k + low for k in a] + [k + under for k in x], [])


def _from_last(c: Tensor, dims: int) -> Tensor:
    """A view whose address is that of the last row (and column), from where rows go backwards."""
    return c[:, -1:, -1:] if dims == 2 else c[:, -1:, :]
