"""Transpose narrow matrices, so that their columns become contiguous rows, and back.

PyTorch's copy of a transposed narrow matrix takes four times as long as a plain copy; a piece of
such a matrix fits into the first-level cache.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch

from mcf.kernels.formats import FP64, Format
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.loops.moves import MOVES
from mcf.kernels.numba.runtime import team

# Greatest number of columns; rows of a matrix that are transposed at a time.
NARROW, _PIECE = 16, 64

_WORDS = "source out outer count inner shares parts".split()
_BODIES = {
    "to": (
        "for j in range(inner):",
        "    for i in range(first, last):",
        "        {give}(out, (base + j) * count + i, {take}(source, base * count + i * inner + j))",
    ),
    "back": (
        "for i in range(first, last):",
        "    for j in range(inner):",
        "        {give}(out, base * count + i * inner + j, {take}(source, (base + j) * count + i))",
    ),
}


def _text(way: str, fmt: Format) -> str:
    take, give = MOVES[fmt]
    lines = ["def kernel(data):"]
    for k, name in enumerate(_WORDS):
        kind = "word" if name in ("source", "out", "shares") else "number"
        lines.append(f"    {name} = {kind}(data, {k})")
    lines += ["    " + line for line in team.ITEMS]
    depth = "    " * (team.ITEMS_DEPTH + 1)
    lines += [
        f"{depth}pieces = (count + {_PIECE - 1}) // {_PIECE}",
        f"{depth}base = item // pieces * inner",
        f"{depth}first = item % pieces * {_PIECE}",
        f"{depth}last = min(first + {_PIECE}, count)",
        *(depth + line.format(take=take, give=give) for line in _BODIES[way]),
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def _compiled(way: str, fmt: Format) -> Any:
    text = _text(way, fmt)

    def make() -> tuple[Any, str]:
        from mcf.kernels.numba.compile import bits, compiler, memory

        names = {"put": memory.put, **bits.NAMES}
        return compiler.callback(text, f"<mcf numba turned {way}>", names)

    return stored.native(("turned", text, fmt), make)


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
    items = outer * -(-count // _PIECE)
    many = outer * count * inner > team.SERIAL
    parts = max(1, min(torch.get_num_threads() if many else 1, items))
    shares = team.shares(items, parts)
    table = array("Q", [source, out, outer, count, inner, shares.buffer_info()[0], parts])
    with stored.lock:
        address = _compiled("back" if back else "to", fmt).address
    team.run(address, table.buffer_info()[0], parts)
