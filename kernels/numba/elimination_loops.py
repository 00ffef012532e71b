"""Eliminations on the CPU: one call of a compiled loop a panel; `elimination_text` writes it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.numba import elimination_text, keys, objects, rewrite, stored, team
from mcf.kernels.numba.one_panel import OnePanel

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
    words |= _sizes(spec, length, words)
    _memory, scratch = _room(spec, words, parts)
    bases = array("Q", [*map(_address, operands), *scratch, *map(_address, results)])
    shares = team.shares(items, parts)
    words |= {"bases": bases.buffer_info()[0], "shares": shares.buffer_info()[0], "parts": parts}
    table = array("q", [words[name] for name in elimination_text.words(spec)])
    with stored.lock:
        address = _compiled(spec).address
    team.run(address, table.buffer_info()[0], parts)


_address = Tensor.data_ptr


def _sizes(spec: Elimination, length: int, words: dict[str, int]) -> dict[str, int]:
    """The words that say how long rows are, of so many numbers, and a thread's memory."""
    padding = elimination_text.padding(spec)
    length += padding
    # Of right-hand sides, whose rows lie behind those of the panel.
    sides = words.get("sides", 0)
    side = sides + padding if sides else 0
    scratch, row_size = words["width"] * (length + side), max(length, side)
    return {"length": length, "side": side, "scratch": scratch, "row_size": row_size}


def _room(spec: Elimination, words: dict[str, int], parts: int) -> tuple[Any, list[int]]:
    """Scratch memory for so many threads, and where its panels and rows are."""
    kind = spec.format.register.dtype
    each = parts * (words["scratch"] + words["row_size"])
    memory = torch.zeros(spec.terms * each, dtype=kind, device="cpu")
    place, size = memory.data_ptr(), memory.element_size()
    panels = [place + k * each * size for k in range(spec.terms)]
    return memory, panels + [p + parts * words["scratch"] * size for p in panels]


def _prepared(
    spec: Elimination,
    items: int,
    length: int,
    work: int,
    words: dict[str, int],
    pivots: int | None,
) -> OnePanel:
    words |= _sizes(spec, length, words)
    with stored.lock:
        address = _compiled(spec).address
    names = elimination_text.words(spec)
    room = functools.partial(_room, spec, words)
    return OnePanel(address, names, words, items, work, room, pivots)


def _panel_words(
    spec: Elimination, shape: Sequence[int], start: int, width: int, exchange: bool, sides: int
) -> dict[str, int]:
    """What a loop is told of the panel of matrices of a shape, and of right-hand sides."""
    words = {"width": width, "start": start, "rows": shape[0], "columns": shape[1]}
    return words | {"exchange": int(exchange) if spec.kind == "lu" else -1, "sides": sides}


def one_elimination(
    spec: Elimination, shape: Sequence[int], sides: int, determinant: bool
) -> Callable[..., tuple[Any, Any]] | None:
    """See `mcf.kernels.executor.Executor.prepare_elimination`."""
    batch, rows, width = shape
    work = batch * width * width * (rows + sides)
    words = _panel_words(spec, shape[1:], 0, width, True, sides)
    if spec.kind == "cholesky":
        call = _prepared(spec, batch, width, work, words | {"count": 0}, 0)
        return lambda a: call(a, [])
    words |= {"count": width, "wanted": int(determinant)}
    call = _prepared(spec, batch, rows, work, words, batch * width)

    def eliminate(a: list[int], x: Any = None, z: Any = None) -> tuple[Any, Any]:
        # Of what is not wanted the loop sees any address.
        return call(a + (x or a), z or a)

    return eliminate


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
    x = a if sides is None else sides
    many = 0 if sides is None else x[0].shape[2]
    words = _panel_words(spec, (rows, columns), start, width, exchange, many)
    words |= {"pivots": found.data_ptr(), "info": counted.data_ptr()}
    words |= {"count": 0 if pivots is None else pivots.shape[1]}
    words |= {"wanted": int(determinant is not None)}
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
    shape = x[0].shape
    operands = [_from_last(c, 2) for c in a] + [_from_last(c, 1) for c in x] if upper else [*a, *x]
    words = _substitution_words(shape, a[0].stride(), x[0].stride(), upper, unit)
    work = shape[0] * shape[1] ** 2 * shape[2]
    _run(spec, operands, shape[0] * words["tiles"], min(TILE, shape[2]), work, words)


def _substitution_words(
    shape: Sequence[int], a: Sequence[int], x: Sequence[int], upper: bool, unit: bool
) -> dict[str, int]:
    """What a loop is told of X of a shape, of the strides of A and X."""
    (a_batch, a_row, a_column), (x_batch, x_row, x_column) = a, x
    _, width, columns = shape
    tiles, sign = -(-columns // TILE), -1 if upper else 1
    words = {"width": width, "tiles": tiles, "tile": TILE, "columns": columns, "unit": int(unit)}
    words |= {"a_batch": a_batch, "a_row": sign * a_row, "a_column": sign * a_column}
    return words | {"x_batch": x_batch, "x_row": sign * x_row, "x_column": x_column}


def one_substitution(
    spec: Elimination, shape: Sequence[int], strides: Sequence[int], upper: bool, unit: bool
) -> Callable[[list[int], list[int]], Any] | None:
    """See `mcf.kernels.executor.Executor.prepare_substitution`."""
    batch, width, columns = shape
    work = batch * width * width * columns
    words = _substitution_words(shape, strides, (width * columns, columns, 1), upper, unit)
    call = _prepared(spec, batch * words["tiles"], min(TILE, columns), work, words, None)
    if not upper:
        return lambda a, x: call(a + x, [])
    # The last row and column.
    size = (width - 1) * int(spec.format.itemsize)
    low, under = size * (strides[1] + strides[2]), size * columns
    return lambda a, x: call([k + low for k in a] + [k + under for k in x], [])


def _from_last(c: Tensor, dims: int) -> Tensor:
    """A view whose address is that of the last row (and column), from where rows go backwards."""
    return c[:, -1:, -1:] if dims == 2 else c[:, -1:, :]
