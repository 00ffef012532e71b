"""Compute functions of two small operands by Python integers on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mcf.convert.few import readable, rows, tensors
from mcf.convert.numbers import components_of
from mcf.elementary.remainders import modulo, quotient
from mcf.expansions.tensor import COMPONENTS, MCFTensor, fresh
from mcf.kernels.formats import FORMATS, Format

# Maps the components of two expansions, a format and terms to the result's components, or None.
_OfRows = Callable[[Sequence[float], Sequence[float], Format, int], Sequence[float] | None]


def on_rows(function: _OfRows, x: Any, y: Any) -> MCFTensor | None:
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
        row = function(a, b, fmt, terms)
        if row is None:
            return None
        found.append(row)
    if not found:
        return None
    parts = tensors(found, first.shape, first.dtype)
    return fresh(parts, first.shape, first.dtype, first.device)


# A Python int beyond this does not fit torch's scalars.
_LARGEST = 2**63


def modulo_rows(towards_zero: bool) -> _OfRows:
    """Return the function of fmod (towards zero) or remainder."""

    def of_row(a: Sequence[float], b: Sequence[float], fmt: Format, terms: int) -> Any:
        return modulo(a, b, towards_zero, fmt, terms)

    return of_row


def quotient_rows(towards_zero: bool) -> _OfRows:
    """Return the function of x / y rounded towards zero, or down."""

    def of_row(a: Sequence[float], b: Sequence[float], fmt: Format, terms: int) -> Any:
        return quotient(a, b, towards_zero, fmt, terms)

    return of_row
