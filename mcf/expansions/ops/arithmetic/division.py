"""Implement remainders, integer quotients and rounding to decimals.

Remainders and quotients of small operands are computed by Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert import export
from mcf.convert.few import readable, rounded_few, rows, tensors
from mcf.convert.numbers import components_of
from mcf.elementary.fused import Formula
from mcf.elementary.integral_parts import MOST, rounded
from mcf.elementary.remainders import floor_quotient, modulo, quotient, trunc_quotient
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.fused_formulas import composed
from mcf.expansions.ops.elementary.elementary import of_two
from mcf.expansions.tensor import COMPONENTS, MCFTensor, fresh, wrap
from mcf.kernels.components import Components
from mcf.kernels.formats import FORMATS, FP64, Format, format_of
from mcf.kernels.operators import SUB
from mcf.kernels.register_choice import registers_for

# Maps the components of two expansions, whether to round towards zero, a format and terms to the
# result's components, or None.
_OfRows = Callable[[Sequence[float], Sequence[float], bool, Format, int], Sequence[float] | None]


def _on_rows(function: _OfRows, towards_zero: bool, x: Any, y: Any) -> MCFTensor | None:
    """Apply a function to a small tensor and a tensor of its format and shape or a number; or None.

    None means that the operands are unsupported.
    """
    if type(x) is not MCFTensor:
        return None
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if not readable((first,)) or not first.is_contiguous():
        return None
    fmt = FORMATS[first.dtype]
    if type(y) is MCFTensor:
        other = y.__dict__
        second = other["_c0"]
        if type(second) is not Tensor or other["_terms"] != terms:
            return None
        if second.dtype is not first.dtype or second.shape != first.shape:
            return None
        if second.device != first.device:
            return None
        divisors = rows(COMPONENTS[terms](other))
    elif type(y) is float or (type(y) is int and abs(y) < _LARGEST):
        divisors = [components_of(y, fmt, terms)] * first.numel()
    else:
        return None
    found = []
    for a, b in zip(rows(COMPONENTS[terms](own)), divisors, strict=True):
        row = function(a, b, towards_zero, fmt, terms)
        if row is None:
            return None
        found.append(row)
    if not found:
        return None
    parts = tensors(found, first.shape, first.dtype)
    return fresh(parts, first.shape, first.dtype, first.device)


# A Python int beyond this does not fit torch's scalars.
_LARGEST = 2**63


aten = torch.ops.aten

# Smaller tensors are rounded as fractions on the CPU: kernels take seconds to compile.
_FEWEST = 256


@implements(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(x: Any, y: Any) -> MCFTensor:
    """Return x - y trunc(x / y)."""
    found = _on_rows(modulo, True, x, y)
    return of_two("fmod", x, y) if found is None else found


@implements(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(x: Any, y: Any) -> MCFTensor:
    """Return x - y floor(x / y)."""
    found = _on_rows(modulo, False, x, y)
    return of_two("remainder", x, y) if found is None else found


@implements(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """Return x / y; for "floor" or "trunc" the expansion nearest to the rounded exact quotient."""
    if rounding_mode is None:
        return x / y
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(
            f"div: rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}"
        )
    found = _on_rows(quotient, rounding_mode == "trunc", x, y)
    if found is not None:
        return found
    function = floor_quotient if rounding_mode == "floor" else trunc_quotient
    return of_two(function.__name__, x, y, function)


@implements(aten.floor_divide.default)
def floor_divide(x: Any, y: Any) -> Tensor:
    """Return floor(x / y)."""
    found = _on_rows(quotient, False, x, y)
    return torch.div(x, y, rounding_mode="floor") if found is None else found


@implements(aten.frac.default)
def frac(x: Tensor) -> Tensor:
    """Return x - trunc(x), exact."""
    return composed(_without_whole, x)  # type: ignore[no-any-return]


def _without_whole(o: Any, x: Any) -> Any:
    return o(SUB, x, o(Formula("trunc"), x))


@implements(aten.round.decimals)
def round_decimals(x: MCFTensor, *, decimals: int = 0) -> Tensor:
    """Round x to a number of decimals, then to the nearest expansion; ties to even in both."""
    if x.is_meta:
        return wrap([torch.empty_like(c) for c in x.components])
    fmt = format_of(x.dtype)
    found = rounded_few(x.components, decimals)
    if found is not None:
        return wrap(found)
    many = x.numel() >= _FEWEST and registers_for(fmt, x.device) is FP64
    if not many or not 1 <= decimals <= MOST:
        return _by_fractions(x.components, decimals).reshape(x.shape)
    flat = tuple(c.reshape(-1).contiguous() for c in x.components)
    out, known = rounded(flat, fmt, x.terms, decimals)
    (at,) = (~known).nonzero(as_tuple=True)
    if len(at) > 0:
        few = _by_fractions(tuple(c[at] for c in flat), decimals).components
        out = tuple(c.index_put((at,), f) for c, f in zip(out, few, strict=True))
    return wrap([c.view(x.shape) for c in out])


def _by_fractions(x: Components, decimals: int) -> MCFTensor:
    numbers = [_round(v, decimals) for v in export.fractions(x)]
    return tensor(numbers, len(x), x[0].dtype, x[0].device)


def _round(value: Fraction | float, decimals: int) -> Fraction | float:
    if isinstance(value, float):
        return value
    # Outside this range rounding changes no number of these formats, or rounds all to zero.
    rounded = round(value, max(-400, min(decimals, 1100)))
    return rounded if rounded else math.copysign(0.0, value)
