"""Prepare launches of kernels on contiguous components of one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary import fused
from mcf.elementary.fused import Formula
from mcf.elementary.operator import IN_FLOAT32
from mcf.expansions.components import write
from mcf.expansions.launch.calls import SMALL, Slots, Steps, UnpreparedError, new_like
from mcf.expansions.tensor import Components
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Launch as Prepared
from mcf.kernels.formats import FORMATS, FP32
from mcf.kernels.operators import COMMUTATIVE, SELECTIONS, Operation, kernel, result_dtypes
from mcf.kernels.overlap import Place, Places
from mcf.kernels.program import SIZES, Program
from mcf.kernels.register_choice import registers_for


class OverOperands:
    """A prepared kernel of one row of tensors whose results may overlap its operands.

    A kernel's tensors must not overlap. Results that lie on operands are computed block by block,
    if the executor has such a loop.
    """

    def __init__(
        self,
        spec: Elementwise,
        elements: int,
        launch: Prepared,
        call: Callable[[list[int]], Any],
        scalars: Any,
    ) -> None:
        """Hold a launch (`mcf.kernels.executor.Launch`).

        Args:
            spec: the kernel, whose first fields are its results.
            elements: number of elements of each tensor.
            launch: the prepared launch.
            call: `launch.row` for these scalars.
            scalars: the scalars of the row.
        """
        sizes = [0 if f.uniform else int(f.format.itemsize) for f in spec.fields]
        self._place = Places(sum(f.written for f in spec.fields), sizes, elements).of
        self._elements, self._launch, self._call = elements, launch, call
        self._scalars, self._counts = scalars, spec.sums is not None
        self._in_place: Callable[[list[int]], Sequence[range]] | None = None
        self._asked = False

    def __call__(self, addresses: list[int]) -> Sequence[range] | None:
        """Apply the kernel to tensors at the addresses, its results first.

        Returns:
            Ranges of elements that the caller must compute, since some of them need a step that the
            kernel lacks; their operands are unchanged. None, with nothing written, where results
            overlap operands so that they need separate memory.
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


def expanded(
    groups: Sequence[Components], size: torch.Size, numbers: bool = False
) -> list[Components]:
    """Expand operands to contiguous tensors of a shape; scalars only if `numbers` is set."""
    return [
        g
        if g[0].shape == size or not (g[0].ndim or numbers)
        else tuple(c.expand(size).contiguous() for c in g)
        for g in groups
    ]


def of_one_shape(
    groups: Sequence[Components], most: int, numbers: bool = False
) -> list[Components] | None:
    """Copy operands of several shapes to their common shape.

    Args:
        groups: the components of each operand.
        most: the largest number of elements of the common shape.
        numbers: whether scalars count as operands of another shape.

    Returns:
        The copies; None if all shapes are equal, do not broadcast, or exceed `most`.
    """
    shapes = [g[0].shape for g in groups]
    longest = max(shapes, key=len)
    if all(s == longest or not (s or (numbers and longest.numel() != 1)) for s in shapes):
        return None
    try:
        size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    return expanded(groups, size, numbers) if size.numel() <= most else None


# A program with workspace broadcasts operands to at most this number of elements.
_KEPT = 1024

_empty_like, _address = torch.empty_like, Tensor.data_ptr


