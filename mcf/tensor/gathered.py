"""Formulas of elements in other places: vector products, outer ones, differences of neighbours.

Elements are gathered into memory that a chain of kernels has, which computes there. The bits are
those of the operations on views and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.register_choice import get_registers
from mcf.tensor.chain_programs import Chain, Written
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, MCFTensor, wrap

_address = Tensor.data_ptr
# Of which elements are moved.
_FORMATS = frozenset({torch.float64, torch.float32})
# Elements of a result up to which it is computed so; more take longer than a call.
MOST = 2048
_KINDS = 1024
_chains: dict[tuple[Any, ...], Chain | None] = {}
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
        *tensors: expansions of one of these formats with as many components.
    """
    if watched():
        return None
    given: list[int] = []
    terms, dtype = tensors[0].__dict__["_terms"], tensors[0].__dict__["_c0"].dtype
    if dtype not in _FORMATS:
        return None
    key: list[Any] = [kind, terms, dtype, registry.get_executor(), get_registers()]
    for x in tensors:
        own = x.__dict__
        first = own["_c0"]
        if type(first) is not Tensor or first.dtype is not dtype or own["_terms"] != terms:
            return None
        if first.device.type != "cpu":
            return None
        key.append(None if first.is_contiguous() else first.stride())
        given += map(_address, COMPONENTS[terms](own))
    known = tuple(key)
    try:
        chain = _chains[known]
    except KeyError:
        if len(_chains) >= _KINDS:
            _chains.clear()
        chain = _chains[known] = _of(formula, places(), terms, tensors)
    return None if chain is None else chain.run_at(given)


def _of(formula: Written, places: Places, terms: int, tensors: Sequence[MCFTensor]) -> Chain | None:
    """The chain of a kind, or None where the formula is none."""
    if not places[0][1].size:
        return None
    dtype = tensors[0].__dict__["_c0"].dtype
    ones = [torch.ones(at.shape, dtype=dtype, device="cpu") for _, at in places]
    moves = []
    for which, at in places:
        first = tensors[which].__dict__["_c0"]
        moves.append((range(terms * which, terms * (which + 1)), elements(first, at)))
    return Chain.of(formula, [wrap([one] * terms) for one in ones], moves, MOST)


def elements(x: Tensor, index: Any) -> Any:
    """How far from a tensor's address its elements of these numbers are, in elements."""
    if not x.ndim:
        return np.zeros(index.shape, np.int64)
    # As one row: of more than 8192 in a column NumPy 2.4 repeats the last ones.
    digits = np.unravel_index(index.ravel(), x.shape)
    steps = zip(digits, x.stride(), strict=True)
    return sum((k * s for k, s in steps), np.zeros(index.size, np.int64)).reshape(index.shape)


def elements_in_order(x: Tensor, order: Sequence[int]) -> Any:
    """`elements` of all in an order of the dimensions; None where they lie in that order."""
    numbers = np.arange(x.numel()).reshape(x.shape).transpose(order)
    found = elements(x, numbers).ravel()
    return None if np.array_equal(found, np.arange(x.numel())) else found
