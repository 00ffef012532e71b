"""Reflections on the CPU, a panel by one call of a compiled loop.

`reflection_text` writes it, and `reflection_lanes` that of small matrices of a batch.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices import lane_text, reflection_lanes, reflection_text
from mcf.kernels.numba.loops.matrices.one_panel import OnePanel, memory
from mcf.kernels.numba.loops.matrices.reflection_text import PAD
from mcf.kernels.numba.runtime import team
from mcf.kernels.reflection import ComplexFold, Reflection
from mcf.kernels.sequence import Bindable, Bound


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
    """See `mcf.kernels.executor.Executor.reflect`."""
    batch, rows, columns = r[0].shape
    height, width = v[0].shape[1:]
    rest = columns - start - width if whole else 0
    wanted = 0 if q is None else q[0].shape[2]
    if whole and start == 0 and _are_lanes(batch, rows, columns):
        every = one_reflection(spec, r[0].shape, wanted)
        every([*map(_address, r)], [*map(_address, q or ())])
        return
    work = batch * height * width * (width + rest + wanted)
    threads = torch.get_num_threads() if work > team.SERIAL else 1
    parts = max(1, min(threads, batch))
    words = {"rows": rows, "columns": columns, "start": start, "width": width}
    words |= _sizes(height, width, rest, wanted)
    _memory, scratch = _room(spec, words, parts)
    bases = array("Q", [*map(_address, (*r, *(q or t), *v, *t)), *scratch])
    shares = team.shares(batch, parts)
    words |= {"bases": bases.buffer_info()[0], "shares": shares.buffer_info()[0], "parts": parts}
    table = array("Q", [words[name] for name in reflection_text.WORDS])
    with stored.lock:
        address = _compiled(spec).address
    team.run(address, table.buffer_info()[0], parts)


_address = Tensor.data_ptr


def _sizes(height: int, width: int, rest: int, wanted: int) -> dict[str, int]:
    """The words that say how long rows are, and a thread's memory."""
    length = width + PAD
    side = max(rest, wanted) + PAD
    s_size = max(length, side)
    m_size = (2 * height + width) * length + height + length + (height + 2 * width) * side
    words = {"length": length, "m_size": m_size, "v_size": 2 * (height + length) + s_size}
    return words | {"s_size": s_size, "rest": rest, "wanted": wanted, "side": side}


def _room(spec: Reflection, words: dict[str, int], parts: int) -> tuple[Any, list[int]]:
    """Scratch memory for so many threads, and where it is."""
    counts = {"m": spec.terms, "v": spec.terms, "s": spec.fold.state}
    sizes = {kind: words[f"{kind}_size"] for kind in counts}
    return memory(counts, sizes, torch.float64, parts)


def one_reflection(spec: Reflection, shape: Sequence[int], wanted: int) -> OneReflection:
    """See `mcf.kernels.executor.Executor.prepare_reflection`."""
    batch, rows, columns = shape
    width = min(rows, columns)
    rest = columns - width
    work = batch * rows * width * (width + rest + wanted)
    words = {"rows": rows, "columns": columns, "width": width}
    if _are_lanes(batch, rows, columns):
        return _of_lanes(spec, words | {"batch": batch, "wanted": wanted}, work)
    words |= {"start": 0} | _sizes(rows, width, rest, wanted)

    def room(parts: int) -> tuple[Any, list[int]]:
        kept, scratch = _room(spec, words, parts)
        # V and T, of which nobody asks.
        sizes = [batch * rows * width] * spec.terms + [batch * width * width] * spec.terms
        own = [torch.empty(size, dtype=torch.float64, device="cpu") for size in sizes]
        return (kept, own), [*map(Tensor.data_ptr, own), *scratch]

    with stored.lock:
        address = _compiled(spec).address
    return OneReflection(OnePanel(address, reflection_text.WORDS, words, batch, work, room))


class OneReflection(Bindable):
    """What `prepare_reflection` returns; as a step it takes R and Q, or R twice."""

    def __init__(self, panel: OnePanel) -> None:
        """The loop."""
        self._panel = panel

    def __call__(self, r: list[int], q: list[int]) -> Any:
        """See `mcf.kernels.executor.Executor.prepare_reflection`."""
        return self._panel(r + (q or r), [])

    def bound(self, addresses: Sequence[int]) -> Bound | None:
        """The call for these addresses."""
        return self._panel.bound([*addresses], [])


def _are_lanes(batch: int, rows: int, columns: int) -> bool:
    return lane_text.across(batch, max(rows, columns), most=lane_text.MOST_REFLECTED)


def _of_lanes(spec: Reflection, words: dict[str, int], work: int) -> OneReflection:
    """The same for small matrices of a batch."""
    sizes = reflection_lanes.sizes(words["rows"], words["columns"])
    words |= {f"{kind}_size": sizes[kind] for kind in "mv"}
    counts = reflection_lanes.operands(spec)
    room = functools.partial(memory, counts, sizes, torch.float64)
    with stored.lock:
        address = _compiled(spec, True).address
    blocks = lane_text.blocks(words["batch"])
    return OneReflection(OnePanel(address, reflection_lanes.WORDS, words, blocks, work, room))
