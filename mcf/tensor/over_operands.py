"""Launches whose results may lie where operands do: `out=` and in place of many elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Launch
from mcf.kernels.overlap import Place, Places


class OverOperands:
    """A prepared kernel of one row of tensors, launched in the way that its results' places take.

    A kernel's tensors must not overlap. Where results lie on operands an executor goes by way of
    blocks, if it has such a loop.
    """

    def __init__(
        self,
        spec: Elementwise,
        elements: int,
        launch: Launch,
        call: Callable[[list[int]], Any],
        scalars: Any,
    ) -> None:
        """See `mcf.kernels.executor.Launch`.

        Args:
            spec: the kernel, whose first fields are its results.
            elements: of each tensor.
            launch: prepared for these.
            call: `launch.row` for these scalars.
            scalars: of the row.
        """
        sizes = [0 if f.uniform else int(f.format.itemsize) for f in spec.fields]
        self._place = Places(sum(f.written for f in spec.fields), sizes, elements).of
        self._elements, self._launch, self._call = elements, launch, call
        self._scalars, self._counts = scalars, spec.sums is not None
        self._in_place: Callable[[list[int]], Sequence[range]] | None = None
        self._asked = False

    def __call__(self, addresses: list[int]) -> Sequence[range] | None:
        """Apply the kernel to tensors at some addresses, its results first.

        Returns:
            Which elements are still to be written, since some of each range need a step that the
            kernel lacks; their operands are unchanged. None, with nothing written, where results
            and operands share memory in a way that needs memory beside them.
        """
        place = self._place(addresses)
        if place is Place.ACROSS:
            return None
        if place is Place.ON or self._counts:
            if not self._asked:
                self._in_place, self._asked = self._launch.in_place(self._scalars), True
            if self._in_place is not None:
                return self._in_place(addresses)
            if place is Place.ON:
                return None
        counted = self._call(addresses)
        return [range(self._elements)] if counted is not None and counted[0] else []
