"""Offsets of a tensor's elements in memory, for programs that gather them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


def elements(x: Tensor, index: Any) -> Any:
    """Return the offsets, in elements, of the elements of these numbers from a tensor's address."""
    if not x.ndim:
        return np.zeros(index.shape, np.int64)
    # As one row: of more than 8192 in a column NumPy 2.4 repeats the last ones.
    digits = np.unravel_index(index.ravel(), x.shape)
    steps = zip(digits, x.stride(), strict=True)
    return sum((k * s for k, s in steps), np.zeros(index.size, np.int64)).reshape(index.shape)


def elements_in_order(x: Tensor, order: Sequence[int]) -> Any:
    """Return `elements` of all in an order of the dimensions; None where they lie in that order."""
    numbers = np.arange(x.numel()).reshape(x.shape).transpose(order)
    found = elements(x, numbers).ravel()
    return None if np.array_equal(found, np.arange(x.numel())) else found
