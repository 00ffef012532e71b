"""Build programs of native code: kernels, folds and loops on numbered addresses.

A program runs its steps in one native call (`mcf.kernels.program`). Intermediate results are in
workspaces of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.rounding import nearest
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP64, Format
from mcf.kernels.operators import settle_kernel
from mcf.kernels.program import Launch, Move, Program, Step, Within

_address = Tensor.data_ptr
CPU = torch.device("cpu")

# Numbers of addresses in a program: first those of operands and results, then workspaces. Those of
# constants start at `_CONSTANTS` until the program is created.
Slots = list[int]
_CONSTANTS = 1 << 30


class UnpreparedError(Exception):
    """An executor has no native code for a step, so operators compute the function."""


class Steps:
    """Steps that become a program, and the slots of their operands, workspaces and constants."""

    def __init__(self, given: int) -> None:
        """Start with slots for the addresses that each call supplies: operands, then results."""
        self._given = given
        self._steps: list[Step] = []
        self._sizes: list[int] = []
        self._constants: list[Tensor] = []
        self._shared: dict[tuple[str, int], Slots] = {}

    def workspace(self, count: int, elements: int, size: int = 8) -> Slots:
        """Return slots of new workspaces, adjacent in memory, of elements of `size` bytes."""
        at = self._given + len(self._sizes)
        self._sizes += [size * elements] * count
        return [*range(at, at + count)]

    def _scratch(self, name: str, count: int, elements: int) -> Slots:
        """Return workspaces that no later step reads, shared by all steps of one name and size."""
        found = self._shared.get((name, elements), [])
        if len(found) < count:
            found = self._shared[name, elements] = self.workspace(count, elements)
        return found[:count]

    def constants(self, *values: Tensor) -> Slots:
        """Return slots of tensors that live as long as the program."""
        at = _CONSTANTS + len(self._constants)
        self._constants += values
        return [*range(at, at + len(values))]

    def number(self, value: float) -> Slots:
        """Return the slot of a float64 constant."""
        return self.constants(torch.tensor(value, dtype=torch.float64, device="cpu"))

    def move(
        self, x: Slots, out: Slots, elements: int, index: Any = None, size: int = 8, to: int = 0
    ) -> None:
        """Add a copy, see `mcf.kernels.program.Move`."""
        self._steps.append(Move(x, out, elements, index, size, to))

    def within(self, x: Slots, elements: int, least: float, most: float) -> None:
        """Add a test of the range of numbers, see `mcf.kernels.program.Within`."""
        self._steps.append(Within(x, elements, least, most))

    def gathered(self, x: Slots, like: Tensor, order: Sequence[int]) -> Slots:
        """Add a copy of an operand in an order of its dimensions, unless it is in that order."""
        index = elements_in_order(like, order)
        if index is None:
            return x
        copies = self.workspace(len(x), like.numel(), like.element_size())
        self.move(x, copies, like.numel(), index, like.element_size())
        return copies

    def loop(self, call: Any, places: Slots, out: int | None = None) -> None:
        """Add a prepared loop; a fold has the slot of its partial sums too."""
        if call is None:
            raise UnpreparedError
        self._steps.append(Launch(call, places, out))

    def kernel(
        self, spec: Elementwise, elements: int, places: Slots, tables: Sequence[Tensor] = ()
    ) -> None:
        """Add a kernel on tensors of one size; the only scalar of operations is the constant 1."""
        launch = registry.on(CPU).prepare(spec, [elements], CPU)
        if launch is None:
            raise UnpreparedError
        ones = np.ones((1, len(spec.scalars)))
        self.loop(launch.row(ones), places + self.constants(*tables))

    def fold(self, call: Any, x: Slots, state: int, sums: int, out: Slots | None = None) -> Slots:
        """Add a fold to `sums` expansions of `state` components, and return their slots.

        Args:
            call: the prepared fold or product.
            x: its operands.
            state: number of components of a partial sum.
            sums: number of sums.
            out: slots for the first components, if only these are wanted.
        """
        partial = self._scratch("partial", state, sums)
        if out is None:
            out = self.workspace(state, sums)
        # Components beyond those wanted go to a workspace that nothing reads.
        out = out + self._scratch("unread", state - len(out), sums)
        self.loop(call, x, partial[0])
        self.kernel(settle_kernel(state), sums, out + partial)
        return out

    def rounded(self, x: Slots, out: Slots, fmt: Format, elements: int) -> None:
        """Add the rounding of float64 components to the nearest expansions of a format.

        It counts elements that only the operator can round.
        """
        spec = conversions.kernel(nearest, FP64, len(x), fmt, len(out))
        self.kernel(spec, elements, out + x)

    def program(self) -> Program:
        """Return the program of all steps."""
        first = self._given + len(self._sizes)

        def numbered(places: Sequence[int]) -> Slots:
            return [p - _CONSTANTS + first if p >= _CONSTANTS else p for p in places]

        steps: list[Step] = [
            step._replace(sources=numbered(step.sources))
            if isinstance(step, Move)
            else step._replace(places=numbered(step.places))
            for step in self._steps
        ]
        fixed = [*map(_address, self._constants)]
        made = Program.of(steps, self._given, self._sizes, fixed, self._constants)
        if made is None:
            raise UnpreparedError
        return made


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


def places_back(shape: torch.Size, order: Sequence[int]) -> Any:
    """Return where the elements lie in an order of the dimensions; None if that is 0, 1, ..."""
    moved = np.arange(shape.numel()).reshape([shape[d] for d in order])
    found = moved.transpose(np.argsort(order)).ravel()
    return None if np.array_equal(found, np.arange(shape.numel())) else found
