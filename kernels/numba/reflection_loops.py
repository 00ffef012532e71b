"""Reflections on the CPU, a panel by one call of a compiled loop; `reflection_text` writes it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.numba import keys, objects, reflection_text, rewrite, stored, team
from mcf.kernels.numba.reflection_text import PAD
from mcf.kernels.reflection import ComplexFold, Reflection


@functools.cache
def _compiled(spec: Reflection) -> objects.Native:
    text = reflection_text.source(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba import compiler

        return rewrite.rewritten(compiler.reflection(spec, text))

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
    """See `mcf.kernels.executor.Executor.reflect`."""
    batch, rows, columns = r[0].shape
    height, width = v[0].shape[1:]
    rest = columns - start - width if whole else 0
    wanted = 0 if q is None else q[0].shape[2]
    work = batch * height * width * (width + rest + wanted)
    threads = torch.get_num_threads() if work > team.SERIAL else 1
    parts = max(1, min(threads, batch))
    length = width + PAD
    side = max(rest, wanted) + PAD
    s_size = max(length, side)
    m_size = (2 * height + width) * length + height + length + (height + 2 * width) * side
    v_size = 2 * (height + length) + s_size
    sizes = [(m_size, spec.terms), (v_size, spec.terms), (s_size, spec.fold.state)]
    scratch = [torch.zeros(n, parts * size, dtype=torch.float64, device="cpu") for size, n in sizes]
    operands = [*r, *v, *t, *(q or t), *(c for memory in scratch for c in memory)]
    bases = array("Q", [c.data_ptr() for c in operands])
    shares = team.shares(batch, parts)
    words = {
        "bases": bases.buffer_info()[0],
        "shares": shares.buffer_info()[0],
        "parts": parts,
        "rows": rows,
        "columns": columns,
        "start": start,
        "width": width,
        "length": length,
        "m_size": m_size,
        "v_size": v_size,
        "s_size": s_size,
        "rest": rest,
        "wanted": wanted,
        "side": side,
    }
    table = array("Q", [words[name] for name in reflection_text.WORDS])
    with stored.lock:
        address = _compiled(spec).address
    team.run(address, table.buffer_info()[0], parts)
