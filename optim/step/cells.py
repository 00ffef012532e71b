"""The memory of the numbers among states, read and written without tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mcf.optim.step.table import At


class Cells:
    """Counts and other numbers of parameters, where their states have them; no tensor is held."""

    def __init__(
        self, numbers: Sequence[Sequence[Tensor]], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """`numbers` are the `step` of all parameters and each of the rule's numbers."""
        self._shapes = shapes
        self._places = [list(map(Tensor.data_ptr, column)) for column in numbers]
        kinds = [ctypes.c_int64, *[ctypes.c_double] * (len(numbers) - 1)]
        self._cells: list[list[Any]] = [
            [kind.from_address(a) for a in column]
            for kind, column in zip(kinds, self._places, strict=True)
        ]

    def hold(self, numbers: Sequence[Sequence[Tensor]]) -> bool:
        """Whether these tensors are still that memory."""
        return [list(map(Tensor.data_ptr, column)) for column in numbers] == self._places

    def read(self) -> list[At]:
        """Where each parameter is."""
        columns = [[cell.value for cell in cells] for cells in self._cells]
        return list(zip(*columns, self._shapes, strict=True))

    def write(self, places: Sequence[At]) -> None:
        """Say where each parameter is."""
        for k, cells in enumerate(self._cells):
            for at, cell in zip(places, cells, strict=True):
                cell.value = at[k]
