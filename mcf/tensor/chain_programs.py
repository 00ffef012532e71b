"""A formula of a few operations on few elements as one program of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.operators import Operation
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.tensor.fused_chains import NoChainError
from mcf.tensor.launches import Plan
from mcf.tensor.plans import found_for
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# What is between operations is kept for tensors of at most so many elements.
FEW = 256
# Of a formula, an operation and its operands: its result.
Apply = Callable[..., Any]
# The places of tensors, and of which of their elements an operand is, as an array of integers.
Moved = tuple[Sequence[int], Any]
# A formula of `Apply` and the operands: all that is computed is computed by that.
Written = Callable[..., Any]


class Chain:
    """The launches of a formula, as a program of the operands' addresses and the result's."""

    def __init__(
        self, steps: list[_Step], own: list[Tensor], moves: Sequence[Moved], program: Program
    ) -> None:
        """The steps in their order, for operands of these components; see `_program`."""
        last = steps[-1].plan
        self._size, self._device = last.size, last.device
        self._dtype = last.dtypes[0]
        self._likes = [torch.empty(last.size, dtype=d, device=last.device) for d in last.dtypes]
        self.program, self._steps, self._own, self._moves = program, steps, own, moves
        self._aside: Program | None = None

    @classmethod
    def of(
        cls,
        formula: Written,
        values: Sequence[Any],
        moves: Sequence[Moved] = (),
        most: int = FEW,
    ) -> Chain | None:
        """The chain for operands of one kind, or None where it is not one of plans alone.

        Results of more than so many elements are not kept. Where there are moves the operands are
        what they gather, and a call is given the tensors that they gather from.
        """
        # A tensor that comes twice would be one operand.
        values = [_copied(x) for x in values]
        own = [c for x in values for c in _parts(x)]
        steps: list[_Step] = []

        def apply(operation: Operation | Formula, *operands: Any) -> Any:
            found = found_for(operation, operands)
            if found is None or found[0].broadcasts or found[0].size.numel() > most:
                raise NoChainError
            plan, groups = found
            out = plan.run(groups)
            if out is None:
                raise NoChainError
            steps.append(_Step(plan, out, [c for k in plan.order for c in groups[k]]))
            if plan.dtypes[0] is torch.bool:
                return out[0]
            return fresh(out, plan.size, plan.dtypes[0], plan.device)

        try:
            formula(apply, *values)
        except NoChainError:
            return None
        program = _program(steps, own, moves, aside=False) if steps else None
        return None if program is None else cls(steps, own, moves, program)

    def run(self, groups: Sequence[Components]) -> Any:
        """The result for operands of the kind; None where a function's kernel lacks a step."""
        return self.run_at([place for group in groups for place in map(_address, group)])

    def run_at(self, given: list[int]) -> Any:
        """The same for components at some addresses."""
        out = [*map(_empty_like, self._likes)]
        if not self.program([*given, *map(_address, out)]):
            return None
        if self._dtype is torch.bool:
            return out[0]
        return fresh(out, self._size, self._dtype, self._device)

    def into(self, groups: Sequence[Components], targets: Components) -> bool | None:
        """Write the result into components, which may be operands, if they are of its kind.

        It is computed beside them. None, with nothing written, as in `run`.
        """
        first = targets[0]
        if first.dtype is not self._dtype or first.shape != self._size:
            return None
        if len(targets) != len(self._likes) or not first.is_contiguous():
            return None
        if type(first) is not Tensor or first.device != self._device:
            return None
        if self._aside is None:
            self._aside = _program(self._steps, self._own, self._moves, aside=True)
            assert self._aside is not None
        given = [place for group in groups for place in map(_address, group)]
        return self._aside([*given, *map(_address, targets)]) or None


def _program(
    steps: list[_Step], own: list[Tensor], moves: Sequence[Moved], aside: bool
) -> Program | None:
    """The launches of some steps on operands of these components.

    Args:
        steps: in their order.
        own: the components.
        moves: how they are gathered; none where they are given.
        aside: whether the result is copied to its place when nothing reads operands any more.
    """
    results = steps[-1].written
    between = [c for step in steps[:-1] for c in step.written]
    sources = 1 + max([k for sources, _ in moves for k in sources]) if moves else len(own)
    given = sources + len(results)
    rooms = [*(own if moves else []), *between, *(results if aside else [])]
    first = [None] * sources if moves else own
    order = [*first, *([None] * len(results) if aside else results), *rooms]
    places = {id(c): k for k, c in enumerate(order) if c is not None}
    made: list[Step] = []
    at = given
    for sources_of, index in moves:
        targets = range(at, at + len(sources_of))
        item = own[at - given].element_size()
        made.append(Move(sources_of, targets, index.size, index, item))
        at += len(sources_of)
    # Numbers of the formula, and what kernels read behind their operands.
    fixed: list[int] = []
    for step in steps:
        taken = []
        for c in (*step.written, *step.read):
            if id(c) not in places:
                places[id(c)] = len(order) + len(fixed)
                fixed.append(c.data_ptr())
            taken.append(places[id(c)])
        taken += range(len(order) + len(fixed), len(order) + len(fixed) + len(step.plan.behind))
        fixed += step.plan.behind
        made.append(Launch(step.plan.launch, taken))
    if aside:
        size = results[0].element_size()
        words = results[0].numel() * size
        unit = 8 if words % 8 == 0 else 1
        targets = range(sources, given)
        made.append(Move([places[id(c)] for c in results], targets, words // unit, size=unit))
    sizes = [c.numel() * c.element_size() for c in rooms]
    return Program.of(made, given, sizes, fixed, steps)


class _Step(NamedTuple):
    """A plan, the tensors that it writes and those that it reads, in the order of its kernel."""

    plan: Plan
    written: list[Tensor]
    read: list[Tensor]


def _copied(x: Any) -> Any:
    if isinstance(x, MCFTensor):
        own = x.__dict__
        parts = [c.clone() for c in COMPONENTS[own["_terms"]](own)]
        return fresh(parts, parts[0].shape, parts[0].dtype, parts[0].device)
    return x.clone()


def _parts(x: Any) -> Components:
    if isinstance(x, MCFTensor):
        own = x.__dict__
        return COMPONENTS[own["_terms"]](own)
    return (x,)
