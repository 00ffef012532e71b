"""Fold kernels for GPUs and for Triton's interpreter.

One kernel stores the partial sums of the lanes, and launches of a second kernel halve them.
`tl.reduce` would combine them in Triton's own order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from mcf.kernels.fold import BLOCK, GROUP, LANES, STEP, Fold
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.triton import launching
from mcf.kernels.triton.device_functions import binder
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.register_rounding import widening

# Results of a matrix product per program, and elements per program of a halving.
ROWS, COLUMNS = 8, 64
HALVED = 256
# Limit of partial sums in memory; larger inputs are folded in several parts.
PARTIAL = 1 << 27

# The size arguments of each kernel.
SUM_SIZES = ("start", "total", "blocks", "items", "kept")
PRODUCT_SIZES = ("rows", "inner", "columns", "stride", "across", "down")
HALVING_SIZES = ("plane", "shift", "n")

_TYPES = {FP32: tl.float32, FP64: tl.float64}


def _loads(spec: Fold, offsets: list[str], masks: list[str]) -> str:
    """Return a call of the term on elements at the given offsets."""
    operands = []
    for o, count in enumerate(spec.components):
        mask = f", mask={masks[o]}, other=0.0" if masks[o] else ""
        cells = [f"widen_{o}(tl.load(p_{o}_{c} + {offsets[o]}{mask}))" for c in range(count)]
        operands.append("(" + ", ".join(cells) + ",)")
    return f"term({', '.join(operands)})"


def _tree(terms: list[str]) -> str:
    while len(terms) > 1:
        terms = [f"merge({a}, {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


def _pointers(spec: Fold) -> str:
    return ", ".join(f"p_{o}_{c}" for o, n in enumerate(spec.components) for c in range(n))


def _names(spec: Fold, prefix: str) -> str:
    return ", ".join(f"{prefix}{k}" for k in range(spec.state)) + ","


def _assign(
    spec: Fold, indent: int, new: str, value: str, live: str = "live", old: str = "zero"
) -> str:
    """Return statements that set the partial sum where `live`.

    Args:
        spec: the fold.
        indent: the depth of the statements.
        new: the prefix of the value's variables, which no other statements of the kernel may
            have: a register of a term may be the literal 0.0, and Triton refuses a variable that
            is a number in one branch and a block in another.
        value: the expression of the new partial sum.
        live: the mask.
        old: the value where the mask is false: "zero", or the prefix of the old partial sum.
    """
    pad = "    " * indent
    lines = [f"{pad}{_names(spec, new)} = {value}"]
    for k in range(spec.state):
        other = old if old == "zero" else f"{old}{k}"
        lines.append(f"{pad}s{k} = tl.where({live}, {new}{k}, {other})")
    return "\n".join(lines)


def sum_source(spec: Fold) -> str:
    """Return the kernel that folds block b of row m to lanes and stores `kept` of them."""
    operands = len(spec.components)
    state = f"({_names(spec, 's')})"

    def terms(offset: str, mask: str) -> str:
        return _loads(spec, [offset] * operands, [mask] * operands)

    group = _tree([terms(f"chunk + first + {r} * STEP", "") for r in range(GROUP)])
    # Offsets of partial sums exceed 2**31 before those of elements do: `item` has 64 bits.
    stores = "\n".join(
        f"    tl.store(out_ptr + ((item * 0 + {k}) * kept + j) * items + item, s{k}, mask=j < kept)"
        for k in range(spec.state)
    )
    return f"""
def kernel({_pointers(spec)}, out_ptr, {", ".join(SUM_SIZES)}):
    item = tl.program_id(0).to(tl.int64)
    offset = start + item % blocks * BLOCK
    base = item // blocks * total + offset
    length = tl.minimum(total - offset, BLOCK)
    j = tl.arange(0, LANES)
    chunk = base + j // STEP * (GROUP * STEP) + j % STEP
    zero = tl.full([LANES], 0.0, register)
    live = j < length
    first = length * 0
    if length >= GROUP * LANES:
{_assign(spec, 2, "g", group)}
        first = length * 0 + GROUP * LANES
        while first + GROUP * LANES <= length:
{_assign(spec, 3, "h", f"combine({state}, {group})", old="s")}
            first += GROUP * LANES
    else:
{_assign(spec, 2, "t", terms("base + j", "live"))}
        first = length * 0 + LANES
    while first < length:
        rest = j < length - first
{_assign(spec, 2, "u", f"combine({state}, {terms('base + first + j', 'rest')})", "rest", "s")}
        first += LANES
{stores}
"""


def product_source(spec: Fold) -> str:
    """Return the product kernel: program (matrix, tile) folds ROWS times COLUMNS results."""
    state = f"({_names(spec, 's')})"

    def terms(k: str) -> str:
        offsets = [f"i * inner + ({k})", f"({k}) * columns + j"]
        return _loads(spec, offsets, ["i < rows", "j < columns"])

    group = _tree([terms(f"left_base * 0 + k + {r}") for r in range(GROUP)])
    stores = "\n".join(
        f"    tl.store(out_ptr + (item * 0 + {k}) * stride + cell, s{k}, mask=live)"
        for k in range(spec.state)
    )
    advance = "\n".join(
        f"    p_{o}_{c} += {base}"
        for o, (n, base) in enumerate(
            zip(spec.components, ("left_base", "right_base"), strict=True)
        )
        for c in range(n)
    )
    return f"""
