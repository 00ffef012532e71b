"""Formulas of elements in other places: vector products, outer ones, differences of neighbours.

Elements are gathered into memory that a plan keeps, and a chain of kernels computes there. The bits
are those of the operations on views and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.register_choice import get_registers
from mcf.tensor.chains import Chain, Written
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, MCFTensor, wrap

_array, _FLOAT64 = Tensor.numpy, torch.float64
# Elements of a result up to which it is computed so; more take longer than a call.
MOST = 2048
_KINDS = 1024
_plans: dict[tuple[Any, ...], Gathered | None] = {}
# The numbers of the elements that stand at each place, in the result's shape, for each operand of
# the formula, and which of the tensors each is of.
Places = Sequence[tuple[int, Any]]


def gathered(
    kind: Hashable, formula: Written, places: Callable[[], Places], *tensors: MCFTensor
) -> Any:
    """The result of a formula, or None where its operations have to be called one by one.

    Args:
        kind: what tells this formula of tensors of these shapes from others.
        formula: as of `mcf.tensor.chains.chained`, of the gathered operands.
        places: of the operands, asked for once.
        *tensors: expansions of float64 with as many components.
    """
    if watched():
        return None
    groups = []
    terms = tensors[0].__dict__["_terms"]
    for x in tensors:
        own = x.__dict__
        first = own["_c0"]
        if type(first) is not Tensor or first.dtype is not _FLOAT64 or own["_terms"] != terms:
            return None
        if first.device.type != "cpu":
            return None
        groups.append(COMPONENTS[terms](own))
    key = (kind, terms, registry.get_executor(), get_registers())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _KINDS:
            _plans.clear()
        plan = _plans[key] = Gathered.of(formula, places(), terms)
    return None if plan is None else plan.run(groups)


class Gathered:
    """A chain of kernels on gathered elements."""

    def __init__(self, chain: Chain, places: Places, terms: int) -> None:
        """The chain for operands with elements from these places."""
        self._chain, self._places, self._terms = chain, places, terms
        self._free: list[tuple[list[list[Any]], list[int]]] = []

    @classmethod
    def of(cls, formula: Written, places: Places, terms: int) -> Gathered | None:
        """The plan of a kind, or None where the formula is no chain."""
        ones = [torch.ones(at.shape, dtype=_FLOAT64, device="cpu") for _, at in places]
        chain = (
            Chain.of(formula, [wrap([one] * terms) for one in ones]) if ones[0].numel() else None
        )
        return None if chain is None else cls(chain, places, terms)

    def run(self, groups: Sequence[Any]) -> Any:
        """The result for components of the tensors."""
        # A call's room is one that no other call has at the time.
        try:
            room = self._free.pop()
        except IndexError:
            arrays = [[np.empty(at.shape) for _ in range(self._terms)] for _, at in self._places]
            room = arrays, [a.ctypes.data for each in arrays for a in each]
        for (which, at), targets in zip(self._places, room[0], strict=True):
            for c, a in zip(groups[which], targets, strict=True):
                # All places are in range; else NumPy would look first.
                _array(c).take(at, out=a, mode="clip")
        found = self._chain.run_at(room[1])
        self._free.append(room)
        return found
