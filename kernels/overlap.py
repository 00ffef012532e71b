"""Addresses of tensors, and whether two tensors share a byte."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

# Work limit of the exact comparison of two strided tensors; beyond it they count as overlapping.
_MOST_WORK = 100_000
# Bytes of the largest number.
_NUMBER = 8


class _Array:
    """Describe a tensor's memory to NumPy; nothing is read from it."""

    def __init__(self, t: Tensor) -> None:
        size = t.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (t.data_ptr(), True),
            "typestr": f"|V{size}",
            "shape": tuple(t.shape),
            "strides": tuple(size * s for s in t.stride()),
        }


def address(t: Tensor) -> int:
    """Return the address of a tensor, or 0 if it has no memory (meta, fake, wrappers)."""
    if t.device.type == "meta" or isinstance(t, FakeTensor):
        return 0
    try:
        return t.data_ptr()
    except RuntimeError:
        return 0


def span(t: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor and the one after its last; (0, 0) without memory."""
    start = address(t) if t.numel() else 0
    if not start:
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.element_size()


def share(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors, which may be strided, share a byte of some element.

    The answer of NumPy's bounded search is exact. If the search exceeds its limit, the answer is
    True.
    """
    # NumPy's annotations lack `max_work`.
    most: Any = _MOST_WORK
    try:
        return bool(np.shares_memory(_as_array(a), _as_array(b), max_work=most))
    except np.exceptions.TooHardError:
        return True


def _as_array(t: Tensor) -> Any:
    return np.asarray(_Array(t))


class Place(enum.Enum):
    """The overlap of a kernel's results with its operands: apart, exactly on some, or otherwise."""

    APART = enum.auto()
    ON = enum.auto()
    ACROSS = enum.auto()


class Places:
    """Classify how the results of an elementwise kernel overlap its operands.

    Results are ON operands if each result that shares memory with an operand has its elements at
    the same addresses. Writing an element then overwrites nothing that another element needs.
    """

    def __init__(self, results: int, sizes: Sequence[int], elements: int) -> None:
        """Describe contiguous tensors, the results first.

        Args:
            results: the number of results.
            sizes: bytes of an element of each tensor; 0 for a tensor with one number for all
                elements,
                which alone may overlap a result with its first number.
            elements: elements of each tensor.
        """
        lengths = [size * elements or _NUMBER for size in sizes]
        # For each pair that must not overlap partially: the range of offsets that the second must
        # not begin in, and whether both may begin at the same address.
        self._pairs = [
            (k, j, -lengths[j], lengths[k], j >= results and sizes[k] == sizes[j])
            for k in range(results)
            for j in range(k + 1, len(sizes))
        ]

    def of(self, addresses: Sequence[int]) -> Place:
        """Return the kind of overlap for tensors at these addresses."""
        place = Place.APART
        for k, j, before, behind, allowed in self._pairs:
            if before < (gap := addresses[j] - addresses[k]) < behind:
                if gap or not allowed:
                    return Place.ACROSS
                place = Place.ON
        return place
