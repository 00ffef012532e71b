"""Formulas of a few operations on few elements: their kernels one after the other.

An operation of expansions costs some ten times what its kernel takes for one element. A formula
such as x + a b is looked at once for operands of a kind; after that only its kernels are launched,
with what lies between them in memory that the plan keeps. The bits are those of the operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels import registry
from mcf.kernels.operators import Operation
from mcf.kernels.register_choice import get_registers
from mcf.tensor.chain_programs import FEW, Apply, Chain, Written
from mcf.tensor.fused_chains import MANY, FusedChain, NoChainError
from mcf.tensor.plans import addressed, held_number, number_of, rounded_number
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_MOST = 1024
_chains: dict[tuple[Any, ...], Chain | FusedChain | None] = {}


def chained(formula: Written, *values: Any, out: Components | None = None) -> Any:
    """The result of a formula, or None where its operations have to be called one by one.

    Args:
        formula: a function of one that applies operations, and of the operands.
        *values: expansion tensors, plain tensors of floats and numbers.
        out: components that are written to, and may be operands: if they are contiguous and of the
            result's format and shape the result is True, else nothing is written and it is None.
    """
    found = found_chain(formula, values)
    if found is None:
        return None
    chain, groups = found
    return chain.run(groups) if out is None else chain.into(groups, out)


def found_chain(
    formula: Written, values: Sequence[Any], above: bool = False
) -> tuple[Chain | FusedChain, list[Components]] | None:
    """The chain of a formula for operands and their components, or None where there is none.

    Args:
        formula: as of `chained`.
        values: as well.
        above: whether it is asked above autograd: what records is left to it, and plain tensors
            become expansions of their format, as `mcf.tensor.widening` makes them.
    """
    if watched():
        return None
    grad = above and torch.is_grad_enabled()
    like: dict[str, Any] = {}
    for x in values:
        if type(x) is MCFTensor:
            like = x.__dict__
            break
    if not like or FEW < like["_c0"].numel() < MANY:
        return None
    groups: list[Components] = []
    kind: list[Any] = [formula, registry.get_executor(), get_registers()]
    # What operations make of a number depends on the terms beside it, but for one component.
    terms: set[int] = set()
    several, rounded = False, []
    for k, x in enumerate(values):
        if type(x) is MCFTensor:
            own = x.__dict__
            terms.add(own["_terms"])
            parts = COMPONENTS[own["_terms"]](own)
            if grad and x.requires_grad:
                return None
        elif type(x) is Tensor:
            if not addressed(x) or (grad and x.requires_grad):
                return None
            parts = (x,)
            if above:
                if x.dtype is not like["_c0"].dtype or x.numel() > FEW:
                    return None
                parts = (x, *_zeros(x.shape, x.dtype, x.device, like["_terms"] - 1))
            terms.add(len(parts))
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
    if len(terms) > 1 and (several or above):
        return None
    kind += rounded
    key = tuple(kind)
    try:
        chain = _chains[key]
    except KeyError:
        few = like["_c0"].numel() <= FEW
        chain = _chains[key] = _new(_asking(formula, rounded), values, groups, few)
    return None if chain is None else (chain, groups)


def _new(
    formula: Written, values: Sequence[Any], groups: Sequence[Components], few: bool
) -> Chain | FusedChain | None:
    """The chain of a formula for operands of a kind."""
    if len(_chains) >= _MOST:
        _chains.clear()
    if few:
        return Chain.of(formula, [*map(_held, values, groups)])
    return FusedChain.of(formula, groups)


@functools.lru_cache(256)
def _zeros(size: torch.Size, dtype: torch.dtype, device: torch.device, count: int) -> Components:
    """What a plain tensor has behind it as an expansion."""
    with torch.inference_mode(False):
        return tuple(torch.zeros(size, dtype=dtype, device=device) for _ in range(count))


def _asking(formula: Written, rounded: Sequence[int]) -> Written:
    """The formula, which may do nothing but arithmetic with operands that are rounded numbers.

    Comparisons and selections take numbers as they are.
    """
    if not rounded:
        return formula

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
    if isinstance(value, MCFTensor):
        return value
    first = parts[0]
    return first if len(parts) == 1 else fresh(parts, first.shape, first.dtype, first.device)
