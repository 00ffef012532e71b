"""Prepare launches of elementwise kernels on contiguous components of one shape."""

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
from mcf.expansions.launch.calls import SMALL, new_like
from mcf.expansions.tensor import Components
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.executor import Launch
from mcf.kernels.formats import FORMATS, FP32
from mcf.kernels.operators import COMMUTATIVE, SELECTIONS, Operation, kernel, result_dtypes
from mcf.kernels.overlap import Place, Places
from mcf.kernels.program import SIZES, Program
from mcf.kernels.register_choice import registers_for
from mcf.reductions.native_steps import Slots, Steps, UnpreparedError

# A program with workspace broadcasts operands to at most this number of elements.
_KEPT = 1024

_empty_like, _address = torch.empty_like, Tensor.data_ptr
# A kernel, the order in which it takes the operands, and the tables that follow them.
_Kernel = tuple[Elementwise, Sequence[int], Sequence[Tensor]]


def _expanded(
    groups: Sequence[Components], size: torch.Size, numbers: bool = False
) -> list[Components]:
    """Expand operands to contiguous tensors of a shape; scalars only if `numbers` is set."""
    return [
        g
        if g[0].shape == size or not (g[0].ndim or numbers)
        else tuple(c.expand(size).contiguous() for c in g)
        for g in groups
    ]


def _of_one_shape(groups: Sequence[Components], numbers: bool) -> list[Components] | None:
    """Copy small operands of several shapes to their common shape.

    Args:
        groups: the components of each operand.
        numbers: whether scalars count as operands of another shape.

    Returns:
        The copies; None if all shapes are equal, do not broadcast, or exceed `SMALL`.
    """
    shapes = [g[0].shape for g in groups]
    longest = max(shapes, key=len)
    if all(s == longest or not (s or (numbers and longest.numel() != 1)) for s in shapes):
        return None
    try:
        size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    return _expanded(groups, size, numbers) if size.numel() <= SMALL else None


