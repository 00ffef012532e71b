"""Functions of two operands that integers on the host compute, of few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mcf.convert.few import ratio, readable, rows, tensors
from mcf.convert.numbers import components_of
from mcf.elementary.remainders import modulo
from mcf.kernels.formats import FORMATS, Format
from mcf.tensor.tensor import COMPONENTS, MCFTensor, fresh

# Of two expansions' components and a format, the result's, or None.
_OfRows = Callable[[Sequence[float], Sequence[float], Format, int], Sequence[float] | None]


def on_rows(function: _OfRows, x: Any, y: Any) -> MCFTensor | None:
    """A function of few expansions and ones of their format and shape, or a number; or None."""
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
    """fmod, or remainder."""

    def of_row(a: Sequence[float], b: Sequence[float], fmt: Format, terms: int) -> Any:
        return modulo(a, b, towards_zero, fmt, terms)

    return of_row


def quotient_rows(towards_zero: bool) -> _OfRows:
    """x / y rounded to a whole number where that is small and the numbers are of usual size.

    The formula (`mcf.tensor.ops.division`) rounds a difference and a quotient, which is k within
    less than 1/2 for |k| < 2^(p - 4), and then to k: the errors are a few units in 2^(p - 1).
    """

    def of_row(a: Sequence[float], b: Sequence[float], fmt: Format, terms: int) -> Any:
        least, most = 2.0 ** (fmt.emin // 2), 2.0 ** (fmt.emax // 2)
        if not (least < abs(a[0]) < most and least < abs(b[0]) < most):
            return None
        n, d = ratio(a)
        m, e = ratio(b)
        n, m = n * e, m * d
        k = n // m
        if towards_zero and k < 0 and k * m != n:
            k += 1
        if abs(k) >= 2 ** (fmt.p - 4):
            return None
        if k:
            return (float(k), *(0.0,) * (terms - 1))
        # A zero over y, whose components take the sign of x / y where that is not y's.
        return (math.copysign(0.0, a[0] * b[0]), *(math.copysign(0.0, a[0]),) * (terms - 1))

    return of_row
