"""Corrections of small orthogonal matrices on the CPU, in one call of a loop."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.numba.cache import keys, objects
from mcf.kernels.numba.compile import rewrite, stored
from mcf.kernels.numba.loops.matrices.panel_text import lanes
from mcf.kernels.numba.loops.matrices.refinement_text import WORDS, operands, source
from mcf.kernels.numba.runtime import team
from mcf.kernels.refinement import Refinement
from mcf.kernels.reflection import ComplexFold
from mcf.kernels.rotation import VANISHED

# Greatest number of rows and of columns: products of larger ones are faster by blocks.
SMALL = 48


@functools.cache
def _compiled(spec: Refinement) -> objects.Native:
    text = source(spec)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import compiler

        return rewrite.rewritten(compiler.refinement(spec, text, operands(spec)))

    used = (spec.fold.term, spec.fold.merge, spec.fold.combine, spec.settle, spec.total)
    used += (spec.difference, spec.fused, spec.quotient, spec.root)
    if isinstance(spec.fold, ComplexFold):
        used += (spec.fold.alone, spec.fold.joined, spec.turned)
    algorithms = [keys.algorithm(f) for f in used]
    return stored.native(
        ("refinement", text, algorithms, spec.terms, spec.fold.state, VANISHED), make
    )


class Sizes(NamedTuple):
    """Argument fields for matrices of a shape, and the memory of a thread.

    Args:
        words: the fields except addresses of operands and shares.
        scratch: numbers of each kind of memory, and their component counts.
    """

    words: dict[str, int]
    scratch: list[tuple[int, int]]


def sizes(
    spec: Refinement, rows: int, columns: int, steps: int, tolerance: int, share: int
) -> Sizes:
    """Return the sizes for matrices of `rows` and `columns`; other arguments as in `refine`."""
    length = max(rows, columns) + lanes()
    # A transpose, and two rows for norms.
    m_size = (6 * rows + max(rows, columns, 2)) * length
    words = {"rows": rows, "columns": columns, "steps": steps, "exponent": tolerance}
    words |= {"length": length, "m_size": m_size, "level": share}
    return Sizes(words, [(m_size, spec.terms), (length, spec.terms), (length, spec.fold.state)])


def address(spec: Refinement) -> int:
    """Return the address of the loop."""
    with stored.lock:
        return _compiled(spec).address


def refine(
    spec: Refinement,
    a: Sequence[Tensor],
    w: Sequence[Tensor],
    x: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: int,
    tolerance: int,
    share: int,
) -> Tensor:
    """Refine, see `mcf.kernels.executor.Executor.refine`."""
    batch, rows, columns = a[0].shape
    work = batch * rows * rows * columns
    threads = torch.get_num_threads() if work > team.SERIAL else 1
    parts = max(1, min(threads, batch))
    words, kinds = sizes(spec, rows, columns, steps, tolerance, share)
    scratch = [torch.zeros(n, parts * size, dtype=torch.float64, device="cpu") for size, n in kinds]
    given = (*a, *w, *x, *squares, *(c for m in scratch for c in m))
    bases = array("Q", [c.data_ptr() for c in given])
    shares = team.shares(batch, parts)
    states = array("q", bytes(8 * batch))
    words |= {"bases": bases.buffer_info()[0], "shares": shares.buffer_info()[0]}
    words |= {"parts": parts, "states": states.buffer_info()[0]}
    table = array("q", [words[name] for name in WORDS])
    team.run(address(spec), table.buffer_info()[0], parts)
    return torch.tensor(states, device="cpu")
