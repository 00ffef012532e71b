"""Evaluate formulas of a few operations, as one fused kernel where possible."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.registry import OPERATORS
from mcf.expansions.launch.fused_formulas import Written, fused
from mcf.expansions.launch.operations import compared, into, planned
from mcf.expansions.tensor import COMPONENTS, MCFTensor
from mcf.kernels.operators import COMPARISONS, SELECTIONS, Operation

_aten = torch.ops.aten


def composed(formula: Written, *values: Any) -> Any:
    """Evaluate `formula(apply, *values)`, where `apply(operation, *operands)` is one operation.

    A formula may contain comparisons, selections, arithmetic and elementary functions.
    """
    found = fused(formula, *values)
    return formula(_apply, *values) if found is None else found


def by_torch(operation: Operation, *values: Any) -> Any:
    """Apply an operation as a PyTorch function; pass this to a formula that autograd records.

    The first operand must be a tensor.
    """
    return getattr(torch, operation.name)(*values)


def composed_into(formula: Written, values: Sequence[Any], out: MCFTensor) -> bool:
    """Write a formula's value into `out`, which may be an operand; return False if unsupported.

    For large tensors the last operation writes to `out`. Nothing is written if `out` has another
    format, shape or layout than the result.
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
    """Return the number of operations in a formula of `count` operands."""
    found: list[Any] = []
    formula(lambda *given: found.append(given), *[None] * count)
    return len(found)


def _apply(operation: Operation | Formula, *values: Any) -> Any:
    """Apply a single operation."""
    return _function(operation)(*values)


@functools.cache
def _function(operation: Operation | Formula) -> Callable[..., Any]:
    """Return the function that applies an operation to its operands."""
    if isinstance(operation, Formula) or operation in SELECTIONS:
        packet = getattr(_aten, operation.name)
        form = "self" if operation.name == "where" else packet.overloads()[0]
        return OPERATORS[getattr(packet, form)]
    return functools.partial(compared if operation in COMPARISONS else planned, operation)
