"""Folds on the CPU: loops over lanes that vectorise, and items that threads share."""

from __future__ import annotations

import functools
import linecache
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numba
import torch
from torch import Tensor

from mcf.kernels.fold import BLOCK, CHUNK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import FP64
from mcf.kernels.numba import loops, memory, rewrite, team
from mcf.kernels.numba.build import _jit, bindings
from mcf.kernels.numba.launch import SERIAL

# Rows and columns of a matrix product that one item computes: GROUP rows of the right matrix stay
# in the first level of cache while the item's rows go over them.
ROWS, COLUMNS = 32, 128

# The words of the tables that kernels are called with. `bases` are the components' addresses, all
# else but `out`, `lanes` and `shares` is a number; `step` is STEP, which LLVM must not know: it
# would unroll the loop over it before it vectorises.
SUM = ("bases", "out", "lanes", "shares", "parts", "total", "blocks", "items", "step")
PRODUCT = (
    *("bases", "out", "shares", "parts"),
    *("rows", "inner", "columns", "stride", "down", "across"),
)
_ADDRESSES = ("bases", "out", "lanes", "shares")

_lock = threading.RLock()


class _Source:
    """The text of a kernel, indented as it grows."""

    def __init__(self, spec: Fold, words: Sequence[str]) -> None:
        self.spec = spec
        # Functions that are steps of loops, before the kernel.
        self.steps: list[str] = []
        self.lines = ["def kernel(data):"]
        self.addresses = [
            f"address_{o}_{c}" for o, count in enumerate(spec.components) for c in range(count)
        ]
        self.add(1, "prefer_wide_vectors()")
        for k, name in enumerate(words):
            self.add(1, f"{name} = {'word' if name in _ADDRESSES else 'number'}(data, {k})")
        for k, address in enumerate(self.addresses):
            self.add(1, f"{address} = word(bases, {k})")
        self.add(1, *team.ITEMS)

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def text(self) -> str:
        return "\n".join([*self.steps, *self.lines]) + "\n"

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
        cells = [f"{which}(lanes, {k} * stride + {index})" for k in range(self.spec.state)]
        return "(" + ", ".join(cells) + ",)"

    def lanes(
        self, depth: int, first: str, last: str, names: Sequence[str], index: str, value: str
    ) -> None:
        """A loop for j = first, ..., last - 1 that stores `value` as the partial sum at `index`.

        Args:
            depth: of the loop.
            first: a number.
            last: a number.
            names: the variables, beside j and addresses, that `index` and `value` use.
            index: of the lane.
            value: the partial sum.
        """
        results = ", ".join(f"s{k}" for k in range(self.spec.state))
        stores = [f"store(lanes, {k} * stride + {index}, s{k})" for k in range(self.spec.state)]
        name = f"step{len(self.steps)}"
        arguments = [*self.addresses, "lanes", "stride", *names]
        self.steps += loops.step(name, "j", arguments, [f"{results}, = {value}", *stores])
        self.add(depth, loops.call(name, first, last, arguments))


def sum_source(spec: Fold) -> str:
    """The kernel that folds blocks: item k is block k % blocks of row k // blocks."""
    text = _Source(spec, SUM)
    operands = len(spec.components)

    def chunk(depth: int, combined: bool) -> None:
        at = [f"start + t * GROUP + {r} * STEP + j" for r in range(GROUP)]
        value = text.tree([text.term([index] * operands) for index in at])
        if combined:
            value = f"combine({text.state('t + j')}, {value})"
        text.add(depth, "for t in range(0, LANES, STEP):")
        text.lanes(depth + 1, "0", "step", ["start", "t"], "t + j", value)
        text.add(depth, "start += CHUNK")

    def rest(depth: int, count: str, combined: bool) -> None:
        value = text.term(["start + j"] * operands)
        if combined:
            value = f"combine({text.state('j')}, {value})"
        text.lanes(depth, "0", count, ["start"], "j", value)
        text.add(depth, "start += LANES")

    inside = team.ITEMS_DEPTH + 2
    text.add(
        inside - 1,
        "stride = LANES",
        f"lanes = advance(lanes_of_all, arrival * {spec.state} * LANES)",
        "start = item // blocks * total + item % blocks * BLOCK",
        "stop = min(start + BLOCK, (item // blocks + 1) * total)",
        "count = min(stop - start, LANES)",
        "if start + CHUNK <= stop:",
    )
    chunk(inside, False)
    text.add(inside, "while start + CHUNK <= stop:")
    chunk(inside + 1, True)
    text.add(inside - 1, "else:")
    rest(inside, "count", False)
    text.add(inside - 1, "while start < stop:")
    rest(inside, "min(LANES, stop - start)", True)
    text.add(inside - 1, "while count > 1:", "    half = (count + 1) // 2")
    merged = f"combine({text.state('j')}, {text.state('half + j', shadow=True)})"
    text.lanes(inside, "0", "count - half", ["half"], "j", merged)
    text.add(inside, "count = half")
    for k in range(spec.state):
        text.add(inside - 1, f"store(out, {k} * items + item, lane(lanes, {k} * stride))")
    return text.text().replace("    lanes = word", "    lanes_of_all = word", 1)


