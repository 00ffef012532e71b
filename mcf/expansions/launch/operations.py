"""Compute operations on expansions by cached launches: as new tensors or into existing ones.

The first call with a signature checks its operands and creates a plan, which holds the prepared
launch for later calls. `out=` and in-place forms write through the same launch. Torch refuses a
target that overlaps an operand in part: such a target is left to the operators, which raise torch's
error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.elementary.fused import Formula
from mcf.elementary.operator import apply
from mcf.expansions.components import write
from mcf.expansions.dispatch.recorded import functorch, modes
from mcf.expansions.launch.calls import SMALL, looked_up
from mcf.expansions.launch.elementwise import Plan, fits
from mcf.expansions.promotion import (
    as_components,
    check_broadcast,
    common_device,
    exactly,
    operands,
    result_format,
)
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh, wrap
from mcf.kernels import operations, registry
from mcf.kernels.components import padded
from mcf.kernels.formats import format_of
from mcf.kernels.operators import COMPARISONS, SELECTIONS, WHERE, Operation
from mcf.kernels.register_choice import get_registers

# Returns the components of a Python number for a tensor, or None if the tensor's dtype cannot hold
# it. Arguments: the number, the sign of a zero, dtype, terms and device of the tensor.
Number = Callable[[float, float, torch.dtype, int, torch.device], Components | None]


def planned(operation: Operation, *values: Any) -> MCFTensor:
    """Compute an operation on expansions, plain tensors and numbers as an expansion tensor.

    Contiguous operands go to the cached launch. The kernel's opaque operator computes the others:
    operands that are traced, observed by functorch or a mode, broadcast or promoted.
    """
    found = selected(operation, *values)
    if found is not None:
        return found
    groups = operands(*values)
    check_broadcast(groups)
    result = getattr(operations, operation.name)(*groups)
    terms = max(v.terms for v in values if isinstance(v, MCFTensor))
    # No padding for one-term expansions, whatever numbers and plain tensors are added.
    return wrap(padded(result, terms))


def compared(operation: Operation, x: Any, y: Any) -> Tensor:
    """Compute one of `operators.COMPARISONS` as a bool tensor.

    Operands are expansions, plain tensors and numbers. None is rounded to the other's format.
    """
    found = launched(operation, (x, y))
    if found is None:
        groups = unrounded(x, y)
        check_broadcast(groups)
        return getattr(operations, operation.name)(*groups)  # type: ignore[no-any-return]
    plan, groups = found
    out = plan.compute(groups)
    assert out is not None
    return out[0]


def selected(operation: Operation | Formula, *values: Any) -> MCFTensor | None:
    """Compute an operation by its cached launch; return None if there is none."""
    found = launched(operation, values)
    if found is None:
        return None
    plan, groups = found
    out = plan.compute(groups)
    return None if out is None else fresh(out, plan.size, plan.dtypes[0], plan.device)


_tracing = torch._C._get_tracing_state
_NUMBERS = frozenset({int, float})


def launched(
    operation: Operation | Formula, values: Sequence[Any], above: bool = False
) -> tuple[Plan, list[Components]] | None:
    """Return the plan for the operands and their components; None where only the operator works.

    If the plan broadcasts, the components keep their own shapes. If the operation rounds, numbers
    are rounded to the tensors' format; otherwise the format must hold them.

    Args:
        operation: the operation.
        values: the operands.
        above: whether the call is above autograd, which must see subclasses and operands that
            require grad.
    """
    if modes() or functorch() is not None:
        return None
    grad = above and torch.is_grad_enabled()
    groups: list[Components] = []
    kind: list[Any] = [operation.name, registry.get_executor(), get_registers()]
    numbers, most = False, 0
    for x in values:
        if type(x) is MCFTensor or (not above and isinstance(x, MCFTensor)):
            if grad and x.requires_grad:
                return None
            own = x.__dict__
            first, terms = own["_c0"], own["_terms"]
            if terms > most:
                longest, most = first, terms
            if type(first) is not Tensor:
                return None
            parts = COMPONENTS[terms](own)
            if not first.is_contiguous():
                if first.numel() > SMALL or _tracing() is not None:
                    return None
                parts = tuple([c.contiguous() for c in parts])
            groups.append(parts)
            kind += (terms, first.dtype, first.shape, first.device)
        elif type(x) in _NUMBERS:
            groups.append(())
            kind.append(None)
            numbers = True
        elif type(x) is Tensor and addressed(x) and not (grad and x.requires_grad):
            groups.append((x,))
            kind += (1, x.dtype, x.shape, x.device)
        else:
            return None
    if numbers:
        if not most:
            return None
        dtype, device, number = longest.dtype, longest.device, number_of(operation)
        for k, value in enumerate(values):
            if not groups[k]:
                sign = 0.0 if value else math.copysign(1.0, value)
                found = number(value, sign, dtype, most, device)
                if found is None:
                    return None
                groups[k] = found
                kind.append(len(found))
    plan = looked_up(tuple(kind), Plan.of, operation, groups)
    return None if plan is None else (plan, groups)


def addressed(x: Tensor) -> bool:
    """Return whether a plain tensor's values can be read contiguously at its address."""
    return (
        x.layout is torch.strided
        and x.is_contiguous()
        and not x.is_neg()
        and not x._is_zerotensor()
        and _tracing() is None
    )


