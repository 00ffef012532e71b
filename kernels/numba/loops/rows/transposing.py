"""Transpose narrow matrices, so that their columns become contiguous rows, and back.

PyTorch's copy of a transposed narrow matrix takes four times as long as a plain copy; a piece of
such a matrix fits into the first-level cache.
"""

from __future__ import annotations

from typing import Any

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.runtime import team

# Greatest number of columns; rows of a matrix that are transposed at a time.
NARROW, PIECE = 16, 64


def _to(item, source, out, count, inner):
    """Write a piece of a matrix as columns."""
    pieces = (count + PIECE - 1) // PIECE
    base, first = item // pieces * inner, item % pieces * PIECE
    for j in range(inner):
        for i in range(first, min(first + PIECE, count)):
            put_moved(out, (base + j) * count + i, take_moved(source, base * count + i * inner + j))


def _back(item, source, out, count, inner):
    """Write a piece of columns as a matrix."""
    pieces = (count + PIECE - 1) // PIECE
    base, first = item // pieces * inner, item % pieces * PIECE
    for i in range(first, min(first + PIECE, count)):
        for j in range(inner):
            put_moved(out, base * count + i * inner + j, take_moved(source, (base + j) * count + i))


@stored.once
def _native(function: Any, fmt: Format) -> Any:
    return Loop(function, moved=fmt).native()


def turned(
    source: int, out: int, outer: int, count: int, inner: int, *, back: bool, fmt: Format = FP64
) -> None:
    """Transpose [outer, count, inner] to [outer, inner, count], or back.

    Args:
        source: the address of contiguous elements.
        out: the address of the result.
        outer: number of matrices.
        count: their rows.
        inner: their columns.
        back: the direction.
        fmt: a format with the element's number of bits.
    """
    items, fields = outer * -(-count // PIECE), (source, out, count, inner)
    team.call(_native(_back if back else _to, fmt).address, items, outer * count * inner, fields)