def product_source(spec: Fold) -> str:
    """The kernel that folds the inner dimension of matrix products.

    An item is a block of at most ROWS times COLUMNS results of one matrix. Lanes are the results
    themselves. Items go along rows first, so that threads work on different rows: what one
    prefetches beyond the end of its block another would have to take back.
    """
    text = _Source(spec, PRODUCT)

    def element(k: str) -> list[str]:
        return [f"i * inner + {k}", f"(right + {k}) * columns + j"]

    group = text.tree([text.term(element(f"k + {r}")) for r in range(GROUP)])
    inside = team.ITEMS_DEPTH + 2
    text.add(
        inside - 1,
        "lanes = out",
        "matrix = item // down // across",
        "left_column = item % across * COLUMNS",
        "last_column = min(left_column + COLUMNS, columns)",
        "top = item // across % down * ROWS",
        "bottom = matrix * rows + min(top + ROWS, rows)",
        "top += matrix * rows",
        "right = matrix * inner",
        "k = 0",
    )
    cell = "i * columns + j"
    names = ["i", "k", "inner", "columns", "right"]
    for condition, value, step in (
        ("while k + GROUP <= inner", group, "GROUP"),
        ("while k < inner", text.term(element("k")), "1"),
    ):
        text.add(inside - 1, f"{condition}:")
        for case, stored in (
            ("if k == 0", value),
            ("else", f"combine({text.state(cell)}, {value})"),
        ):
            text.add(inside, f"{case}:")
            text.add(inside + 1, "for i in range(top, bottom):")
            text.lanes(inside + 2, "left_column", "last_column", names, cell, stored)
        text.add(inside, f"k += {step}")
    return text.text()


@functools.cache
def _compiled(spec: Fold, make: Callable[[Fold], str]) -> tuple[int, Any]:
    bind = bindings(FP64, FP64, (("rc", FP64),), (), True)
    namespace: dict[str, Any] = {
        "term": bind(spec.term),
        "merge": bind(spec.merge),
        "combine": bind(spec.combine),
        "LANES": LANES,
        "GROUP": GROUP,
        "CHUNK": CHUNK,
        "STEP": STEP,
        "BLOCK": BLOCK,
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "prefer_wide_vectors": memory.prefer_wide_vectors,
        "word": memory.word,
        "number": memory.number,
        "advance": memory.advance,
        "claim": team.claim,
        "over": loops.over(),
        "jit": _jit,
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
    return rewrite.rewritten(numba.cfunc("void(uint64)", error_model="numpy")(namespace["kernel"]))


def _run(
    spec: Fold, make: Callable[[Fold], str], threads: int, items: int, words: dict[str, int]
) -> None:
    """Call a kernel on its table; `words` lacks the shares."""
    with _lock:
        address, _ = _compiled(spec, make)
    parts = min(threads, items)
    shares = team.shares(items, parts)
    words |= {"shares": shares.buffer_info()[0], "parts": parts}
    table = array("Q", [words[name] for name in (SUM if make is sum_source else PRODUCT)])
    team.run(address, table.buffer_info()[0], parts)


def _threads(work: int) -> int:
    return torch.get_num_threads() if work > SERIAL else 1


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """See `mcf.kernels.fold.fold`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    blocks = -(-total // BLOCK)
    items = outer * blocks
    threads = _threads(outer * total)
    bases = array("Q", [c.data_ptr() for c in components])
    out = torch.empty((spec.state, items), dtype=torch.float64, device="cpu")
    lanes = torch.empty((threads, spec.state, LANES), dtype=torch.float64, device="cpu")
    words = {
        "bases": bases.buffer_info()[0],
        "out": out.data_ptr(),
        "lanes": lanes.data_ptr(),
        "total": total,
        "blocks": blocks,
        "items": items,
        "step": STEP,
    }
    _run(spec, sum_source, threads, items, words)
    if blocks == 1:
        return out
    # Blocks by row and rows inside: halving then runs over contiguous rows.
    by_row = out.reshape(-1, outer, blocks).transpose(1, 2).contiguous()
    return torch.from_numpy(_halve(spec, by_row.numpy())).reshape(spec.state, outer)


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
    batch, rows, inner = left[0].shape
    columns = right[0].shape[2]
    out = torch.empty((spec.state, batch, rows, columns), dtype=torch.float64, device="cpu")
    bases = array("Q", [c.data_ptr() for c in (*left, *right)])
    down, across = -(-rows // ROWS), -(-columns // COLUMNS)
    words = {
        "bases": bases.buffer_info()[0],
        "out": out.data_ptr(),
        "rows": rows,
        "inner": inner,
        "columns": columns,
        "stride": batch * rows * columns,
        "down": down,
        "across": across,
    }
    threads = _threads(batch * rows * columns * inner)
    _run(spec, product_source, threads, batch * across * down, words)
    return out
