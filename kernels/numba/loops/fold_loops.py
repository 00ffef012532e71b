"""Folds on the CPU: loops over lanes that vectorise, and items shared by threads."""

from __future__ import annotations

import functools
import struct
from array import array
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.fold import BLOCK, CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops import column_fold_text, fold_text
from mcf.kernels.numba.loops.fold_text import PRODUCT, SUM, WITHIN
from mcf.kernels.numba.runtime import team

# Rows and columns of a matrix product per item: GROUP rows of the right matrix stay in the
# first-level cache while the item's rows pass over them.
ROWS, COLUMNS = 32, 128

_SOURCES = {
    "sum": fold_text.sum_source,
    "within": fold_text.within_source,
    "product": fold_text.product_source,
    "halving": fold_text.halving_source,
    "columns": column_fold_text.source,
    "short": column_fold_text.short_source,
}
_WORDS = {
    "sum": SUM,
    "within": WITHIN,
    "columns": column_fold_text.WORDS,
    "short": column_fold_text.WORDS,
}
_NUMBERS = {
    "LANES": LANES,
    "GROUP": GROUP,
    "CHUNK": CHUNK,
    "STEP": STEP,
    "BLOCK": BLOCK,
    "ROWS": ROWS,
    "COLUMNS": COLUMNS,
    "TILE": column_fold_text.TILE,
}


