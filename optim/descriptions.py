"""The objects that describe tensors, brought into the caches before a step looks at them.

A step's kernel drives everything else out of the caches. To check thousands of tensors before the
next one is then a matter of waiting for memory, one line after the other, since each object is
found through the one before. Where they lie is known from the last time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from mcf.kernels import registry

_LINE = 64
# More than what the objects take in torch 2.13, with what is allocated beside them.
_OBJECT, _TENSOR, _STORAGE = 64, 320, 256


class Descriptions:
    """Where the objects of some tensors lie: a guess that nothing but time depends on."""

    def __init__(self, tensors: Sequence[Tensor], others: Iterable[object]) -> None:
        """The tensors and other Python objects are not held."""
        self._fetch = registry.prefetch(tensors[0].device)
        starts = {a // _LINE for a in _addresses(tensors, others)} if self._fetch else set()
        self._lines = array("Q", sorted(_LINE * start for start in starts))
        self._table = array("Q", self._lines.buffer_info())

    def fetch(self) -> None:
        """Ask for them."""
        if self._fetch is not None:
            self._fetch(self._table.buffer_info()[0])


def _addresses(tensors: Sequence[Tensor], others: Iterable[object]) -> Iterator[int]:
    """An address in each line of memory."""
    for x in (*tensors, *others):
        # Python's own words of an object come before it.
        yield from range(id(x) - 16, id(x) + _OBJECT, _LINE)
    for t in tensors:
        yield from _span(t, _TENSOR)
        yield from _span(t.untyped_storage(), _STORAGE)
        # A number is read by the host itself.
        yield t.data_ptr()


def _span(x: Any, size: int) -> range:
    # Not public: without it there is nothing to ask for.
    start = getattr(x, "_cdata", 0)
    return range(start, start + size, _LINE) if start else range(0)
