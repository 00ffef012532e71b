"""Results of operations by plan, written into tensors that are there: `out=` and in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.operators import Operation
from mcf.tensor.launches import Plan
from mcf.tensor.plans import found_for, plan_of
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor

# Elements computed at a time where a result takes the place of an operand: in the cache.
_BLOCK = 1 << 16


def into(operation: Operation | Formula, values: Sequence[Any], target: Tensor) -> bool:
    """Write an operation's result into a tensor of its format, shape and memory layout.

    It may be an operand, or share memory with one.

    Returns:
        Whether that was done; nothing is written where the target has another format, shape or
        layout, or where somebody looks on. Where a function's formula lacks a step that an element
        needs, what the target holds is of no use, and no operand has changed.
    """
    found = found_for(operation, values)
    if found is None:
        return False
    plan, groups = found
    if isinstance(target, MCFTensor):
        own = target.__dict__
        parts = COMPONENTS[own["_terms"]](own)
    elif target.layout is torch.strided:
        parts = (target,)
    else:
        return False
    if not _fits(plan, parts):
        return False
    written, read = [*map(_address, parts)], plan.addresses(groups)
    size = 8 * plan.count
    if not _overlap(written, read, size):
        counted = plan.launch(written + read)
        return counted is None or not counted[0]
    if isinstance(operation, Formula) or (plan.count <= _BLOCK or _displaced(written, read, size)):
        return plan.aside(read, parts)
    _in_blocks(operation, groups, parts)
    return True


_address = Tensor.data_ptr


def _fits(plan: Plan, parts: Components) -> bool:
    """Whether the kernel can store its results there; components are alike."""
    first = parts[0]
    return (
        type(first) is Tensor
        and len(parts) == len(plan.dtypes)
        and first.dtype is plan.dtypes[0]
        and first.shape == plan.size
        and first.is_contiguous()
        and first.device == plan.device
    )


def _overlap(written: Sequence[int], read: Sequence[int], size: int) -> bool:
    """Whether what is written may overlap anything else: a kernel's tensors must not."""
    for k, a in enumerate(written):
        for b in read:
            if -size < a - b < size:
                return True
        for b in written[:k]:
            if -size < a - b < size:
                return True
    return False


def _displaced(written: Sequence[int], read: Sequence[int], size: int) -> bool:
    """Whether an operand lies a little off what is written, which would reach it too early."""
    return any(a != b and -size < a - b < size for a in written for b in read)


def _copy(results: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    for t, r in zip(parts, results, strict=True):
        t.copy_(r)


def _in_blocks(operation: Operation, groups: Sequence[Components], parts: Components) -> None:
    """The same, some elements at a time, which saves memory and the way there."""
    flat = [[c.view(-1) if c.ndim else c for c in group] for group in groups]
    targets = [c.view(-1) for c in parts]
    for start in range(0, targets[0].numel(), _BLOCK):
        block = slice(start, start + _BLOCK)
        some = [tuple(c[block] if c.ndim else c for c in group) for group in flat]
        each = plan_of(operation, some)
        assert each is not None
        out = each.run(some)
        assert out is not None
        _copy(out, [t[block] for t in targets])