class Plan:
    """The launch of a kernel on contiguous components of one shape, or on scalars.

    Attributes:
        launch: a function of addresses: those of the result, then `addresses`. It returns the
            number of elements with invalid results if the kernel counts them, else None.
        over: the launch for results that may overlap operands.
        order: the order in which the kernel takes the operands.
        behind: the addresses of tables, which follow the operands.
        broadcasts: whether operands have other shapes than the result, see `spread`.
        takes_numbers: whether the kernel takes scalars without expanding them.
    """

    broadcasts, takes_numbers = False, True

    def __init__(
        self,
        spec: Elementwise,
        order: Sequence[int],
        first: Tensor,
        launch: Any,
        tables: Sequence[Tensor] = (),
    ) -> None:
        """Create a plan; `first` is an operand with the shape of the result."""
        self.order = tuple(order)
        self._as_given = self.order == (*range(len(order)),)
        self._tables = tables
        self.behind = [t.data_ptr() for t in tables]
        # The only scalar that operations have is the constant 1.
        ones = np.ones((1, len(spec.scalars)))
        self.launch = launch.row(ones)
        self._call = getattr(self.launch, "call", self.launch)
        self.size, self.device, self.count = first.shape, first.device, first.numel()
        self.over = OverOperands(spec, self.count, launch, self.launch, ones)
        self.dtypes = result_dtypes(spec)
        self._models = [new_like(self.size, dtype, self.device) for dtype in self.dtypes]
        # By whether the result is copied to its target, see `_program`.
        self._programs: dict[bool, Program | None] = {}

    @classmethod
    def of(cls, operation: Operation, groups: Sequence[Components]) -> Plan | None:
        """Create the plan for a signature, or return None if only the operator supports it."""
        named = dict(zip(operation.arguments, groups, strict=True))
        spread = of_one_shape(groups, SMALL)
        if spread is not None:
            plan = cls.of(operation, spread)
            if plan is not None:
                plan.broadcasts = True
            return plan
        truths = [named[name][0] for name in operation.truths]
        numbers = [c[0] for name, c in named.items() if name not in operation.truths]
        first = max(numbers, key=Tensor.dim)
        if any(c.dtype is not first.dtype for c in numbers):
            return None
        if any(c.dtype is not torch.bool or c.shape != first.shape for c in truths):
            return None
        if any(c.shape != first.shape and c.ndim > 0 for c in numbers):
            return None
        if any(c.device != first.device for c in (*numbers, *truths)):
            return None
        if first.numel() == 0 or first.device.type != "cpu" or first.dtype not in FORMATS:
            return None
        # A conversion of fp16 sets the quiet bit of NaN.
        if operation in SELECTIONS and first.dtype is torch.float16:
            return None
        order = list(range(len(groups)))
        if operation in COMMUTATIVE and len(groups[0]) < len(groups[1]):
            order[:2] = 1, 0
        given = [groups[k] for k in order]
        uniform = frozenset(name for name, c in named.items() if c[0].ndim < first.ndim)
        if order[:2] == [1, 0]:
            uniform = frozenset({"x": "y", "y": "x"}.get(name, name) for name in uniform)
        spec = kernel(operation, FORMATS[first.dtype], *map(len, given), uniform=uniform)
        row = [first] * len(spec.results) + [c for group in given for c in group]
        launch = registry.prepare(spec, [row])
        return None if launch is None else cls(spec, order, first, launch)

    @classmethod
    def of_formula(cls, formula: Formula, groups: Sequence[Components]) -> Plan | None:
        """Create the plan of an elementary function, or return None if only its operator works.

        Kernels of functions take no scalars: scalars are expanded like operands of other shapes,
        unless the result has one element.
        """
        spread = of_one_shape(groups, SMALL, numbers=True)
        if spread is not None:
            plan = cls.of_formula(formula, spread)
            if plan is not None:
                plan.broadcasts, plan.takes_numbers = True, False
            return plan
        flat = [c for group in groups for c in group]
        first = max(flat, key=Tensor.dim)
        if any(c.dtype is not first.dtype or c.device != first.device for c in flat):
            return None
        if any(c.shape != first.shape and (c.ndim or first.numel() != 1) for c in flat):
            return None
        if first.numel() == 0 or first.device.type != "cpu" or first.dtype not in FORMATS:
            return None
        terms = [*map(len, groups)]
        # The operator pads the first operand to the terms of the tensors.
        if terms[0] < max(terms):
            return None
        fmt = FORMATS[first.dtype]
        # The operator raises the error for functions without a form in float32 registers.
        if registers_for(fmt, first.device) is FP32 and formula.name not in IN_FLOAT32:
            return None
        found = fused.kernel_for(formula.name, fmt, terms, first.device)
        # The operator converts 16-bit components for the kernel.
        if found is None or fused.stored(fmt) is not fmt:
            return None
        spec, tables = found
        count = sum(field.written for field in spec.fields)
        launch = registry.prepare(spec, [[*[first] * count, *flat, *tables]])
        return None if launch is None else cls(spec, range(len(groups)), first, launch, tables)

    def spread(self, groups: Sequence[Components]) -> list[Components]:
        """Expand operands to contiguous tensors of the result's shape, except scalars it takes."""
        return expanded(groups, self.size, not self.takes_numbers)

    def run(self, groups: Sequence[Components]) -> list[Tensor] | None:
        """Compute the components of the result for operands of the signature.

        Returns None where some element needs a step that the kernel lacks.
        """
        out = [*map(_empty_like, self._models)]
        if self._as_given:
            counted = self._call([*map(_address, chain(out, *groups)), *self.behind])
        else:
            counted = self._call([*map(_address, out), *self.addresses(groups)])
        return out if counted is None or not counted[0] else None

    def compute(self, groups: Sequence[Components]) -> list[Tensor] | None:
        """Call `run`, or `broadcast` if operands have other shapes than the result."""
        return self.broadcast(groups) if self.broadcasts else self.run(groups)

    def broadcast(self, groups: Sequence[Components]) -> list[Tensor] | None:
        """Compute the result for contiguous operands of several shapes, as `run`."""
        program = self._program(groups, aside=False)
        if program is None:
            return self.run(self.spread(groups))
        out = [*map(_empty_like, self._models)]
        return out if program([*map(_address, chain(*groups, out))]) else None

    def into(self, groups: Sequence[Components], parts: Components) -> bool | None:
        """Write the result into components of its format and shape, which may be operands.

        Returns:
            Whether the result was written. False where some element needs a step that the kernel
            lacks; None for operands too large for a program.
        """
        program = self._program(groups, aside=True)
        return None if program is None else program([*map(_address, chain(*groups, parts))])

    def _program(self, groups: Sequence[Components], aside: bool) -> Program | None:
        """Return the program that copies broadcast operands and launches the kernel.

        It is None where copies would be larger than `_KEPT` elements.

        Args:
            groups: operands of the signature.
            aside: whether the result is computed in workspace and then copied to its target.
        """
        try:
            return self._programs[aside]
        except KeyError:
            program = self._programs[aside] = self._made(groups, aside)
            return program

    def _made(self, groups: Sequence[Components], aside: bool) -> Program | None:
        flat = [c for group in groups for c in group]
        if self.count > _KEPT or any(c.element_size() not in SIZES for c in flat):
            return None
        given, results = len(flat), len(self.dtypes)
        steps = Steps(given + results)
        out = targets = [*range(given, given + results)]
        places: list[Slots] = []
        at = 0
        for group in groups:
            own, first = [*range(at, at + len(group))], group[0]
            at += len(group)
            if first.shape != self.size and (first.ndim or not self.takes_numbers):
                number = np.arange(first.numel()).reshape(first.shape)
                copied = steps.workspace(len(group), self.count, first.element_size())
                index = np.broadcast_to(number, self.size)
                steps.move(own, copied, self.count, index, first.element_size())
                own = copied
            places.append(own)
        size = self.dtypes[0].itemsize
        if aside:
            out = steps.workspace(results, self.count, size)
        read = [place for k in self.order for place in places[k]]
        steps.loop(self.launch, [*out, *read, *steps.constants(*self._tables)])
        if aside:
            steps.move(out, targets, self.count, size=size)
        try:
            return steps.program()
        except UnpreparedError:
            return None

    def over_operands(self, groups: Sequence[Components], parts: Components) -> Any:
        """Write the result into components, which may be operands, as `over` does."""
        return self.over([*map(_address, parts), *self.addresses(groups)])

    def aside(self, groups: Sequence[Components], parts: Components) -> bool:
        """Compute the result in new memory and copy it into components, which may overlap operands.

        Returns False, with nothing written, where `run` returns None.
        """
        out = self.run(groups)
        if out is not None:
            write(parts, out)
        return out is not None

    def addresses(self, groups: Sequence[Components]) -> list[int]:
        """Return the addresses of operands and tables in the kernel's order."""
        found: list[int] = []
        for k in self.order:
            found += map(_address, groups[k])
        found += self.behind
        return found
