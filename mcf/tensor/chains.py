"""Formulas of a few operations on few elements: their kernels one after the other.

An operation of expansions costs some ten times what its kernel takes for one element. A formula
such as x + a b is looked at once for operands of a kind; after that only its kernels are launched,
with what lies between them in memory that the plan keeps. The bits are those of the operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels import registry
from mcf.kernels.operators import Operation
from mcf.kernels.register_choice import get_registers
from mcf.tensor.launches import Plan
from mcf.tensor.plans import addressed, found_for, rounded_number
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# What is between operations is kept for tensors of at most so many elements.
_FEW = 256
_MOST = 1024
# Of a formula, an operation and its operands: its result.
Apply = Callable[..., Any]
# A formula of `Apply` and the operands: all that is computed is computed by that.
Written = Callable[..., Any]
_chains: dict[tuple[Any, ...], Chain | None] = {}


class _NoChainError(Exception):
    """A formula has an operation that no plan does."""


def chained(formula: Written, *values: Any) -> Any:
    """The result of a formula, or None where its operations have to be called one by one.

    Args:
        formula: a function of one that applies operations, and of the operands.
        *values: expansion tensors, plain tensors of floats and numbers.
    """
    if watched():
        return None
    groups: list[Components] = []
    kind: list[Any] = [formula, registry.get_executor(), get_registers()]
    like = next((x.__dict__ for x in values if type(x) is MCFTensor), None)
    if like is None or like["_c0"].numel() > _FEW:
        return None
    for x in values:
        if type(x) is MCFTensor:
            own = x.__dict__
            parts = COMPONENTS[own["_terms"]](own)
        elif type(x) is Tensor:
            if not addressed(x):
                return None
            parts = (x,)
        else:
            first, sign = like["_c0"], 0.0 if x else math.copysign(1.0, x)
            found = rounded_number(x, sign, first.dtype, like["_terms"], first.device)
            if found is None:
                return None
            parts = found
        first = parts[0]
        if type(first) is not Tensor or not first.is_contiguous():
            return None
        groups.append(parts)
        kind += (len(parts), first.dtype, first.shape, first.device)
    key = tuple(kind)
    try:
        chain = _chains[key]
    except KeyError:
        if len(_chains) >= _MOST:
            _chains.clear()
        chain = _chains[key] = Chain.of(formula, [*map(_held, values, groups)])
    return None if chain is None else chain.run(groups)


def _held(value: Any, parts: Components) -> Any:
    """An operand as a tensor: a number is one of its components, or an expansion of them."""
    if isinstance(value, Tensor):
        return value
    first = parts[0]
    return first if len(parts) == 1 else fresh(parts, first.shape, first.dtype, first.device)


class Chain:
    """The launches of a formula.

    A call's addresses are one list, of the operands, of the result and of what the plan keeps; each
    launch takes some of them.
    """

    def __init__(self, steps: list[_Step], own: list[Tensor]) -> None:
        """The steps in their order, for operands of these components."""
        last = steps[-1].plan
        self._size, self._dtype, self._device = last.size, last.dtypes[0], last.device
        self._likes = [torch.empty(last.size, dtype=d, device=last.device) for d in last.dtypes]
        between = [c for step in steps[:-1] for c in step.written]
        places = {id(c): k for k, c in enumerate([*own, *steps[-1].written, *between])}
        # Numbers of the formula, and what kernels read behind their operands.
        self._fixed: list[int] = []
        self._alive: list[Any] = [steps]
        self._between = between
        self._free: list[tuple[list[Tensor], list[int]]] = []
        start = len(places)
        self._steps = []
        for step in steps:
            taken = [places[id(c)] for c in step.written]
            for c in step.read:
                if id(c) not in places:
                    places[id(c)] = start + len(self._fixed)
                    self._fixed.append(c.data_ptr())
                taken.append(places[id(c)])
            for table in step.plan.behind:
                taken.append(start + len(self._fixed))
                self._fixed.append(table)
            self._steps.append((step.plan.launch, itemgetter(*taken)))

    @classmethod
    def of(cls, formula: Written, values: Sequence[Any], most: int = _FEW) -> Chain | None:
        """The chain for operands of one kind, or None where it is not one of plans alone.

        Results of more than so many elements are not kept.
        """
        # A tensor that comes twice would be one operand.
        values = [_copied(x) for x in values]
        own = [c for x in values for c in _parts(x)]
        steps: list[_Step] = []

        def apply(operation: Operation | Formula, *operands: Any) -> Any:
            found = found_for(operation, operands)
            if found is None or found[0].broadcasts or found[0].size.numel() > most:
                raise _NoChainError
            plan, groups = found
            out = plan.run(groups)
            if out is None:
                raise _NoChainError
            steps.append(_Step(plan, out, [c for k in plan.order for c in groups[k]]))
            if plan.dtypes[0] is torch.bool:
                return out[0]
            return fresh(out, plan.size, plan.dtypes[0], plan.device)

        try:
            formula(apply, *values)
        except _NoChainError:
            return None
        return cls(steps, own)

    def run(self, groups: Sequence[Components]) -> Any:
        """The result for operands of the kind; None where a function's kernel lacks a step."""
        return self.run_at([place for group in groups for place in map(_address, group)])

    def run_at(self, given: list[int]) -> Any:
        """The same for components at some addresses."""
        # A call's room is one that no other call has at the time.
        try:
            found = self._free.pop()
        except IndexError:
            between = [*map(_empty_like, self._between)]
            found = between, [*map(_address, between), *self._fixed]
        out = [*map(_empty_like, self._likes)]
        places = [*given, *map(_address, out), *found[1]]
        for launch, taken in self._steps:
            counted = launch(taken(places))
            if counted is not None and counted[0]:
                out = []
                break
        self._free.append(found)
        if not out:
            return None
        if self._dtype is torch.bool:
            return out[0]
        return fresh(out, self._size, self._dtype, self._device)


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
