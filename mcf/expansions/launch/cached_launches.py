"""Cache plans of operations by the signature of their operands.

The kernel of an operation, the order of its operands and the layout of its results depend only on
formats, terms, shapes and device: the signature. The first call with a signature checks its
operands and creates a plan, which holds the prepared launch for later calls.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.elementary.fused import Formula
from mcf.expansions.dispatch.recorded import functorch, modes
from mcf.expansions.dispatch.recorded import watched as watched
from mcf.expansions.launch.launches import SMALL, Plan
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

# Number of cached plans, above which the cache is cleared.
_MOST = 4096
_plans: dict[tuple[Any, ...], Plan | None] = {}
# Returns the cached plan of a signature, composed as in `_launched`.
known = _plans.get


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
    found = _launched(operation, (x, y), _exact)
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
    found = _launched(operation, values, _NUMBERS_OF.get(operation.name, rounded_number))
    if found is None:
        return None
    plan, groups = found
    out = plan.compute(groups)
    return None if out is None else fresh(out, plan.size, plan.dtypes[0], plan.device)


_tracing = torch._C._get_tracing_state
_NUMBERS = frozenset({int, float})


def _launched(
    operation: Operation | Formula, values: Sequence[Any], number: Number, above: bool = False
) -> tuple[Plan, list[Components]] | None:
    """Return the plan for the operands and their components; None where only the operator works.

    If the plan broadcasts, the components keep their own shapes.

    Args:
        operation: the operation.
        values: the operands.
        number: converts Python numbers to components.
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
        dtype, device = longest.dtype, longest.device
        for k, value in enumerate(values):
            if not groups[k]:
                sign = 0.0 if value else math.copysign(1.0, value)
                found = number(value, sign, dtype, most, device)
                if found is None:
                    return None
                groups[k] = found
                kind.append(len(found))
    key = tuple(kind)
    try:
        plan = _plans[key]
    except KeyError:
        plan = _kept(key, operation, groups)
    return None if plan is None else (plan, groups)


def _kept(
    key: tuple[Any, ...], operation: Operation | Formula, groups: Sequence[Components]
) -> Plan | None:
    """Create and cache the plan of a signature."""
    if len(_plans) >= _MOST:
        _plans.clear()
    if isinstance(operation, Formula):
        plan = Plan.of_formula(operation, groups)
    else:
        plan = Plan.of(operation, groups)
    _plans[key] = plan
    return plan


def found_for(
    operation: Operation | Formula, values: Sequence[Any]
) -> tuple[Plan, list[Components]] | None:
    """Return the plan for the operands and their components in the result's shape, or None.

    Numbers are rounded to the tensors' format if the operation rounds. Otherwise the result is None
    for numbers that the format cannot hold.
    """
    found = _launched(operation, values, _NUMBERS_OF.get(operation.name, rounded_number))
    if found is None or not found[0].broadcasts:
        return found
    plan, groups = found
    return plan, plan.spread(groups)


def found_above(
    operation: Operation | Formula, values: Sequence[Any], above: bool = True
) -> tuple[Plan, list[Components]] | None:
    """Return plan and components in their own shapes; None where autograd may have to record."""
    return _launched(operation, values, _NUMBERS_OF.get(operation.name, rounded_number), above)


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
