"""Formulas of a few operations: launched together where there are few elements."""

from __future__ import annotations

from typing import Any

import torch

from mcf.elementary.fused import Formula
from mcf.kernels.operators import COMPARISONS, SELECTIONS, Operation
from mcf.tensor.chains import Written, chained
from mcf.tensor.plans import compared, planned
from mcf.tensor.registry import OPERATORS

_aten = torch.ops.aten


def composed(formula: Written, *values: Any) -> Any:
    """A formula of one that applies operations, and of its operands.

    It may have comparisons, selections, arithmetic and elementary functions.
    """
    found = chained(formula, *values)
    return formula(_apply, *values) if found is None else found


def _apply(operation: Operation | Formula, *values: Any) -> Any:
    """An operation by itself."""
    if isinstance(operation, Formula) or operation in SELECTIONS:
        packet = getattr(_aten, operation.name)
        form = "self" if operation.name == "where" else packet.overloads()[0]
        return OPERATORS[getattr(packet, form)](*values)
    if operation in COMPARISONS:
        return compared(operation, *values)
    return planned(operation, *values)
