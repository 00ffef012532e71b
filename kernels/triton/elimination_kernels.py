"""Elimination kernels for GPUs and for Triton's interpreter: one program per panel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mcf.kernels.elimination import Elimination
from mcf.kernels.triton import launching
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.panel_source import KernelText, build, selected

# The largest number of columns of a panel.
WIDTH = 32
# Rows that are searched for the pivot at a time, and columns that are exchanged at a time.
SEARCHED = 256
WORDS = ("start", "width", "rows", "columns", "count")
SUBSTITUTION = (
    *("tiles", "width", "columns"),
    *("a_batch", "a_row", "a_column", "x_batch", "x_row", "x_column"),
)


def sizes(terms: int) -> int:
    """Return how many rows of a panel, or columns of a substitution, are computed at a time.

    With 32 of the other dimension a thread has four numbers, or two if they have many components.
    """
    return 16 if terms <= 2 else 8


def panel_source(spec: Elimination) -> str:
    """Return the kernel of "lu" and "cholesky"; `a` is stored row by row."""
    lu, terms = spec.kind == "lu", spec.terms
    lower = "" if lu else " & (row[:, None] >= k[None, :])"
    words = ("pivots", "info", *WORDS)
    constants = ("EXCHANGE", "ROWS", "WIDTH", "SEARCHED")
    text = KernelText({"a": terms}, words, constants)
    text.add(
        1,
        "base = item * rows * columns",
        "i = tl.arange(0, ROWS)",
        "k = start + tl.arange(0, WIDTH)",
        "j = item * 0 + start",
        "while j < start + width:",
    )
    if lu:
        _exchange(text)
    text.add(
        2,
        f"d = {text.load('a', 'base + j * columns + j')}",
        f"bad = ({'magnitude(d) != 0.0' if lu else 'd[0] > 0.0'}) == 0",
        "known = tl.load(info + item)",
        "tl.store(info + item, tl.where((known == 0) & bad, j + 1, known).to(tl.int32))",
        "h = head(d)",
        "later = (k > j) & (k < start + width)",
    )
    if lu:
        text.add(2, f"m = {text.load('a', 'base + j * columns + k', 'later')}", "stop = rows")
    else:
        column = text.load("a", "base + k * columns + j", "later")
        text.add(2, f"m = quotient({column}, h)", "stop = start + width")
        text.store(2, "a", "base + j * columns + j", "h")
    text.add(
        2,
        f"m = {selected('m', terms, '[None, :]')}",
        "top = j + 1",
        "while top < stop:",
        "    row = top + i",
        "    live = row < stop",
        "    there = base + row * columns",
        f"    q = quotient({text.load('a', 'there + j', 'live')}, h)",
        f"    inside = live[:, None] & later[None, :]{lower}",
        "    cells = there[:, None] + k[None, :]",
        f"    z = {text.load('a', 'cells', 'inside')}",
        f"    z = update(z, m, {selected('q', terms, '[:, None]')})",
    )
    text.store(3, "a", "there + j", "q", "live")
    text.store(3, "a", "cells", "z", "inside")
    text.add(3, "top += ROWS")
    text.add(2, "j += 1")
    return text.text()


def _exchange(text: KernelText) -> None:
    """Emit the pivot search and the exchange of whole rows."""
    text.add(
        2,
        "if EXCHANGE:",
        "    found, largest, top = j, item * 0 - 1, j",
        "    while top < rows:",
        "        row = top + tl.arange(0, SEARCHED)",
        "        live = row < rows",
        "        there = base + row * columns + j",
        f"        size = key(magnitude({text.load('a', 'there', 'live')}))",
        "        size = tl.where(live, size, -1)",
        "        most = tl.reduce(size, 0, LARGEST)",
        "        place = tl.reduce(tl.where(size == most, row, rows), 0, SMALLEST)",
        "        found = tl.where(most > largest, place, found)",
        "        largest = tl.maximum(most, largest)",
        "        top += SEARCHED",
        "    tl.store(pivots + item * count + j, (found + 1).to(tl.int32))",
        "    left = item * 0",
        "    while left < columns:",
        "        c = left + tl.arange(0, SEARCHED)",
        "        live = c < columns",
        "        here, there = base + j * columns + c, base + found * columns + c",
        f"        one = {text.load('a', 'here', 'live')}",
        f"        other = {text.load('a', 'there', 'live')}",
    )
    text.store(4, "a", "here", "other", "live")
    text.store(4, "a", "there", "one", "live")
    text.add(4, "left += SEARCHED")


def substitution_source(spec: Elimination) -> str:
    """Return the "substitution" kernel: program (matrix, tile) solves for COLUMNS columns of X."""
    terms = spec.terms
    constants = ("UPPER", "UNIT", "COLUMNS", "WIDTH")
    text = KernelText({"a": terms, "x": terms}, SUBSTITUTION, constants)
    text.add(
        1,
        "a = item // tiles * a_batch",
        "x = item // tiles * x_batch",
        "c = item % tiles * COLUMNS + tl.arange(0, COLUMNS)",
        "k = item * 0 + tl.arange(0, WIDTH)",
        "live = c < columns",
        "step = item * 0",
        "while step < width:",
        "    j = step",
        "    if UPPER:",
        "        j = width - 1 - step",
        f"    w = {text.load('x', 'x + j * x_row + c * x_column', 'live')}",
        "    if UNIT == 0:",
        f"        w = quotient(w, {text.load('a', 'a + j * (a_row + a_column)')})",
        "    others = (k > j) & (k < width)",
        "    if UPPER:",
        "        others = k < j",
        f"    m = {text.load('a', 'a + k * a_row + j * a_column', 'others')}",
        "    inside = others[:, None] & live[None, :]",
        "    cells = x + k[:, None] * x_row + c[None, :] * x_column",
        f"    m = {selected('m', terms, '[:, None]')}",
        f"    z = {text.load('x', 'cells', 'inside')}",
        f"    z = update(z, m, {selected('w', terms, '[None, :]')})",
    )
    text.add(2, "if UNIT == 0:")
    text.store(3, "x", "x + j * x_row + c * x_column", "w", "live")
    text.store(2, "x", "cells", "z", "inside")
    text.add(2, "step += 1")
    return text.text()


@functools.cache
def kernel(spec: Elimination, dialect: Dialect) -> Any:
    """Return the kernel of a declaration."""
    source = substitution_source if spec.kind == "substitution" else panel_source
    names = ("head", "quotient", "update", "magnitude")
    algorithms = {name: getattr(spec, name) for name in names}
    name = f"{spec.kind} {spec.format.name} {spec.terms}"
    return build(source(spec), name, spec.format, algorithms, dialect)


def panel(
    spec: Elimination,
    a: Sequence[Tensor],
    start: int,
    width: int,
    info: Tensor,
    pivots: Tensor | None,
    exchange: bool,
) -> None:
    """Factorise a panel; see `mcf.kernels.executor.Executor.eliminate`."""
    batch, rows, columns = a[0].shape
    found, count = (info, 0) if pivots is None else (pivots, pivots.shape[1])
    words = (start, width, rows, columns, count)
    constants = {"EXCHANGE": int(exchange and spec.kind == "lu"), "ROWS": sizes(spec.terms)}
    constants |= {"WIDTH": WIDTH, "SEARCHED": SEARCHED}
    build_panel = functools.partial(kernel, spec)
    launching.launch(a[0].device, build_panel, batch, *a, found, info, *words, **constants)


def substitute(
    spec: Elimination, a: Sequence[Tensor], x: Sequence[Tensor], upper: bool, unit: bool
) -> None:
    """Solve a triangular system; see `mcf.kernels.executor.Executor.substitute`."""
    batch, width, columns = x[0].shape
    tile = sizes(spec.terms)
    tiles = -(-columns // tile)
    words = (tiles, width, columns, *a[0].stride(), *x[0].stride())
    constants = {"UPPER": int(upper), "UNIT": int(unit), "COLUMNS": tile, "WIDTH": WIDTH}
    build_substitution = functools.partial(kernel, spec)
    launching.launch(x[0].device, build_substitution, batch * tiles, *a, *x, *words, **constants)
