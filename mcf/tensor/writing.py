"""Results of operations by plan, written into tensors that are there: `out=` and in place.

Where a target shares some of its memory with an operand, but is not the same tensor or another one
of all of it, torch refuses to write; so does what is here, on torch's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.operators import Operation
from mcf.tensor.components import write
from mcf.tensor.launches import Plan
from mcf.tensor.plans import found_above, plan_of
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor

# Elements computed at a time where a result takes the place of an operand: in the cache.
_BLOCK = 1 << 16


def into(
    operation: Operation | Formula, values: Sequence[Any], target: Tensor, above: bool = False
) -> bool:
    """Write an operation's result into a tensor of its format, shape and memory layout.

    It may be an operand, or share memory with one in another way than torch sees.

    Args:
        operation: what is computed.
        values: the operands.
        target: an expansion tensor, or a plain one.
        above: whether it is asked above autograd, which may have to see operands.

    Returns:
        Whether that was done; nothing is written where the target has another format, shape or
        layout, where somebody looks on, or where torch refuses to. Where a function's formula lacks
        a step that an element needs, what the target holds is of no use, and no operand has
        changed.
    """
    found = found_above(operation, values, above)
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
    if not _fits(plan, parts) or shares_part(target, values):
        return False
    done = plan.into(groups, parts)
    if done is not None:
        return done
    if plan.broadcasts:
        groups = plan.spread(groups)
    written, read = [*map(_address, parts)], plan.addresses(groups)
    size = 8 * plan.count
    if not _overlap(written, read, size):
        counted = plan.launch(written + read)
        return counted is None or not counted[0]
    if isinstance(operation, Formula) or (plan.count <= _BLOCK or _displaced(written, read, size)):
        return plan.aside(read, parts)
    _in_blocks(operation, groups, parts)
    return True


def shares_part(target: Any, values: Iterable[Any]) -> bool:
    """Whether a tensor shares memory with one of some values, but not the same elements.

    As torch sees that, which does not look at tensors with gaps. What it sees of expansions are
    their first components.
    """
    first = target.__dict__["_c0"] if isinstance(target, MCFTensor) else target
    if type(first) is not Tensor:
        return False
    start = end = 0
    for x in values:
        if x is target or not isinstance(x, Tensor):
            continue
        other = x.__dict__["_c0"] if isinstance(x, MCFTensor) else x
        if type(other) is not Tensor or other.layout is not torch.strided:
            continue
        if not end:
            start = _address(first)
            end = start + first.nbytes
        place = _address(other)
        if start < place + other.nbytes and place < end and _in_part(first, other):
            return True
    return False


def _in_part(a: Tensor, b: Tensor) -> bool:
    """Of two tensors that lie on each other, as torch's `get_overlap_status` has it."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    if not (_is_dense(a) and _is_dense(b)):
        return False
    same = _address(a) == _address(b) and a.nbytes == b.nbytes
    return not (same and a.stride() == b.stride())


def _is_dense(t: Tensor) -> bool:
    """Whether a tensor's elements lie one after the other, in some order of its dimensions."""
    expected = 1
    for step, n in sorted(zip(t.stride(), t.shape, strict=True)):
        if n != 1:
            if step != expected:
                return False
            expected *= n
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
        write([t[block] for t in targets], out)
