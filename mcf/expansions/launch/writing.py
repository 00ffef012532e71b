"""Write results of cached launches into existing tensors: `out=` and in-place forms.

Torch refuses a target that overlaps an operand in part. Such a target is left to the operators,
which raise torch's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.elementary.operator import CHUNK, apply
from mcf.expansions.components import write
from mcf.expansions.launch.cached_launches import found_above
from mcf.expansions.launch.launches import Plan
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor
from mcf.kernels.operators import Operation


def into(
    operation: Operation | Formula, values: Sequence[Any], target: Tensor, above: bool = False
) -> bool:
    """Write an operation's result into a tensor of its format, shape and memory layout.

    The target may be an operand, or overlap one in a way that torch does not detect.

    Args:
        operation: the operation.
        values: the operands.
        target: an expansion tensor, or a plain one.
        above: whether the call is above autograd, which may have to record operands.

    Returns:
        Whether the result was written. Nothing is written where the target has another format,
        shape or layout, where a mode observes, or where torch would refuse.
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
    left = plan.over([*map(_address, parts), *plan.addresses(groups)])
    if left is None:
        return plan.aside(groups, parts)
    if left:
        _complete(operation.name, groups, parts, left)
    return True


def shares_part(target: Any, values: Iterable[Any]) -> bool:
    """Return whether a tensor overlaps one of the values in part, by torch's criterion.

    Torch does not check tensors with gaps, and sees the first component of an expansion.
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
    """Return whether overlapping tensors overlap in part, as torch's `get_overlap_status`."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    if not (_is_dense(a) and _is_dense(b)):
        return False
    same = _address(a) == _address(b) and a.nbytes == b.nbytes
    return not (same and a.stride() == b.stride())


def _is_dense(t: Tensor) -> bool:
    """Return whether a tensor is dense in memory, in some order of its dimensions."""
    expected = 1
    for step, n in sorted(zip(t.stride(), t.shape, strict=True)):
        if n != 1:
            if step != expected:
                return False
            expected *= n
    return True


_address = Tensor.data_ptr


def _fits(plan: Plan, parts: Components) -> bool:
    """Return whether the kernel can store its results in components of one layout."""
    first = parts[0]
    return (
        type(first) is Tensor
        and len(parts) == len(plan.dtypes)
        and first.dtype is plan.dtypes[0]
        and first.shape == plan.size
        and first.is_contiguous()
        and first.device == plan.device
    )


def _complete(
    name: str, groups: Sequence[Components], parts: Components, left: Sequence[range]
) -> None:
    """Write the ranges that a function's kernel has left out, by the function's operator."""
    flat = [[c.view(-1) for c in group] for group in groups]
    targets = [c.view(-1) for c in parts]
    for some in _together(left, CHUNK):
        given = [tuple([_gathered(c, some) for c in group]) for group in flat]
        out = apply(name, *given)
        lengths = [*map(len, some)]
        write(
            [t[r.start : r.stop] for t in targets for r in some],
            [piece for c in out for piece in torch.split_with_sizes(c, lengths)],
        )


def _together(left: Sequence[range], most: int) -> list[list[range]]:
    """Split and group ranges into lists of at most `most` elements."""
    found: list[list[range]] = []
    capacity = 0
    for r in left:
        for start in range(r.start, r.stop, most):
            piece = range(start, min(start + most, r.stop))
            if len(piece) > capacity:
                found.append([])
                capacity = most
            found[-1].append(piece)
            capacity -= len(piece)
    return found


def _gathered(c: Tensor, some: Sequence[range]) -> Tensor:
    return torch.cat([c[r.start : r.stop] for r in some])
