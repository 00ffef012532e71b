"""Offsets of a tensor's elements in memory, for programs that gather them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


def elements(x: Tensor, index: Any) -> Any:
    """Return the offsets from a tensor's address, in elements, of the elements at flat indices."""
    if not x.ndim:
        return np.zeros(index.shape, np.int64)
    # Flattened: for a column of more than 8192 indices NumPy 2.4 repeats the last results.
    digits = np.unravel_index(index.ravel(), x.shape)
    steps = zip(digits, x.stride(), strict=True)
    return sum((k * s for k, s in steps), np.zeros(index.size, np.int64)).reshape(index.shape)


def elements_in_order(x: Tensor, order: Sequence[int]) -> Any:
    """Return the offsets of all elements in an order of dimensions; None if that is 0, 1, ..."""
    numbers = np.arange(x.numel()).reshape(x.shape).transpose(order)
    found = elements(x, numbers).ravel()
    return None if np.array_equal(found, np.arange(x.numel())) else found
