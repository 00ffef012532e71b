"""Select elements by a mask, or insert elements where it holds, in one loop.

The loop does not branch on the mask: it writes each element at the next output index, and the next
element overwrites it. A random mask therefore costs no mispredicted branches, and eight elements
whose mask bytes are all 0 are skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.numba.runtime import pages, team
from mcf.kernels.sequence import native_of

# Elements of an item, a multiple of 8; smallest number of elements worth a compilation.
BLOCK, MANY = 1 << 16, 1 << 13
# Greatest number of elements per selected one, by element size: for sparser masks `nonzero` and a
# gather are faster.
SPARSE = {8: 16, 4: 16, 2: 4}

_WORDS = "mask counts total shares parts".split()
# Loads and stores by element size in bytes.
_ACCESS = {8: ("number", "put"), 4: ("half", "put_half"), 2: ("short", "put_short")}


def _text(terms: int, size: int, into: bool) -> str:
    """Return the source of the loop over blocks of a masked selection.

    `counts[k]` is the number of selected elements before block k. The operands are the targets,
    then the sources. With `into`, originals follow: the target is the next source element where the
    mask is True, and the original's element elsewhere.
    """
    load, store = _ACCESS[size]
    parts = range(terms)
    lines = ["def kernel(data):"]
    for k, name in enumerate(_WORDS):
        kind = "number" if name in ("total", "parts") else "word"
        lines.append(f"    {name} = {kind}(data, {k})")
    names = [f"{kind}{c}" for kind in ("out", "x", *(("y",) if into else ())) for c in parts]
    lines += [f"    {name} = word(data, {len(_WORDS) + k})" for k, name in enumerate(names)]
    lines += ["    " + line for line in team.ITEMS]
    if into:
        body = [
            # The index after the last element is out of bounds.
            "last = max(number(counts, item + 1), 1)",
            "for i in range(i, stop):",
            "    k, m = min(j, last - 1), byte(mask, i) != 0",
            *(f"    {store}(out{c}, i, {load}(x{c}, k) if m else {load}(y{c}, i))" for c in parts),
            "    j += m",
        ]
    else:
        eight = [
            line
            for k in range(8)
            for line in (
                *(f"        {store}(out{c}, j, {load}(x{c}, i + {k}))" for c in parts),
                f"        j += (w >> {8 * k}) & 1",
            )
        ]
        body = [
            "last = number(counts, item + 1)",
            # Eight stores end at most where the next block's output begins.
            "while i + 8 <= stop and j + 8 <= last:",
            "    w = number(mask, i >> 3)",
            "    if w != 0:",
            # The lowest bit of each nonzero byte.
            *(f"        w |= w >> {k}" for k in (4, 2, 1)),
            *eight,
            "    i += 8",
            "while j < last:",
            "    if byte(mask, i) != 0:",
            *(f"        {store}(out{c}, j, {load}(x{c}, i))" for c in parts),
            "        j += 1",
            "    i += 1",
        ]
    depth = "    " * (team.ITEMS_DEPTH + 1)
    head = [f"i, stop = item * {BLOCK}, min(total, (item + 1) * {BLOCK})"]
    lines += [depth + line for line in [*head, "j = number(counts, item)", *body]]
    return "\n".join(lines) + "\n"


def _usable(mask: Tensor, tensors: Sequence[Tensor]) -> bool:
    return (
        mask.numel() >= MANY
        and mask.dtype is torch.bool
        and tensors[0].element_size() in _ACCESS
        and all(t.is_contiguous() and t.dtype is tensors[0].dtype for t in tensors)
    )


def _starts(mask: Tensor) -> tuple[Tensor, array[int]]:
    """Return the mask 8-byte aligned, and the number of selected elements before each block."""
    mask = mask.contiguous()
    mask = mask.clone() if mask.data_ptr() % 8 else mask
    # Compared as bytes: a mask that views bytes other than 0 and 1 would be miscounted.
    whole = mask.reshape(-1).view(torch.uint8).numpy()
    starts = array("q", [0])
    for first in range(0, len(whole), BLOCK):
        starts.append(starts[-1] + int(np.count_nonzero(whole[first : first + BLOCK])))
    return mask, starts


def _run(mask: Tensor, starts: array[int], tensors: Sequence[Tensor], terms: int) -> None:
    size, into = tensors[0].element_size(), len(tensors) > 2 * terms
    items = len(starts) - 1
    parts = min(items, torch.get_num_threads() if mask.numel() > team.SERIAL else 1)
    shares = team.shares(items, parts)
    places = mask.data_ptr(), starts.buffer_info()[0], mask.numel(), shares.buffer_info()[0], parts
    table = array("Q", [*places, *(t.data_ptr() for t in tensors)])
    for out in tensors[:terms]:
        pages.ask(out.data_ptr(), out.numel() * size)
    address = native_of("picking", _text(terms, size, into)).address
    team.run(address, table.buffer_info()[0], parts)


def picked(x: Sequence[Tensor], mask: Tensor) -> list[Tensor] | None:
    """Return the elements of tensors for which a mask of their shape holds, as vectors.

    Return None if `nonzero` is faster: small inputs, or a sparse mask.
    """
    if not _usable(mask, x):
        return None
    mask, starts = _starts(mask)
    count = starts[-1]
    if count * SPARSE[x[0].element_size()] < mask.numel():
        return None
    out = [c.new_empty(count) for c in x]
    _run(mask, starts, [*out, *x], len(x))
    return out


def replaced(x: Sequence[Tensor], mask: Tensor, source: Sequence[Tensor]) -> list[Tensor] | None:
    """Return copies of tensors with a source's elements, in order, where the mask holds.

    Return None if there is no loop for them, or if the source has fewer elements than the mask
    selects.
    """
    if not _usable(mask, [*x, *source]):
        return None
    mask, starts = _starts(mask)
    if starts[-1] > source[0].numel() or not source[0].numel():
        return None
    out = [torch.empty_like(c) for c in x]
    _run(mask, starts, [*out, *source, *x], len(x))
    return out