# Equal numbers have equal components, but for the sign of zero.
@functools.lru_cache(1024)
def rounded_number(
    value: float, sign: float, dtype: torch.dtype, terms: int, device: torch.device
) -> Components | None:
    """Return the components of a number rounded to a tensor's format, as many as it needs."""
    return as_components(value, dtype, terms, device)


@functools.lru_cache(1024)
def _exact(
    value: float, sign: float, dtype: torch.dtype, terms: int, device: torch.device
) -> Components | None:
    return as_components(value, dtype, 4, device) if exactly(value, dtype) else None


@functools.lru_cache(1024)
def held_number(
    value: float, sign: float, dtype: torch.dtype, terms: int, device: torch.device
) -> Components | None:
    """Return the components of a number in a tensor's format; None if they are not exact."""
    found = as_components(value, dtype, terms, device)
    if not math.isfinite(value):
        return found
    parts = components_of(value, format_of(dtype), terms)
    held = all(map(math.isfinite, parts)) and sum(map(Fraction, parts)) == Fraction(value)
    return found if held else None


# Conversions of numbers by the operation's name; arithmetic, not listed, rounds.
_NUMBERS_OF: dict[str, Number] = {o.name: _exact for o in COMPARISONS}
_NUMBERS_OF.update({o.name: held_number for o in SELECTIONS if o is not WHERE})


def number_of(operation: Operation | Formula) -> Number:
    """Return the conversion of Python numbers to components for an operation."""
    return _NUMBERS_OF.get(operation.name, rounded_number)


def unrounded(*values: Any) -> list[Components]:
    """Return the components of operands in one dtype that holds all their values exactly."""
    dtype, _ = result_format(*values)
    if not all(exactly(v, dtype) for v in values):
        dtype = torch.float64
    device = common_device(*values)
    out = []
    for v in values:
        c = as_components(v, dtype, v.terms if isinstance(v, MCFTensor) else 4, device)
        # Components that are normalised in a narrower format need not be in this one.
        narrower = isinstance(v, MCFTensor) and v.dtype is not dtype
        out.append(convert(c, dtype, len(c)) if narrower else c)
    return out


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
    found = launched(operation, values, above)
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
    if not fits(plan, parts) or shares_part(target, values):
        return False
    left = plan.into(groups, parts)
    if left:
        _complete(operation.name, plan.spread(groups), parts, left)
    return left is not None


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
    if not all(map(_is_dense, (a, b))):
        return False
    same = _address(a) == _address(b) and a.nbytes == b.nbytes
    return not (same and a.stride() == b.stride())


_address, _is_dense = Tensor.data_ptr, torch.ops.aten.is_non_overlapping_and_dense.default


def _complete(
    name: str, groups: Sequence[Components], parts: Components, left: Sequence[range]
) -> None:
    """Write the ranges that a function's kernel has left out, by the function's operator."""

    def pieces(c: Tensor) -> list[Tensor]:
        return [c.view(-1)[r.start : r.stop] for r in left]

    out = apply(name, *(tuple([torch.cat(pieces(c)) for c in group]) for group in groups))
    lengths = [*map(len, left)]
    write(
        [piece for c in parts for piece in pieces(c)],
        [piece for c in out for piece in torch.split_with_sizes(c, lengths)],
    )
