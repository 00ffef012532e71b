"""Call a compiled loop over the matrices of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.kernels.numba.runtime import team

# Allocates scratch memory for a number of threads; returns its owner, and its addresses in the
# order of the operands.
Workspace = Callable[[int], tuple[Any, list[int]]]


def memory(
    counts: Mapping[str, int], sizes: Mapping[str, int], dtype: torch.dtype, parts: int
) -> tuple[Any, list[int]]:
    """Return scratch memory for a number of threads, and the addresses of its components.

    Args:
        counts: the number of components, by operand letter.
        sizes: the numbers of one thread, by operand letter, in the order of the operands.
        dtype: the dtype of the components.
        parts: the number of threads.
    """
    made = [
        torch.zeros(counts[kind], parts * size, dtype=dtype, device="cpu")
        for kind, size in sizes.items()
    ]
    return made, [c.data_ptr() for kind in made for c in kind]


class MatrixLoop(NamedTuple):
    """A compiled loop for matrices of one shape.

    Args:
        address: the address of its code.
        names: the names of the fields of its argument struct.
        words: the fields that are neither addresses nor shares.
        items: the number of matrices, tiles of a matrix or blocks of matrices.
        work: the total number of computed numbers.
        workspace: allocates its scratch memory.
    """

    address: int
    names: Sequence[str]
    words: dict[str, int]
    items: int
    work: int
    workspace: Workspace

    def run(self, operands: Sequence[Tensor], results: Sequence[Tensor] = (), **more: int) -> None:
        """Call the loop once.

        Args:
            operands: the tensors before the scratch memory.
            results: the tensors after it.
            **more: additional fields, and fields that replace those of the loop.
        """
        threads = torch.get_num_threads() if self.work > team.SERIAL else 1
        parts = max(1, min(threads, self.items))
        _memory, scratch = self.workspace(parts)
        bases = array("Q", [*map(_address, operands), *scratch, *map(_address, results)])
        shares = team.shares(self.items, parts)
        words = self.words | more | {"bases": bases.buffer_info()[0], "parts": parts}
        words["shares"] = shares.buffer_info()[0]
        table = array("q", [words[name] for name in self.names])
        team.run(self.address, table.buffer_info()[0], parts)


_address = Tensor.data_ptr
