"""Run operations on complex expansions as one kernel, if nothing records them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import MCFComplexTensor, formatted, made
from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.recorded import differentiated, watched
from mcf.expansions.launch.operations import launched
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import fresh, wrap
from mcf.kernels import operations
from mcf.kernels.operators import Operation

_duals = torch.autograd.forward_ad


def unrecorded(values: Sequence[Any]) -> bool:
    """Return whether autograd, modes, transforms and torch.compile are all inactive."""
    if torch.compiler.is_compiling() or _duals._current_level >= 0 or watched():
        return False
    return not differentiated(values)


def planned(operation: Operation | Formula, *values: Any) -> MCFComplexTensor | None:
    """Run an operation on parts by its cached launch; return None without one."""
    found = launched(operation, values)
    if found is None:
        return None
    plan, groups = found
    out = plan.compute(groups)
    if out is None:
        return None
    half, dtype = len(out) // 2, plan.dtypes[0]
    real, imag = (fresh(c, plan.size, dtype, plan.device) for c in (out[:half], out[half:]))
    return made(real, imag)


def applied(operation: Operation, *values: Any) -> MCFComplexTensor | None:
    """Run one of `complex_operators.COMPLEX` on parts and numbers; return None if it is recorded.

    In that case the caller runs the operations on parts, which have the same bits.
    """
    if not unrecorded(values):
        return None
    found = planned(operation, *values)
    if found is not None:
        return found
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        # mpmath numbers and Fractions become the nearest expansions.
        values = tuple(formatted(*values))
    out = operations.apply(operation, operands(*values), None)
    half = len(out) // 2
    return made(wrap(out[:half]), wrap(out[half:]))
