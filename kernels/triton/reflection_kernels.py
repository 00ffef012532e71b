"""Reflection kernels for GPUs and for Triton's interpreter: one program per panel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.reflection import Reflection
from mcf.kernels.triton import launching
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.panel_source import KernelText, build, folded, selected, settled, variables

# The largest number of columns of a panel.
WIDTH = 32
WORDS = ("start", "width", "rows", "columns")


def sizes(terms: int) -> int:
    """Return how many rows of a panel are computed at a time."""
    return 16 if terms <= 2 else 8


def source(spec: Reflection) -> str:
    """Return the kernel; operand `a` is R, and v and t receive V and T."""
    terms, state = spec.terms, spec.products.state
    text = KernelText(dict.fromkeys("avt", terms), WORDS, ("ROWS", "WIDTH"))
    text.add(
        1,
        "base = item * rows * columns + start * (columns + 1)",
        "height = rows - start",
        "above = item * height * width",
        "square = item * width * width",
        "i = tl.arange(0, ROWS)",
        "k = item * 0 + tl.arange(0, WIDTH)",
        "j = item * 0",
        "while j < width:",
    )
    _column(text)

    def x(at: str) -> str:
        return text.load("v", f"above + ({at}) * width + j")

    folded(text, 2, "s", state, "j", "height", x, x, "()")
    settled(text, 2, "e", terms, "s", state)
    first = text.load("v", "above + j * width + j")
    text.add(2, f"d, tau = reflector({first}, {variables('e', terms)}, rest == 0)")
    text.add(
        2,
        "top = item * 0",
        "while top < height:",
        "    row = top + i",
        "    live = row < height",
        "    there = above + row * width + j",
        f"    q = quotient({text.load('v', 'there', 'live')}, d)",
    )
    cells = "".join(
        f"tl.where(row > j, q[{c}], tl.where(row == j, {float(c == 0)}, 0.0)), "
        for c in range(terms)
    )
    text.store(3, "v", "there", f"({cells})", "live")
    text.add(3, "top += ROWS")
    _update(text, terms, state)
    text.add(2, "if j > 0:")
    _overlaps(text, terms, state)
    text.store(2, "t", "square + j * width + j", "tau")
    zeros = "(" + "k * 0.0, " * terms + ")"
    text.store(2, "t", "square + k * width + j", zeros, "(k > j) & (k < width)")
    text.add(2, "j += 1")
    return text.text()


def _column(text: KernelText) -> None:
    """Store the scaled x in column j of V, and find whether a number below its first is not 0."""
    text.add(
        2,
        "largest, top = item * 0, j",
        "while top < height:",
        "    row = top + i",
        "    at = base + row * columns + j",
        "    size = key(widen(tl.load(p_a_0 + at, mask=row < height, other=0.0)))",
        "    largest = tl.maximum(largest, tl.reduce(size, 0, LARGEST))",
        "    top += ROWS",
        # Multiplying a subnormal number first makes its exponent readable.
        "tiny = largest.to(tl.float64, bitcast=True) * 18014398509481984.0",
        "exponent = (largest >> 52) - 1022",
        "less = (tiny.to(tl.int64, bitcast=True) >> 52) - 1076",
        "exponent = tl.where(exponent == -1022, less, exponent)",
        "exponent = tl.where((largest == 0) | (exponent == 1025), 0, exponent)",
        # One factor if possible; a power beyond the range of exponents is split in two.
        "main = tl.maximum(-1022, tl.minimum(1023, -exponent))",
        "more = ((1023 - exponent - main) << 52).to(tl.float64, bitcast=True)",
        "power = ((1023 + main) << 52).to(tl.float64, bitcast=True)",
        "rest, top = item * 0, j",
        "while top < height:",
        "    row = top + i",
        "    live = row < height",
        f"    h = scaled({text.load('a', 'base + row * columns + j', 'live')}, more, power)",
        "    counted = (live & (row > j) & (h[0] != 0.0)).to(tl.int64)",
        "    rest = tl.maximum(rest, tl.reduce(counted, 0, LARGEST))",
    )
    text.store(3, "v", "above + row * width + j", "h", "live")
    text.add(3, "top += ROWS")


def _update(text: KernelText, terms: int, state: int) -> None:
    """Emit the update of the columns of R from j on."""
    text.add(2, "later = (k >= j) & (k < width)")

    def row(at: str) -> str:
        return text.load("a", f"base + ({at}) * columns + k", "later")

    def given(at: str) -> str:
        return text.load("v", f"above + ({at}) * width + j")

    folded(text, 2, "r", state, "j", "height", given, row, "[WIDTH]")
    settled(text, 2, "p", terms, "r", state)
    text.add(
        2,
        f"g = product(tau, {variables('p', terms)})",
        f"g = {selected('g', terms, '[None, :]')}",
        "top = j",
        "while top < height:",
        "    row = top + i",
        "    live = row < height",
        f"    m = {text.load('v', 'above + row * width + j', 'live')}",
        f"    m = {selected('m', terms, '[:, None]')}",
        "    inside = live[:, None] & later[None, :]",
        "    cells = base + row[:, None] * columns + k[None, :]",
        f"    z = update({text.load('a', 'cells', 'inside')}, m, g)",
    )
    text.store(3, "a", "cells", "z", "inside")
    text.add(3, "top += ROWS")


def _overlaps(text: KernelText, terms: int, state: int) -> None:
    """Emit column j of T above its diagonal; it first holds V^T v."""

    def given(at: str) -> str:
        return text.load("v", f"above + ({at}) * width + j")

    def row(at: str) -> str:
        return text.load("v", f"above + ({at}) * width + k", "before")

    text.add(3, "before = k < j", "there = square + k * width + j")
    folded(text, 3, "o", state, "item * 0", "height", given, row, "[WIDTH]")
    settled(text, 3, "l", terms, "o", state)
    text.store(3, "t", "there", variables("l", terms), "before")

    def number(at: str) -> str:
        return text.load("t", f"square + ({at}) * width + j")

    def column(at: str) -> str:
        return text.load("t", f"square + k * width + ({at})", "before")

    folded(text, 3, "u", state, "item * 0", "j", number, column, "[WIDTH]")
    settled(text, 3, "y", terms, "u", state)
    text.store(3, "t", "there", f"minus(product(tau, {variables('y', terms)}))", "before")


@functools.cache
def kernel(spec: Reflection, dialect: Dialect) -> Any:
    """Return the kernel of a declaration."""
    algorithms = dict(spec.products.fold)
    for name in ("scaled", "reflector", "quotient", "product", "minus", "update"):
        algorithms[name] = getattr(spec, name)
    return build(source(spec), f"reflection {spec.terms}", FP64, algorithms, dialect)


def panel(
    spec: Reflection, r: Sequence[Tensor], start: int, v: Sequence[Tensor], t: Sequence[Tensor]
) -> None:
    """Reflect a panel; see `mcf.kernels.executor.Executor.reflect`."""
    batch, rows, columns = r[0].shape
    words = (start, v[0].shape[2], rows, columns)
    constants = {"ROWS": sizes(spec.terms), "WIDTH": WIDTH}
    build_panel = functools.partial(kernel, spec)
    launching.launch(r[0].device, build_panel, batch, *r, *v, *t, *words, **constants)
