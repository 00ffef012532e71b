"""Where tensors lie in memory, and whether two have a byte in common."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

# Tries of the exact comparison of two strided tensors, beyond which they count as shared.
_MOST_WORK = 100_000
# Bytes of the largest number.
_NUMBER = 8


class _Array:
    """A tensor's memory as NumPy describes arrays; nothing is read from it."""

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
    """Where a tensor's memory begins; 0 where it has none of its own (meta, fake, wrappers)."""
    if t.device.type == "meta" or isinstance(t, FakeTensor):
        return 0
    try:
        return t.data_ptr()
    except RuntimeError:
        return 0


def span(t: Tensor) -> tuple[int, int]:
    """The first address of a tensor and the one after its last; (0, 0) where it has no memory."""
    start = address(t) if t.numel() else 0
    if not start:
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.element_size()


def share(a: Tensor, b: Tensor) -> bool:
    """Whether some element of one has a byte of the other, also where both are strided.

    Exact, by NumPy's bounded search; where that is too hard the answer is yes.
    """
    # Not in NumPy's annotations.
    most: Any = _MOST_WORK
    try:
        return bool(np.shares_memory(_as_array(a), _as_array(b), max_work=most))
    except np.exceptions.TooHardError:
        return True


def _as_array(t: Tensor) -> Any:
    return np.asarray(_Array(t))


class Place(enum.Enum):
    """Where a kernel's results lie: apart from operands, on some of them, or else."""

    APART = enum.auto()
    ON = enum.auto()
    ACROSS = enum.auto()


class Places:
    """Where the results of a kernel lie that goes through its tensors element by element.

    They are on operands where each that shares memory with some has its elements where those have
    theirs: then an element's result overwrites nothing that another one's needs.
    """

    def __init__(self, results: int, sizes: Sequence[int], elements: int) -> None:
        """Of contiguous tensors, the results first.

        Args:
            results: how many they are.
            sizes: the bytes of an element of each tensor; 0 for what is the same for every element,
                of which the first number alone may be in a result.
            elements: of each tensor.
        """
        lengths = [size * elements or _NUMBER for size in sizes]
        # Of each pair that must not share memory in any way: how far the second may not begin
        # before and behind the first, and whether it may begin where that does.
        self._pairs = [
            (k, j, -lengths[j], lengths[k], j >= results and sizes[k] == sizes[j])
            for k in range(results)
            for j in range(k + 1, len(sizes))
        ]

    def of(self, addresses: Sequence[int]) -> Place:
        """For tensors at some addresses."""
        place = Place.APART
        for k, j, before, behind, allowed in self._pairs:
            if before < (gap := addresses[j] - addresses[k]) < behind:
                if gap or not allowed:
                    return Place.ACROSS
                place = Place.ON
        return place