@functools.cache
def compiled(spec: Fold, kind: str) -> objects.Native:
    """Return the compiled kernel `kind`, a key of `_SOURCES`."""
    text = _SOURCES[kind](spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(compiler.fold(spec, kind, text, _NUMBERS))

    algorithms = [keys.algorithm(each) for each in (spec.term, spec.merge, spec.combine)]
    sizes = [spec.components, spec.formats, spec.state, spec.register, sorted(_NUMBERS.items())]
    return stored.native(("fold", kind, text, algorithms, sizes), make)


def _run(spec: Fold, kind: str, threads: int, items: int, words: dict[str, int]) -> None:
    """Call a kernel on its argument struct; `words` lacks the shares."""
    parts = min(threads, items)
    shares = team.shares(items, parts)
    words |= {"shares": shares.buffer_info()[0], "parts": parts}
    with stored.lock:
        address = compiled(spec, kind).address
    table = array("Q", [words[name] for name in _WORDS.get(kind, PRODUCT)])
    team.run(address, table.buffer_info()[0], parts)


def _threads(work: int) -> int:
    return torch.get_num_threads() if work > team.SERIAL else 1


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """Fold rows, see `mcf.kernels.executor.Executor`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    if _are_short(spec, outer, total):
        return _side_by_side(spec, "short", components, total, outer, 1, total)[:, 0]
    return _of_blocks(spec, "sum", components, {})


def fold_within(
    spec: Fold, operands: list[list[Tensor]], least: float, most: float
) -> tuple[Tensor, bool] | None:
    """Fold rows with a check of their range, see `mcf.kernels.executor.Executor`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    narrow = spec.formats[0] != FP64 or spec.register != FP64
    if narrow or outer * total < _MANY or _are_short(spec, outer, total):
        return None
    outside = array("q", bytes(_WORD * outer * -(-total // BLOCK)))
    words = {"outside": outside.buffer_info()[0], **limits(least, most)}
    found = _of_blocks(spec, "within", components, words)
    return found, not any(outside)


def limits(least: float, most: float) -> dict[str, int]:
    """Return the fields of a range of magnitudes, which are ordered as their bit patterns."""
    low, high = struct.unpack("=qq", struct.pack("=dd", least, most))
    return {"least": low, "most": high}


def _are_short(spec: Fold, rows: int, length: int) -> bool:
    return length <= _SHORT and rows * length >= _MANY and spec.register == FP64


def _of_blocks(spec: Fold, kind: str, components: list[Tensor], more: dict[str, int]) -> Tensor:
    """Return the partial sums of rows by kernel `kind`; `more` extends its argument struct."""
    outer, total = components[0].shape
    blocks = -(-total // BLOCK)
    items = outer * blocks
    threads = _threads(outer * total)
    bases = array("Q", [c.data_ptr() for c in components])
    out = torch.empty((spec.state, items), dtype=spec.register.dtype, device="cpu")
    lanes = torch.empty((threads, spec.state, LANES), dtype=spec.register.dtype, device="cpu")
    words = {
        "bases": bases.buffer_info()[0],
        "out": out.data_ptr(),
        "lanes": lanes.data_ptr(),
        "total": total,
        "blocks": blocks,
        "items": items,
        "step": STEP,
        **more,
    }
    _run(spec, kind, threads, items, words)
    if blocks == 1:
        return out
    # Blocks by row, then rows: halving then runs over contiguous rows.
    by_row = out.reshape(-1, outer, blocks).transpose(1, 2).contiguous()
    return _halve(spec, by_row).reshape(spec.state, outer)


# Smallest number of elements for a separate loop; greatest length of short rows.
_MANY, _SHORT = 1 << 15, 24


def deviations(
    spec: Fold, x: list[Tensor], centre: list[Tensor], count: int, inner: int
) -> Tensor | None:
    """Fold deviations, see `mcf.kernels.executor.Executor.fold_deviations`."""
    if inner == 1:
        return fold(spec, [[c.view(-1, count) for c in x], centre])
    if inner <= column_fold_text.TILE:
        # Adjacent, like the elements of a narrow matrix that are folded together.
        centre = [c.view(-1, 1, inner).expand(-1, STEP, inner).contiguous() for c in centre]
    return columns(spec, [*x, *centre], count, inner)


def columns(spec: Fold, x: list[Tensor], count: int, inner: int) -> Tensor | None:
    """Fold columns in float64 registers, see `mcf.kernels.executor.Executor.fold_columns`."""
    if x[0].numel() < _MANY or spec.register != FP64:
        return None
    out = _side_by_side(spec, "columns", x, count, inner, inner, 1)
    return out[:, 0] if out.shape[1] == 1 else _halve(spec, out)


def _side_by_side(
    spec: Fold, kind: str, x: list[Tensor], count: int, wide: int, inner: int, far: int
) -> Tensor:
    """Return the partial sums of all blocks of rows, float64 [state, blocks, rows].

    Args:
        spec: the fold.
        kind: its kernel, "columns" or "short".
        x: components.
        count: elements of a row.
        wide: number of adjacent rows.
        inner: stride of the elements of a row.
        far: stride of the rows.
    """
    size = x[0].numel()
    results, blocks = size // count, -(-count // BLOCK)
    tiles = -(-wide // column_fold_text.TILE)
    items = results // wide * blocks * tiles
    threads = _threads(size)
    bases = array("Q", [c.data_ptr() for c in x])
    out = torch.empty((spec.state, blocks, results), dtype=torch.float64, device="cpu")
    width = LANES * column_fold_text.TILE
    lanes = torch.empty((threads, spec.state, width), dtype=torch.float64, device="cpu")
    words = {
        "bases": bases.buffer_info()[0],
        "out": out.data_ptr(),
        "lanes_of_all": lanes.data_ptr(),
        "total": count,
        "inner": inner,
        "blocks": blocks,
        "tiles": tiles,
        "results": results,
        "wide": wide,
        "far": far,
    }
    _run(spec, kind, threads, items, words)
    return out


_WORD = 8


def product_sizes(batch: int, rows: int, inner: int, columns: int) -> tuple[int, dict[str, int]]:
    """Return items and sizes of a product of [batch, rows, inner] by [batch, inner, columns]."""
    down, across = -(-rows // ROWS), -(-columns // COLUMNS)
    words = {
        "rows": rows,
        "inner": inner,
        "columns": columns,
        "stride": batch * rows * columns,
        "down": down,
        "across": across,
    }
    return batch * across * down, words


def _halve(spec: Fold, state: Tensor) -> Tensor:
    """Halve [state, count, M] along the middle, in place."""
    _, rows, columns = state.shape
    with stored.lock:
        address = compiled(spec, "halving").address
    count = rows
    while count > 1:
        half = (count + 1) // 2
        table = array("Q", [state.data_ptr(), rows, columns, count, half])
        team.run(address, table.buffer_info()[0], 1)
        count = half
    return state[:, 0]


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Multiply matrices, see `mcf.kernels.executor.Executor`."""
    batch, rows, inner = left[0].shape
    columns = right[0].shape[2]
    out = torch.empty((spec.state, batch, rows, columns), dtype=spec.register.dtype, device="cpu")
    bases = array("Q", [c.data_ptr() for c in (*left, *right)])
    items, words = product_sizes(batch, rows, inner, columns)
    words |= {"bases": bases.buffer_info()[0], "out": out.data_ptr()}
    threads = _threads(batch * rows * columns * inner)
    _run(spec, "product", threads, items, words)
    return out
