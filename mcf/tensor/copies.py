"""Room for copies of few elements in another order, which a plan keeps.

A copy into memory that is there takes a third of what a new tensor takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.program import Move, Program, Step
from mcf.tensor.tensor import Components

# Elements of a component of which a plan keeps copies.
_FEW = 1024


class Copies:
    """Copies of components, contiguous with their dimensions in an order."""

    def __init__(
        self, terms: int, shape: Sequence[int], order: Sequence[int], dtype: torch.dtype
    ) -> None:
        """Room for so many components of a shape.

        Args:
            terms: how many.
            shape: that they have.
            order: of their dimensions, as of `Tensor.permute`.
            dtype: float64 or float32.
        """
        self._kind = np.float64 if dtype is torch.float64 else np.float32
        self._terms, self._size = terms, [shape[d] for d in order]
        self._back = sorted(range(len(order)), key=[*order].__getitem__)
        self._free: list[tuple[list[Any], list[int]]] = []
        # Behind the elements are the components of 0 and of 1.
        self.zero = math.prod(shape)
        self.one = self.zero + 1

    def _room(self) -> tuple[list[Any], list[int]]:
        # As NumPy's arrays: a tensor that is made in inference mode could not be written elsewhere.
        arrays = [np.zeros(self.zero + 2, self._kind) for _ in range(self._terms)]
        arrays[0][self.one] = 1.0
        views = [a[: self.zero].reshape(self._size).transpose(self._back) for a in arrays]
        return views, [a.ctypes.data for a in arrays]

    def numbers(self) -> Any:
        """Where the elements of the given shape are in a copy."""
        return np.arange(self.zero).reshape(self._size).transpose(self._back)

    def taking(self, *indices: Any, steps: Sequence[Step] = (), more: int = 0) -> Program | None:
        """What takes elements of copies, 0 and 1 into tensors, each as an index of these says.

        It is called with the copies' addresses, then with those of each result's components, then
        with so many more of which further steps may know.
        """
        terms, item = self._terms, np.dtype(self._kind).itemsize
        moves: list[Step] = [
            Move(range(terms), range(terms * k, terms * (k + 1)), index.size, index, item)
            for k, index in enumerate(indices, 1)
        ]
        return Program.of([*moves, *steps], terms * (1 + len(indices)) + more)

    def taken(self, parts: Components) -> tuple[list[Any], list[int]]:
        """Copies of components and where they lie; to be given to `freed` after their use."""
        # A call's room is one that no other call has at the time.
        try:
            room = self._free.pop()
        except IndexError:
            room = self._room()
        for view, c in zip(room[0], parts, strict=True):
            _copy(view, _array(c))
        return room

    def freed(self, room: tuple[list[Any], list[int]]) -> None:
        """Take the room of copies back, if it is small."""
        if room[0][0].size <= _FEW:
            self._free.append(room)


_copy, _array = np.copyto, Tensor.numpy
