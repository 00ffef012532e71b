"""Reflections on the CPU, with one call of a compiled loop per panel.

`reflection_text` generates it, and `reflection_lanes` the loop for batches of small matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import lane_text, reflection_lanes, reflection_text
from mcf.kernels.numba.loops.matrices.matrix_loop import MatrixLoop, memory
from mcf.kernels.numba.loops.matrices.reflection_text import PAD
from mcf.kernels.reflection import ComplexFold, Reflection


@functools.cache
def _compiled(spec: Reflection, lanes: bool = False) -> objects.Native:
    written = reflection_lanes if lanes else reflection_text
    text, letters = written.source(spec), written.operands(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(compiler.reflection(spec, text, letters))

    fold = spec.fold
    used = (fold.term, fold.merge, fold.combine, spec.scaled, spec.settle, spec.reflector)
    used += (spec.quotient, spec.product, spec.minus, spec.update, spec.difference, spec.magnitude)
    if isinstance(fold, ComplexFold):
        used += (fold.alone, fold.joined, spec.conjugate, spec.turned)
    return stored.native(
        ("reflection", text, [keys.algorithm(f) for f in used], spec.terms, fold.state), make
    )


def panel(
    spec: Reflection,
    r: Sequence[Tensor],
    start: int,
    v: Sequence[Tensor],
    t: Sequence[Tensor],
    whole: bool,
    q: Sequence[Tensor] | None,
) -> None:
    """Reflect a panel, see `mcf.kernels.executor.Executor.reflect`."""
    wanted = 0 if q is None else q[0].shape[2]
    if whole and start == 0 and _are_lanes(*r[0].shape):
        _of_lanes(spec, r[0].shape, wanted).run([*r, *(q or r)])
    else:
        loop = _of_rows(spec, r[0].shape, start, v[0].shape, whole, wanted)
        loop.run([*r, *(q or t), *v, *t])


@functools.lru_cache(1024)
def _of_rows(
    spec: Reflection, shape: torch.Size, start: int, panel: torch.Size, whole: bool, wanted: int
) -> MatrixLoop:
    """Return the loop over panels [B, height, width] of matrices [B, m, n]."""
    batch, rows, columns = shape
    _, height, width = panel
    rest = columns - start - width if whole else 0
    work = batch * height * width * (width + rest + wanted)
    words = {"rows": rows, "columns": columns, "start": start, "width": width}
    words |= _sizes(height, width, rest, wanted)
    with stored.lock:
        address = _compiled(spec).address
    workspace = functools.partial(_workspace, spec, words)
    return MatrixLoop(address, reflection_text.WORDS, words, batch, work, workspace)


def _sizes(height: int, width: int, rest: int, wanted: int) -> dict[str, int]:
    """Return the fields with row lengths and sizes of a thread's memory."""
    length = width + PAD
    side = max(rest, wanted) + PAD
    s_size = max(length, side)
    m_size = (2 * height + width) * length + height + length + (height + 2 * width) * side
    words = {"length": length, "m_size": m_size, "v_size": 2 * (height + length) + s_size}
    return words | {"s_size": s_size, "rest": rest, "wanted": wanted, "side": side}


def _workspace(spec: Reflection, words: dict[str, int], parts: int) -> tuple[Any, list[int]]:
    """Return scratch memory for `parts` threads, and its addresses."""
    counts = {"m": spec.terms, "v": spec.terms, "s": spec.fold.state}
    sizes = {kind: words[f"{kind}_size"] for kind in counts}
    return memory(counts, sizes, torch.float64, parts)


def _are_lanes(batch: int, rows: int, columns: int) -> bool:
    return lane_text.across(batch, max(rows, columns), most=lane_text.MOST_REFLECTED)


@functools.lru_cache(1024)
def _of_lanes(spec: Reflection, shape: torch.Size, wanted: int) -> MatrixLoop:
    """Return the loop over blocks of small matrices [B, m, n]."""
    batch, rows, columns = shape
    width = min(rows, columns)
    sizes = reflection_lanes.sizes(rows, columns)
    words = {"rows": rows, "columns": columns, "width": width, "batch": batch, "wanted": wanted}
    words |= {f"{kind}_size": sizes[kind] for kind in "mv"}
    workspace = functools.partial(memory, reflection_lanes.operands(spec), sizes, torch.float64)
    with stored.lock:
        address = _compiled(spec, True).address
    work = batch * rows * width * (columns + wanted)
    return MatrixLoop(
        address, reflection_lanes.WORDS, words, lane_text.blocks(batch), work, workspace
    )
