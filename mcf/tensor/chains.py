"""Formulas of a few operations on few elements: their kernels one after the other.

An operation of expansions costs some ten times what its kernel takes for one element. A formula
such as x + a b is looked at once for operands of a kind; after that only its kernels are launched,
with what lies between them in memory that the plan keeps. The bits are those of the operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels import registry
from mcf.kernels.operators import Operation
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.register_choice import get_registers
from mcf.tensor.fused_chains import MANY, FusedChain, NoChainError
from mcf.tensor.launches import Plan
from mcf.tensor.plans import addressed, found_for, held_number, number_of, rounded_number
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# What is between operations is kept for tensors of at most so many elements.
_FEW = 256
_MOST = 1024
# Of a formula, an operation and its operands: its result.
Apply = Callable[..., Any]
# The places of tensors, and of which of their elements an operand is, as an array of integers.
Moved = tuple[Sequence[int], Any]
# A formula of `Apply` and the operands: all that is computed is computed by that.
Written = Callable[..., Any]
_chains: dict[tuple[Any, ...], Chain | FusedChain | None] = {}


def chained(formula: Written, *values: Any, out: Components | None = None) -> Any:
    """The result of a formula, or None where its operations have to be called one by one.

    Args:
        formula: a function of one that applies operations, and of the operands.
        *values: expansion tensors, plain tensors of floats and numbers.
        out: components that are written to, and may be operands: if they are contiguous and of the
            result's format and shape the result is True, else nothing is written and it is None.
    """
    if watched():
        return None
    groups: list[Components] = []
    kind: list[Any] = [formula, registry.get_executor(), get_registers()]
    like = next((x.__dict__ for x in values if type(x) is MCFTensor), None)
    if like is None or _FEW < like["_c0"].numel() < MANY:
        return None
    # What operations make of a number depends on the terms beside it, but for one component.
    terms: set[int] = set()
    several, rounded = False, []
    for k, x in enumerate(values):
        if type(x) is MCFTensor:
            own = x.__dict__
            terms.add(own["_terms"])
            parts = COMPONENTS[own["_terms"]](own)
        elif type(x) is Tensor:
            if not addressed(x):
                return None
            terms.add(1)
            parts = (x,)
        elif isinstance(x, Tensor):
            return None
        else:
            first, sign = like["_c0"], 0.0 if x else math.copysign(1.0, x)
            given = x, sign, first.dtype, like["_terms"], first.device
            found = held_number(*given)
            if found is None:
                found = rounded_number(*given)
                rounded.append(k)
            if found is None:
                return None
            several |= len(found) > 1 or k in rounded
            parts = found
        first = parts[0]
        if type(first) is not Tensor or not first.is_contiguous():
            return None
        groups.append(parts)
        kind += (len(parts), first.dtype, first.shape, first.device)
    if several and len(terms) > 1:
        return None
    kind += rounded
    key = tuple(kind)
    try:
        chain = _chains[key]
    except KeyError:
        if len(_chains) >= _MOST:
            _chains.clear()
        chain = None
        if rounded:
            formula = _arithmetic_of(formula, rounded)
        if like["_c0"].numel() <= _FEW:
            chain = Chain.of(formula, [*map(_held, values, groups)])
        else:
            chain = FusedChain.of(formula, groups)
        _chains[key] = chain
    if chain is None:
        return None
    return chain.run(groups) if out is None else chain.into(groups, out)


def _arithmetic_of(formula: Written, rounded: Sequence[int]) -> Written:
    """The formula, which may do nothing but arithmetic with operands that are rounded numbers.

    Comparisons and selections take numbers as they are.
    """

    @functools.wraps(formula)
    def found(apply: Apply, *operands: Any) -> Any:
        numbers = {id(operands[k]) for k in rounded}

        def asked(operation: Operation | Formula, *given: Any) -> Any:
            if number_of(operation) is not rounded_number and numbers & {*map(id, given)}:
                raise NoChainError
            return apply(operation, *given)

        return formula(asked, *operands)

    return found


def _held(value: Any, parts: Components) -> Any:
    """An operand as a tensor: a number is one of its components, or an expansion of them."""
    if isinstance(value, Tensor):
        return value
    first = parts[0]
    return first if len(parts) == 1 else fresh(parts, first.shape, first.dtype, first.device)


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
        self._program, self._steps, self._own, self._moves = program, steps, own, moves
        self._aside: Program | None = None

    @classmethod
    def of(
        cls,
        formula: Written,
        values: Sequence[Any],
        moves: Sequence[Moved] = (),
        most: int = _FEW,
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
        if not self._program([*given, *map(_address, out)]):
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
