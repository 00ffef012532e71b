"""Folds on the CPU: loops over lanes that vectorise, and items that threads share."""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from mcf.kernels.fold import BLOCK, GROUP, LANES, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba import memory
from mcf.kernels.numba.build import bindings
from mcf.kernels.numba.launch import in_parallel

# Rows and columns of a matrix product that one item computes: GROUP rows of the right matrix stay
# in the first level of cache while the item's rows go over them.
ROWS, COLUMNS = 32, 128

_lock = threading.RLock()


class _Source:
    """The text of a kernel, indented as it grows."""

    def __init__(self, spec: Fold) -> None:
        self.spec = spec
        self.lines: list[str] = []

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def term(self, indices: list[str]) -> str:
        """A call of the term on one element of each operand, given its index."""
        operands = []
        for o, (count, index) in enumerate(zip(self.spec.components, indices, strict=True)):
            loads = [f"load_{o}_{c}(address_{o}_{c}, {index})" for c in range(count)]
            operands.append("(" + ", ".join(loads) + ",)")
        return f"term({', '.join(operands)})"

    def tree(self, terms: list[str]) -> str:
        while len(terms) > 1:
            terms = [f"merge({a}, {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        return terms[0]

    def state(self, index: str, shadow: bool = False) -> str:
        """The partial sum of a lane; `shadow` reads a lane which the loop does not write."""
        which = "peek" if shadow else "lane"
        cells = [f"{which}(lanes, {k} * STRIDE + {index})" for k in range(self.spec.state)]
        return "(" + ", ".join(cells) + ",)"

    def store(self, depth: int, index: str, value: str) -> None:
        names = ", ".join(f"s{k}" for k in range(self.spec.state))
        self.add(depth, f"{names}, = {value}")
        for k in range(self.spec.state):
            self.add(depth, f"store(lanes, {k} * STRIDE + {index}, s{k})")

    def addresses(self, depth: int) -> None:
        k = 0
        for o, count in enumerate(self.spec.components):
            for c in range(count):
                self.add(depth, f"address_{o}_{c} = addresses[item, {k}]")
                k += 1


def sum_source(spec: Fold) -> str:
    """The kernel that folds blocks: item k of `addresses` and `lengths` is one block."""
    text = _Source(spec)
    operands = len(spec.components)

    def row(r: str) -> list[str]:
        return [f"({r}) * LANES + j"] * operands

    group = text.tree([text.term(row(f"first + {r}")) for r in range(GROUP)])
    text.add(0, "def kernel(addresses, lengths, lanes, out, begin, end):")
    text.add(1, "prefer_wide_vectors()", "for item in range(begin, end):")
    text.addresses(2)
    text.add(
        2,
        "length = lengths[item]",
        "rows = length // LANES",
        "count = min(length, LANES)",
        "first = 0",
        "if rows >= GROUP:",
    )
    text.add(3, "for j in range(LANES):")
    text.store(4, "j", group)
    text.add(3, "first = GROUP", "while first + GROUP <= rows:")
    text.add(4, "for j in range(LANES):")
    text.store(5, "j", f"combine({text.state('j')}, {group})")
    text.add(4, "first += GROUP")
    text.add(2, "else:")
    text.add(3, "for j in range(count):")
    text.store(4, "j", text.term(["j"] * operands))
    text.add(3, "first = 1")
    text.add(2, "for r in range(first, rows + 1):")
    text.add(3, "for j in range(min(LANES, length - r * LANES)):")
    text.store(4, "j", f"combine({text.state('j')}, {text.term(row('r'))})")
    text.add(2, "while count > 1:")
    text.add(3, "half = (count + 1) // 2", "for j in range(count - half):")
    text.store(4, "j", f"combine({text.state('j')}, {text.state('half + j', shadow=True)})")
    text.add(3, "count = half")
    for k in range(spec.state):
        text.add(2, f"out[{k}, item] = lane(lanes, {k} * STRIDE)")
    return "\n".join(text.lines) + "\n"


def product_source(spec: Fold) -> str:
    """The kernel that folds the inner dimension of a matrix product.

    An item is a block of at most ROWS times COLUMNS results of one matrix; `starts` holds its
    first row and column and `addresses` the matrices' first elements. Lanes are the results
    themselves.
    """
    text = _Source(spec)

    def element(k: str) -> list[str]:
        return [f"i * inner + {k}", f"({k}) * columns + left_column + j"]

    group = text.tree([text.term(element(f"k + {r}")) for r in range(GROUP)])
    text.add(0, "def kernel(addresses, results, starts, rows, inner, columns, STRIDE, begin, end):")
    text.add(1, "prefer_wide_vectors()", "for item in range(begin, end):")
    text.addresses(2)
    text.add(
        2,
        "lanes = results[item]",
        "top = starts[item, 0]",
        "left_column = starts[item, 1]",
        "bottom = min(top + ROWS, rows)",
        "width = min(COLUMNS, columns - left_column)",
        "k = 0",
    )
    cell = "i * columns + left_column + j"
    for condition, kind, step in (
        ("while k + GROUP <= inner", group, "GROUP"),
        ("while k < inner", text.term(element("k")), "1"),
    ):
        text.add(2, f"{condition}:")
        text.add(3, "if k == 0:")
        text.add(4, "for i in range(top, bottom):")
        text.add(5, "for j in range(width):")
        text.store(6, cell, kind)
        text.add(3, "else:")
        text.add(4, "for i in range(top, bottom):")
        text.add(5, "for j in range(width):")
        text.store(6, cell, f"combine({text.state(cell)}, {kind})")
        text.add(3, f"k += {step}")
    return "\n".join(text.lines) + "\n"


@functools.cache
def _compiled(spec: Fold, make: Callable[[Fold], str]) -> Callable[..., None]:
    bind = bindings(FP64, FP64, (("rc", FP64),), (), True)
    namespace: dict[str, Any] = {
        "term": bind(spec.term),
        "merge": bind(spec.merge),
        "combine": bind(spec.combine),
        "LANES": LANES,
        "GROUP": GROUP,
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "STRIDE": LANES,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
    }
    count = sum(spec.components) + 2
    # A lane which a loop reads and another which it writes never coincide there.
    namespace["lane"] = memory.loading(FP64, FP64, count - 1, count)
    namespace["store"] = memory.storing(FP64, FP64, count - 1, count)
    namespace["peek"] = memory.loading(FP64, FP64, count - 2, count)
    k = 0
    for o, (components, fmt) in enumerate(zip(spec.components, spec.formats, strict=True)):
        for c in range(components):
            namespace[f"load_{o}_{c}"] = memory.loading(FP64, fmt, k, count)
            k += 1
    text = make(spec)
    filename = f"<mcf numba {make.__name__} {spec.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    signature = (
        "void(uint64[:, ::1], int64[::1], uint64, float64[:, ::1], int64, int64)"
        if make is sum_source
        else "void(uint64[:, ::1], uint64[::1], int64[:, ::1], int64, int64, int64, int64, int64, "
        "int64)"
    )
    return numba.njit(signature, error_model="numpy", nogil=True)(namespace["kernel"])


