"""Jacobi sweep kernels for GPUs and for Triton's interpreter: a lane per pair of rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.rotation import SWEEPS, VANISHED, Rotations, next_order
from mcf.kernels.tables import to_device
from mcf.kernels.triton import launching
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.panel_source import KernelText, build, folded, selected, settled, variables

WORDS = ("rows", "counted", "columns", "width", "sweeps", "exponent")
# Numbers in a tile of rows and columns.
TILE = 512


def sizes(rows: int, terms: int) -> dict[str, int]:
    """Return lanes (a power of two, at least the number of pairs) and columns rotated at a time."""
    pairs = 1
    while 2 * pairs < rows:
        pairs *= 2
    return {"PAIRS": pairs, "COLUMNS": max(1, TILE // pairs // (1 if terms <= 2 else 2))}


def source(spec: Rotations) -> str:
    """Return the kernel; t is the workspace of one-component sums, one row per pair."""
    terms = spec.terms
    text = KernelText({"x": terms, "t": 3}, ("places", "done", *WORDS), ("PAIRS", "COLUMNS"))
    text.add(
        1,
        "base = item * rows * columns",
        "half_rows = rows // 2",
        "pair = item * 0 + tl.arange(0, PAIRS)",
        "live = pair < half_rows",
        "some = tl.arange(0, COLUMNS)",
        "work = (item * half_rows + pair) * width",
        "tolerance = ((item * 0 + exponent + 1023) << 52).to(tl.float64, bitcast=True)",
        "number = (item * 0 + counted).to(tl.float64)",
        "sweep, finished = item * 0, item * 0",
        "while (sweep < sweeps) & (finished == 0):",
    )
    _vanish(text, 2)
    text.add(
        2,
        "largest = tl.full([PAIRS], 0.0, tl.float64)",
        "steepest = tl.full([PAIRS], 0.0, tl.float64)",
        "turn = item * 0",
        "while turn < rows - 1:",
        "    place = places + turn * rows + pair",
        "    first = base + tl.load(place, mask=live, other=0) * columns",
        "    second = base + tl.load(place + half_rows, mask=live, other=0) * columns",
    )
    (_halves if terms == 1 else _folds)(text, spec)
    text.add(
        3,
        "cosine, sine, size, slope = rotation(a, b, g, tolerance)",
        "largest = tl.where((size > largest) | (size != size), size, largest)",
        "steepest = tl.where((slope > steepest) | (slope != slope), slope, steepest)",
        f"cosine = {selected('cosine', terms, '[:, None]')}",
        f"sine = {selected('sine', terms, '[:, None]')}",
        "left = item * 0",
        "while left < columns:",
        "    column = left + some",
        "    inside = live[:, None] & (column < columns)[None, :]",
        "    here = first[:, None] + column[None, :]",
        "    there = second[:, None] + column[None, :]",
        f"    one = {text.load('x', 'here', 'inside')}",
        f"    other = {text.load('x', 'there', 'inside')}",
        "    one, other = rotated(cosine, sine, one, other)",
    )
    text.store(4, "x", "here", "one", "inside")
    text.store(4, "x", "there", "other", "inside")
    text.add(4, "left += COLUMNS")
    text.add(3, "turn += 1")
    text.add(
        2,
        "size = tl.reduce(key(largest), 0, LARGEST).to(tl.float64, bitcast=True)",
        "slope = tl.reduce(key(steepest), 0, LARGEST).to(tl.float64, bitcast=True)",
        "finished = converged(size, slope, number, tolerance).to(tl.int64)",
        "sweep += 1",
    )
    _vanish(text, 1)
    text.add(1, "tl.store(done + item, finished)")
    return text.text()


def _vanish(text: KernelText, depth: int) -> None:
    """Emit statements that set rows of negligible magnitude to zero."""
    text.add(
        depth,
        "row = item * 0 + tl.arange(0, 2 * PAIRS)",
        "big = row * 0",
        "left = item * 0",
        "while left < width:",
        "    column = left + some",
        "    inside = (row < rows)[:, None] & (column < width)[None, :]",
        "    here = base + row[:, None] * columns + column[None, :]",
        "    size = key(widen(tl.load(p_x_0 + here, mask=inside, other=0.0)))",
        "    big = tl.maximum(big, tl.reduce(size, 1, LARGEST))",
        "    left += COLUMNS",
        "gone = (row < rows) & (big < GONE)",
        "left = item * 0",
        "while left < width:",
        "    column = left + some",
        "    inside = gone[:, None] & (column < width)[None, :]",
        "    here = base + row[:, None] * columns + column[None, :]",
    )
    zeros = "(" + "here * 0.0, " * text.operands["x"] + ")"
    text.store(depth + 1, "x", "here", zeros, "inside")
    text.add(depth + 1, "left += COLUMNS")


def _folds(text: KernelText, spec: Rotations) -> None:
    """Emit three folds in the order of a matrix product."""

    def top(at: str) -> str:
        return text.load("x", f"first + ({at})", "live")

    def bottom(at: str) -> str:
        return text.load("x", f"second + ({at})", "live")

    for name, left, right in (("a", top, top), ("b", bottom, bottom), ("g", top, bottom)):
        state = spec.products.state
        folded(text, 3, f"{name}s", state, "item * 0", "width", left, right, "[PAIRS]")
        settled(text, 3, f"{name}e", spec.terms, f"{name}s", state)
        text.add(3, f"{name} = {variables(f'{name}e', spec.terms)}")


def _halves(text: KernelText, spec: Rotations) -> None:
    """Emit three sums by halves; the first halving is fused with the products."""

    def products(one: str, other: str) -> list[str]:
        x, y = f"{one}[0]", f"{other}[0]"
        return [f"{x} * {x}", f"{y} * {y}", f"{x} * {y}"]

    def loads(indent: int, names: str, offset: str, shape: str, mask: str) -> None:
        for name, row in zip(names, ("first", "second"), strict=True):
            text.add(indent, f"{name} = {text.load('x', f'{row}{shape} + {offset}', mask)}")

    text.add(
        3,
        "half = width // 2 + item * 0",
        "left = item * 0",
        "while left < half:",
        "    column = left + some",
        "    inside = live[:, None] & (column < half)[None, :]",
    )
    loads(4, "uv", "column[None, :]", "[:, None]", "inside")
    loads(4, "yz", "(half + column)[None, :]", "[:, None]", "inside")
    pairs = zip(products("u", "v"), products("y", "z"), strict=True)
    sums = "".join(f"{p} + {q}, " for p, q in pairs)
    text.store(4, "t", "work[:, None] + column[None, :]", f"({sums})", "inside")
    text.add(4, "left += COLUMNS")
    text.add(3, "if width % 2 != 0:")
    loads(4, "qr", "width - 1", "", "live")
    text.store(4, "t", "work + half", f"({', '.join(products('q', 'r'))},)", "live")
    text.add(3, "count = half + width % 2")
    text.add(
        3,
        "while count > 1:",
        "    half = count // 2",
        "    left = item * 0",
        "    while left < half:",
        "        column = left + some",
        "        inside = live[:, None] & (column < half)[None, :]",
        "        here = work[:, None] + column[None, :]",
        f"        u = {text.load('t', 'here', 'inside')}",
        f"        v = {text.load('t', 'here + half', 'inside')}",
    )
    text.store(5, "t", "here", "(u[0] + v[0], u[1] + v[1], u[2] + v[2])", "inside")
    text.add(5, "left += COLUMNS")
    text.add(4, "if count % 2 != 0:")
    text.add(5, f"o = {text.load('t', 'work + count - 1', 'live')}")
    text.store(5, "t", "work + half", "o", "live")
    text.add(4, "count = half + count % 2")
    text.add(
        3,
        f"sums = {text.load('t', 'work', 'live')}",
        "a, b, g = (sums[0],), (sums[1],), (sums[2],)",
    )


@functools.cache
def kernel(spec: Rotations, dialect: Dialect) -> Any:
    """Return the kernel of a declaration."""
    algorithms = dict(spec.products.fold)
    for name in ("rotation", "rotated", "converged"):
        algorithms[name] = getattr(spec, name)
    gone = torch.tensor(VANISHED, dtype=torch.float64, device="cpu").view(torch.int64).item()
    text = source(spec).replace("GONE", str(gone))
    return build(text, f"rotations {spec.terms}", FP64, algorithms, dialect)


@functools.lru_cache(maxsize=16)
def _places(rows: int, device: torch.device) -> Tensor:
    """Return the row at each position in each round of a sweep."""
    order = torch.tensor(next_order(rows), device="cpu")
    found = [torch.arange(rows, device="cpu")]
    for _ in range(rows - 2):
        found.append(found[-1][order])
    return to_device(torch.stack(found), device)


def rotate(
    spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
) -> Tensor:
    """Run Jacobi sweeps; see `mcf.kernels.executor.Executor.rotate`."""
    batch, rows, columns = x[0].shape
    device = x[0].device
    size = batch * (rows // 2) * width if spec.terms == 1 else 0
    scratch = [torch.empty(size, dtype=torch.float64, device=device) for _ in range(3)]
    done = torch.empty(batch, dtype=torch.int64, device=device)
    words = (rows, counted, columns, width, SWEEPS, tolerance)
    constants = sizes(rows, spec.terms)
    tables = (_places(rows, device), done)
    build_sweeps = functools.partial(kernel, spec)
    launching.launch(device, build_sweeps, batch, *x, *scratch, *tables, *words, **constants)
    return done != 0
