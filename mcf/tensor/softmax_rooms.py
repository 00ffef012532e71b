"""What `mcf.tensor.softmax_plans` takes on the way from rows to results, and memory for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_address = Tensor.data_ptr


class Places(NamedTuple):
    """Where things lie that a function of rows takes on the way: of a row, and of each element."""

    number: list[int]
    top: list[int]
    rest: list[int]
    total: list[int]
    x: list[int]
    tops: list[int]
    shifted: list[int]
    spread: list[int]


def counts(terms: int, working: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many numbers of these there are of a row, and of an element."""
    return (1, terms, working, working + 1), (terms, terms, 2 * working + 1, working + 1)


class Room:
    """Memory for these, and the addresses in it."""

    def __init__(self, terms: int, working: int, rows: int, length: int) -> None:
        """For so many rows of a length."""
        each_row, each = counts(terms, working)
        # What is made in inference mode could not be written to outside.
        with torch.inference_mode(False):
            few = torch.zeros(sum(each_row), rows, dtype=torch.float64, device="cpu")
            many = torch.empty(sum(each), rows, length, dtype=torch.float64, device="cpu")
        self._kept = few, many
        places = iter([*map(_address, few), *map(_address, many)])
        self.places = Places(*([next(places) for _ in range(k)] for k in (*each_row, *each)))
