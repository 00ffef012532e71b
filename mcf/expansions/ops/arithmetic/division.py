"""Implement remainders, integer quotients and rounding to decimals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert import export
from mcf.convert.few import rounded_few
from mcf.elementary.fused import Formula
from mcf.elementary.integral_parts import MOST, rounded
from mcf.elementary.remainders import floor_quotient, trunc_quotient
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.host_rows import modulo_rows, on_rows, quotient_rows
from mcf.expansions.ops.arithmetic.composed import composed
from mcf.expansions.ops.elementary.elementary import of_two
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.components import Components
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.operators import SUB
from mcf.kernels.register_choice import registers_for

aten = torch.ops.aten

# Smaller tensors are rounded as fractions on the CPU: kernels take seconds to compile.
_FEWEST = 256
_FMOD, _REMAINDER = modulo_rows(True), modulo_rows(False)
_WHOLE = {"floor": quotient_rows(False), "trunc": quotient_rows(True)}


@implements(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(x: Any, y: Any) -> MCFTensor:
    """Return x - y trunc(x / y)."""
    found = on_rows(_FMOD, x, y)
    return of_two("fmod", x, y) if found is None else found


@implements(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(x: Any, y: Any) -> MCFTensor:
    """Return x - y floor(x / y)."""
    found = on_rows(_REMAINDER, x, y)
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
    found = on_rows(_WHOLE[rounding_mode], x, y)
    if found is not None:
        return found
    function = floor_quotient if rounding_mode == "floor" else trunc_quotient
    return of_two(function.__name__, x, y, function)


@implements(aten.floor_divide.default)
def floor_divide(x: Any, y: Any) -> Tensor:
    """Return floor(x / y)."""
    found = on_rows(_WHOLE["floor"], x, y)
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
