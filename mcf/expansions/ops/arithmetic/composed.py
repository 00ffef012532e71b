"""Formulas of a few operations: one kernel where there are many elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.registry import OPERATORS
from mcf.expansions.launch.cached_launches import compared, planned
from mcf.expansions.launch.fused_formulas import Written, fused
from mcf.expansions.launch.writing import into
from mcf.expansions.tensor import COMPONENTS, MCFTensor
from mcf.kernels.operators import COMPARISONS, SELECTIONS, Operation

_aten = torch.ops.aten


def composed(formula: Written, *values: Any) -> Any:
    """A formula of one that applies operations, and of its operands.

    It may have comparisons, selections, arithmetic and elementary functions.
    """
    found = fused(formula, *values)
    return formula(_apply, *values) if found is None else found


def by_torch(operation: Operation, *values: Any) -> Any:
    """An operation as torch's function: what `composed` takes a formula for, where it is recorded.

    The first value is a tensor.
    """
    return getattr(torch, operation.name)(*values)


def composed_into(formula: Written, values: Sequence[Any], out: MCFTensor) -> bool:
    """The same written into a tensor, which may be an operand; whether that was done.

    The last operation of many elements writes there. Nothing is written to a tensor of another
    format, shape or layout.
    """
    own = out.__dict__
    if fused(formula, *values, out=COMPONENTS[own["_terms"]](own)):
        return True
    left = _length(formula, len(values))

    def apply(operation: Operation | Formula, *operands: Any) -> Any:
        nonlocal left
        left -= 1
        return _apply(operation, *operands) if left else into(operation, operands, out)

    return formula(apply, *values) is True


@functools.lru_cache(256)
def _length(formula: Written, count: int) -> int:
    """How many operations a formula of so many operands has."""
    found: list[Any] = []
    formula(lambda *given: found.append(given), *[None] * count)
    return len(found)


def _apply(operation: Operation | Formula, *values: Any) -> Any:
    """An operation by itself."""
    if isinstance(operation, Formula) or operation in SELECTIONS:
        packet = getattr(_aten, operation.name)
        form = "self" if operation.name == "where" else packet.overloads()[0]
        return OPERATORS[getattr(packet, form)](*values)
    if operation in COMPARISONS:
        return compared(operation, *values)
    return planned(operation, *values)
