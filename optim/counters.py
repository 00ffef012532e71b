"""The numbers among the states of parameters, read and written in memory without tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# The number of steps made, the rule's numbers, and the shape where the rule looks at it.
At = tuple[Any, ...]


def regular(numbers: Sequence[Any]) -> bool:
    """Whether `step` and the rule's numbers are as this package makes them."""
    dtypes = [torch.int64, *[torch.float64] * (len(numbers) - 1)]
    return all(
        type(n) is Tensor and n.device.type == "cpu" and n.numel() == 1 and n.dtype is dtype
        for n, dtype in zip(numbers, dtypes, strict=True)
    )


class Counters:
    """The memory of the numbers of some parameters; the tensors are not held."""

    def __init__(
        self, numbers: Sequence[Sequence[Tensor]], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """`numbers` are the `step` of all parameters and each of the rule's numbers, `regular`."""
        self._shapes = shapes
        self._addresses = _addresses(numbers)
        kinds = [ctypes.c_int64, *[ctypes.c_double] * (len(numbers) - 1)]
        self._cells: list[list[Any]] = [
            [kind.from_address(a) for a in column]
            for kind, column in zip(kinds, self._addresses, strict=True)
        ]

    def hold(self, numbers: Sequence[Sequence[Tensor]]) -> bool:
        """Whether these tensors are still that memory."""
        return _addresses(numbers) == self._addresses

    def read(self) -> list[At]:
        """Where each parameter is."""
        columns = [[cell.value for cell in cells] for cells in self._cells]
        return list(zip(*columns, self._shapes, strict=True))

    def write(self, before: Sequence[At], numbers: Callable[[At], Sequence[float]]) -> None:
        """Count a step; `numbers` gives the rule's numbers after it."""
        for at, cell in zip(before, self._cells[0], strict=True):
            cell.value = at[0] + 1
        for k, cells in enumerate(self._cells[1:]):
            for at, cell in zip(before, cells, strict=True):
                cell.value = numbers(at)[k]

    def restore(self, before: Sequence[At]) -> None:
        """Put back what `read` gave."""
        for k, cells in enumerate(self._cells):
            for at, cell in zip(before, cells, strict=True):
                cell.value = at[k]


def _addresses(numbers: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    return [list(map(Tensor.data_ptr, column)) for column in numbers]