def kernel({_pointers(spec)}, out_ptr, {", ".join(PRODUCT_SIZES)}):
    item = tl.program_id(0).to(tl.int64)
    left_column = item % across * COLUMNS
    top = item // across % down * ROWS
    matrix = item // across // down
    i = (top + tl.arange(0, ROWS))[:, None]
    j = (left_column + tl.arange(0, COLUMNS))[None, :]
    left_base = matrix * rows * inner
    right_base = matrix * inner * columns
{advance}
    live = (i < rows) & (j < columns)
    zero = tl.full([ROWS, COLUMNS], 0.0, register)
    cell = matrix * rows * columns + i * columns + j
    k = item * 0
    if inner >= GROUP:
{_assign(spec, 2, "g", group)}
        k = item * 0 + GROUP
        while k + GROUP <= inner:
{_assign(spec, 3, "h", f"combine({state}, {group})", old="s")}
            k += GROUP
    else:
{_assign(spec, 2, "t", terms("item * 0"))}
        k = item * 0 + 1
    while k < inner:
{_assign(spec, 2, "u", f"combine({state}, {terms('k')})", old="s")}
        k += 1
{stores}
"""


def halving_source(spec: Fold) -> str:
    """Return the kernel that combines rows j and half + j of [state, capacity, M] in place."""
    cells = [
        "("
        + ", ".join(
            f"tl.load(p + (none + {k}) * plane + {at}, mask=live, other=0.0)"
            for k in range(spec.state)
        )
        + ",)"
        for at in ("i", "shift + i")
    ]
    stores = "\n".join(
        f"    tl.store(p + (none + {k}) * plane + i, n{k}, mask=live)" for k in range(spec.state)
    )
    return f"""
def kernel(p, {", ".join(HALVING_SIZES)}):
    none = tl.program_id(0).to(tl.int64) * 0
    i = tl.program_id(0).to(tl.int64) * HALVED + tl.arange(0, HALVED)
    live = i < n
    {_names(spec, "n")} = combine({", ".join(cells)})
{stores}
"""


@functools.cache
def build(spec: Fold, kind: str, dialect: Dialect) -> Any:
    """Return a kernel of a fold: "sum", "product" or "halving"."""
    register = spec.register
    bind = binder(register, register, (("rc", register),), (), dialect)
    namespace: dict[str, Any] = {"register": tl.constexpr(_TYPES[register])}
    for name in ("term", "merge", "combine"):
        namespace[name] = bind(getattr(spec, name))
    for o, fmt in enumerate(spec.formats):
        namespace[f"widen_{o}"] = widening(register, fmt, dialect)
    source, constants = {
        "sum": (sum_source, {"LANES": LANES, "GROUP": GROUP, "STEP": STEP, "BLOCK": BLOCK}),
        "product": (product_source, {"GROUP": GROUP, "ROWS": ROWS, "COLUMNS": COLUMNS}),
        "halving": (halving_source, {"HALVED": HALVED}),
    }[kind]
    return launching.kernel_of(source(spec), f"{kind} {spec.name}", namespace, constants, dialect)


def launch_kernel(spec: Fold, kind: str, programs: int, *arguments: Any) -> None:
    """Launch a kernel of a fold on the device of its first argument."""
    build_kind = functools.partial(build, spec, kind)
    launching.launch(arguments[0].device, build_kind, programs, *arguments)


def _halve(spec: Fold, state: Tensor, count: int) -> Tensor:
    """Halve the first `count` rows of [state, capacity, M] in place; return row 0, [state, M]."""
    capacity, width = state.shape[1:]
    while count > 1:
        half = (count + 1) // 2
        n = (count - half) * width
        plane, shift = capacity * width, half * width
        launch_kernel(spec, "halving", -(-n // HALVED), state, plane, shift, n)
        count = half
    return state[:, 0]


def fold(spec: Fold, operands: list[list[Tensor]]) -> Tensor:
    """Fold rows; see `mcf.kernels.executor.Executor.fold`."""
    components = [c for operand in operands for c in operand]
    outer, total = components[0].shape
    most = max(1, PARTIAL // (spec.state * min(LANES, total) * -(-total // BLOCK)))
    if outer > most:
        return torch.cat(
            [fold(spec, [[c[k : k + most] for c in components]]) for k in range(0, outer, most)], 1
        )
    # A last block with fewer elements than lanes has a tree of its own.
    full = total - total % BLOCK if total % BLOCK < LANES else total
    parts = []
    for start, stop in ((0, full), (full, total)):
        if start == stop:
            continue
        blocks = -(-(stop - start) // BLOCK)
        items = outer * blocks
        kept = min(LANES, stop - start)
        lanes = torch.empty(
            spec.state, kept, items, dtype=spec.register.dtype, device=components[0].device
        )
        launch_kernel(spec, "sum", items, *components, lanes, start, total, blocks, items, kept)
        sums = _halve(spec, lanes, kept)
        parts.append(sums.reshape(spec.state, outer, blocks))
    state = torch.cat(parts, 2).transpose(1, 2).contiguous()
    return _halve(spec, state, state.shape[1]).contiguous()


def product(spec: Fold, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Fold matrix products; see `mcf.kernels.executor.Executor.product`."""
    batch, rows, inner = left[0].shape
    columns = right[0].shape[2]
    out = torch.empty(
        spec.state, batch, rows, columns, dtype=spec.register.dtype, device=left[0].device
    )
    across, down = -(-columns // COLUMNS), -(-rows // ROWS)
    sizes = (rows, inner, columns, batch * rows * columns, across, down)
    launch_kernel(spec, "product", batch * across * down, *left, *right, out, *sizes)
    return out
