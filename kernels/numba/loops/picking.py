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

from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop, chosen
from mcf.kernels.numba.runtime import streaming, team

# Elements of an item, a multiple of 8; smallest number of elements worth a compilation.
BLOCK, MANY = 1 << 16, 1 << 13
# Greatest number of elements per selected one, by element size: for sparser masks `nonzero` and a
# gather are faster.
SPARSE = {8: 16, 4: 16, 2: 4}

# Operands, which do not overlap: results, sources, and originals.
OUT, SOURCE, ORIGINAL = range(3)
# Formats by element size in bytes, whose components have the bits of every format of this size.
_FORMATS = {8: (FP64, FP64), 4: (FP32, FP32), 2: (BF16, FP32)}


def _selected(item, data, mask, counts, total):
    """Write a block's selected elements; `counts` are the numbers of them before each block."""
    out, x = words(data, 7), words(data, 7 + TERMS)
    i, stop = item * BLOCK, min(total, (item + 1) * BLOCK)
    j, last = number(counts, item), number(counts, item + 1)
    # Eight stores end at most where the next block's output begins.
    while i + 8 <= stop and j + 8 <= last:
        eight = number(mask, i >> 3)
        if eight != 0:
            # The lowest bit of each nonzero byte.
            eight |= eight >> 4
            eight |= eight >> 2
            eight |= eight >> 1
            for k in range(8):
                store(OUT, out, j, load(SOURCE, x, i + k))
                j += (eight >> (8 * k)) & 1
        i += 8
    while j < last:
        if byte(mask, i) != 0:
            store(OUT, out, j, load(SOURCE, x, i))
            j += 1
        i += 1


def _inserted(item, data, mask, counts, total):
    """Write the next source element where the mask is True, and the original's elsewhere."""
    out, x, y = words(data, 7), words(data, 7 + TERMS), words(data, 7 + 2 * TERMS)
    j, last = number(counts, item), max(number(counts, item + 1), 1)
    for i in range(item * BLOCK, min(total, (item + 1) * BLOCK)):
        # The index after the last element is out of bounds.
        k, here = min(j, last - 1), byte(mask, i) != 0
        store(OUT, out, i, choose(here, load(SOURCE, x, k), load(ORIGINAL, y, i)))
        j += here


@stored.once
def _native(terms: int, size: int, into: bool) -> objects.Native:
    operand = (*_FORMATS[size], terms)
    function, algorithms = (_inserted if into else _selected), {"choose": chosen}
    return Loop(function, terms, [operand] * 3, algorithms).native()


def _usable(mask: Tensor, tensors: Sequence[Tensor]) -> bool:
    return (
        mask.numel() >= MANY
        and mask.dtype is torch.bool
        and tensors[0].element_size() in _FORMATS
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
    head = mask.data_ptr(), starts.buffer_info()[0], mask.numel()
    fields = [*head, *(t.data_ptr() for t in tensors)]
    for out in tensors[:terms]:
        streaming.ask_pages(out.data_ptr(), out.numel() * size)
    team.call(_native(terms, size, into).address, len(starts) - 1, mask.numel(), fields)


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