class Plan:
    """The launch of a kernel on contiguous components of one shape, or on scalars.

    Attributes:
        size: the shape of the result.
        device: its device.
        dtypes: the dtypes of its components.
        broadcasts: whether operands have other shapes than the result.
        takes_numbers: whether the kernel takes scalars without expanding them.
    """

    broadcasts, takes_numbers = False, True

    def __init__(
        self,
        spec: Elementwise,
        order: Sequence[int],
        first: Tensor,
        launch: Launch,
        tables: Sequence[Tensor] = (),
    ) -> None:
        """Create a plan.

        Args:
            spec: the kernel, whose first fields are its results.
            order: the order in which the kernel takes the operands.
            first: an operand with the shape of the result.
            launch: the prepared launch.
            tables: tensors that follow the operands.
        """
        self._order, self._as_given = tuple(order), tuple(order) == (*range(len(order)),)
        self._tables, self._behind = tables, [*map(_address, tables)]
        # Operations have no scalars.
        self._prepared, self._scalars = launch, np.empty((1, 0))
        self._launch = launch.row(self._scalars)
        self._call = getattr(self._launch, "call", self._launch)
        self.size, self.device, self._count = first.shape, first.device, first.numel()
        sizes = [0 if f.uniform else int(f.format.itemsize) for f in spec.fields]
        self._place = Places(sum(f.written for f in spec.fields), sizes, self._count).of
        self._counts = spec.sums is not None
        self._in_place: Callable[[list[int]], Sequence[range]] | None = None
        self._asked = False
        self.dtypes = result_dtypes(spec)
        self._models = [new_like(self.size, dtype, self.device) for dtype in self.dtypes]
        # By whether the result is copied to its target, see `_program`.
        self._programs: dict[bool, Program | None] = {}

    @classmethod
    def of(cls, operation: Operation | Formula, groups: Sequence[Components]) -> Plan | None:
        """Create the plan for a signature, or return None if only the operator supports it.

        Kernels of elementary functions take no scalars: scalars are expanded like operands of other
        shapes, unless the result has one element.
        """
        function = isinstance(operation, Formula)
        spread = _of_one_shape(groups, numbers=function)
        if spread is not None:
            plan = cls.of(operation, spread)
            if plan is not None:
                plan.broadcasts, plan.takes_numbers = True, not function
            return plan
        truths = () if isinstance(operation, Formula) else operation.truths
        named = [*zip(operation.arguments, groups, strict=True)]
        numbers = [c[0] for name, c in named if name not in truths]
        masks = [c[0] for name, c in named if name in truths]
        first = max(numbers, key=Tensor.dim)
        if any(c.dtype is not first.dtype for c in numbers):
            return None
        if any(c.dtype is not torch.bool or c.shape != first.shape for c in masks):
            return None
        scalars = not function or first.numel() == 1
        if any(c.shape != first.shape and (c.ndim or not scalars) for c in numbers):
            return None
        if any(c.device != first.device for c in (*numbers, *masks)):
            return None
        if first.numel() == 0 or first.device.type != "cpu" or first.dtype not in FORMATS:
            return None
        found = (
            _of_function(operation.name, first, [*map(len, groups)])
            if isinstance(operation, Formula)
            else _of_operation(operation, first, dict(named))
        )
        if found is None:
            return None
        spec, order, tables = found
        launch = registry.prepare(spec, [[first] * len(spec.fields)])
        return None if launch is None else cls(spec, order, first, launch, tables)

    def run(self, groups: Sequence[Components]) -> list[Tensor] | None:
        """Compute the components of the result for operands of the signature.

        Returns None where some element needs a step that the kernel lacks.
        """
        out = [*map(_empty_like, self._models)]
        if self._as_given:
            counted = self._call([*map(_address, chain(out, *groups)), *self._behind])
        else:
            counted = self._call([*map(_address, out), *self._addresses(groups)])
        return out if counted is None or not counted[0] else None

    def compute(self, groups: Sequence[Components]) -> list[Tensor] | None:
        """Compute the result as `run` does; contiguous operands may have several shapes."""
        if not self.broadcasts:
            return self.run(groups)
        program = self._program(groups, aside=False)
        if program is None:
            return self.run(self.spread(groups))
        out = [*map(_empty_like, self._models)]
        return out if program([*map(_address, chain(*groups, out))]) else None

    def into(self, groups: Sequence[Components], parts: Components) -> Sequence[range] | None:
        """Write the result into components accepted by `fits`, which may be or overlap operands.

        Returns:
            Ranges of elements that the caller must compute, since some of them need a step that the
            kernel lacks; their operands are unchanged. None, with nothing written, where that
            leaves no part of the result.
        """
        program = self._program(groups, aside=True)
        if program is not None:
            return [] if program([*map(_address, chain(*groups, parts))]) else None
        if self.broadcasts:
            groups = self.spread(groups)
        left = self.over_operands(groups, parts)
        if left is None:
            out = self.run(groups)
            if out is None:
                return None
            write(parts, out)
            left = []
        return left

    def over_operands(
        self, groups: Sequence[Components], parts: Components
    ) -> Sequence[range] | None:
        """Write the result as `into` does, without new memory.

        Results that lie on operands are computed block by block, if the executor has such a loop.

        Returns:
            As `into`; None also where results overlap operands so that they need separate memory.
        """
        addresses = [*map(_address, parts), *self._addresses(groups)]
        place = self._place(addresses)
        if place is Place.ACROSS:
            return None
        if place is Place.ON or self._counts:
            if not self._asked:
                self._in_place, self._asked = self._prepared.in_place(self._scalars), True
            if self._in_place is not None:
                return self._in_place(addresses)
            if place is Place.ON:
                return None
        counted = self._launch(addresses)
        return [range(self._count)] if counted is not None and counted[0] else []

    def spread(self, groups: Sequence[Components]) -> list[Components]:
        """Expand operands to contiguous tensors of the result's shape, except scalars it takes."""
        return _expanded(groups, self.size, not self.takes_numbers)

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
        if self._count > _KEPT or any(c.element_size() not in SIZES for c in flat):
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
                copied = steps.workspace(len(group), self._count, first.element_size())
                index = np.broadcast_to(number, self.size)
                steps.move(own, copied, self._count, index, first.element_size())
                own = copied
            places.append(own)
        size = self.dtypes[0].itemsize
        if aside:
            out = steps.workspace(results, self._count, size)
        read = [place for k in self._order for place in places[k]]
        steps.loop(self._launch, [*out, *read, *steps.constants(*self._tables)])
        if aside:
            steps.move(out, targets, self._count, size=size)
        try:
            return steps.program()
        except UnpreparedError:
            return None

    def _addresses(self, groups: Sequence[Components]) -> list[int]:
        """Return the addresses of operands and tables in the kernel's order."""
        found: list[int] = []
        for k in self._order:
            found += map(_address, groups[k])
        found += self._behind
        return found


def fits(plan: Any, parts: Components) -> bool:
    """Return whether a plan's result can be stored in components of one layout."""
    first = parts[0]
    return (
        type(first) is Tensor
        and len(parts) == len(plan.dtypes)
        and first.dtype is plan.dtypes[0]
        and first.shape == plan.size
        and first.is_contiguous()
        and first.device == plan.device
    )


def _of_operation(
    operation: Operation, first: Tensor, named: dict[str, Components]
) -> _Kernel | None:
    """Return the kernel of an operation on named operands."""
    # A conversion of fp16 sets the quiet bit of NaN.
    if operation in SELECTIONS and first.dtype is torch.float16:
        return None
    groups = [*named.values()]
    order = [*range(len(groups))]
    if operation in COMMUTATIVE and len(groups[0]) < len(groups[1]):
        order[:2] = 1, 0
    uniform = frozenset(name for name, c in named.items() if c[0].ndim < first.ndim)
    if order[:2] == [1, 0]:
        uniform = frozenset({"x": "y", "y": "x"}.get(name, name) for name in uniform)
    terms = [len(groups[k]) for k in order]
    return kernel(operation, FORMATS[first.dtype], *terms, uniform=uniform), order, ()


def _of_function(name: str, first: Tensor, terms: Sequence[int]) -> _Kernel | None:
    """Return the kernel of an elementary function."""
    # The operator pads the first operand to the terms of the tensors.
    if terms[0] < max(terms):
        return None
    fmt = FORMATS[first.dtype]
    # The operator raises the error for functions without a form in float32 registers.
    if registers_for(fmt, first.device) is FP32 and name not in IN_FLOAT32:
        return None
    found = fused.kernel_for(name, fmt, [*terms], first.device)
    # The operator converts 16-bit components for the kernel.
    if found is None or fused.stored(fmt) is not fmt:
        return None
    return found[0], range(len(terms)), found[1]