def _kernel(spec: Fold, make: Callable[[Fold], str]) -> Callable[..., None]:
    with _lock:
        return _compiled(spec, make)


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """See `mcf.kernels.fold.fold`."""
    kernel = _kernel(spec, sum_source)
    components = [c for operand in operands for c in operand]
    outer, length = components[0].shape
    blocks = -(-length // BLOCK)
    base = np.array([c.data_ptr() for c in components], dtype=np.uint64)
    widths = np.array([c.element_size() for c in components], dtype=np.uint64)
    start = np.arange(blocks, dtype=np.uint64) * np.uint64(BLOCK)
    start = (np.arange(outer, dtype=np.uint64)[:, None] * np.uint64(length) + start).ravel()
    addresses = base + start[:, None] * widths
    lengths = np.tile(np.minimum(length - np.arange(blocks) * BLOCK, BLOCK), outer)
    out = np.empty((spec.state, outer * blocks))

    def part(begin: int, end: int) -> None:
        lanes = np.empty(spec.state * LANES)
        kernel(addresses, lengths, lanes.ctypes.data, out, begin, end)

    in_parallel(part, lengths)
    if blocks > 1:
        # Blocks by row and rows inside: halving then runs over contiguous rows.
        out = _halve(spec, np.ascontiguousarray(out.reshape(-1, outer, blocks).transpose(0, 2, 1)))
    return torch.from_numpy(out.reshape(spec.state, outer))


def _halve(spec: Fold, state: Any) -> Any:
    """Halve [state, count, M] along the middle."""
    kernel = _halving(spec)
    count = state.shape[1]
    while count > 1:
        half = (count + 1) // 2
        kernel(state, count, half)
        count = half
    return state[:, 0]


@functools.cache
def _halving(spec: Fold) -> Any:
    bind = bindings(FP64, FP64, (("rc", FP64),), (), True)
    names = ", ".join(f"s{k}" for k in range(spec.state))
    cells = [
        "(" + ", ".join(f"state[{k}, {row}, m]" for k in range(spec.state)) + ",)"
        for row in ("j", "half + j")
    ]
    text = "\n".join(
        [
            "def halve(state, count, half):",
            "    for j in range(count - half):",
            "        for m in range(state.shape[2]):",
            f"            {names}, = combine({', '.join(cells)})",
            *(f"            state[{k}, j, m] = s{k}" for k in range(spec.state)),
        ]
    )
    namespace: dict[str, Any] = {"combine": bind(spec.combine)}
    exec(compile(text, f"<mcf numba halve {spec.name}>", "exec", dont_inherit=True), namespace)
    signature = "void(float64[:, :, ::1], int64, int64)"
    with _lock:
        return numba.njit(signature, error_model="numpy", nogil=True)(namespace["halve"])


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """See `mcf.kernels.fold.product`."""
    kernel = _kernel(spec, product_source)
    batch, rows, inner = left[0].shape
    columns = right[0].shape[2]
    out = np.empty((spec.state, batch, rows, columns))
    tops, lefts = np.arange(0, rows, ROWS), np.arange(0, columns, COLUMNS)
    b, left_column, top = (
        x.ravel() for x in np.meshgrid(np.arange(batch), lefts, tops, indexing="ij")
    )
    starts = np.ascontiguousarray(np.stack([top, left_column], 1))
    addresses = np.stack(
        [
            np.uint64(c.data_ptr()) + b.astype(np.uint64) * np.uint64(size * c.element_size())
            for cs, size in ((left, rows * inner), (right, inner * columns))
            for c in cs
        ],
        1,
    )
    results = np.uint64(out.ctypes.data) + b.astype(np.uint64) * np.uint64(8 * rows * columns)
    work = np.minimum(rows - top, ROWS) * np.minimum(columns - left_column, COLUMNS) * inner
    stride = batch * rows * columns

    def part(begin: int, end: int) -> None:
        kernel(addresses, results, starts, rows, inner, columns, stride, begin, end)

    in_parallel(part, work)
    return torch.from_numpy(out)
