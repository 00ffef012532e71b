"""The exact value of stored numbers, and its rounding to any storage format.

A value is a pair of float64 tensors (s, e), s = RN(s + e): exact for a number of any format, for
the sum of two whose significant bits span at most 106, and for every split of a float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.rounding import round_odd, round_to
from mcf.kernels.algorithms import words
from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP32
from mcf.kernels.torch.registers import primitives

Value = tuple[Tensor, Tensor]

_reference = Binder(lambda f: f, primitives(FP32, FP32, {}))


def exact(*components: Tensor) -> Value:
    """Return the exact sum of one or two components (two_sum in float64)."""
    total = components[0].detach().to(torch.float64, copy=True)
    error = torch.zeros_like(total)
    for component in components[1:]:
        b = component.detach().double()
        s = total + b
        back = s - total
        error += (total - (s - back)) + (b - back)
        total = s
    # For an infinity or NaN the formula gives an error of NaN; it is 0.
    return total, torch.where(total.isfinite(), error, 0.0)


def less(value: Value, stored: Tensor) -> Value:
    """Return a value minus its stored part."""
    s, e = value
    difference = torch.where(s.isfinite(), s - stored.double(), 0.0)
    return exact(difference, e)


def rounded(value: Value, dtype: torch.dtype) -> Tensor:
    """Return a value rounded once to nearest, ties to even."""
    s, e = value
    return s.clone() if dtype == torch.float64 else round_to(round_odd(s, e), dtype)


def split(value: Value, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a float32 value as a bf16 number and the int16 or int8 below it (`words.split16`)."""
    function = {torch.int16: words.split16, torch.int8: words.split8}[dtype]
    hi, low = _reference(function)(rounded(value, torch.float32))
    return hi.to(torch.bfloat16), low.to(dtype)


def join(hi: Tensor, low: Tensor) -> Tensor:
    """Return the float32 that `split` has split."""
    function = {torch.int16: words.join16, torch.int8: words.join8}[low.dtype]
    joined: Tensor = _reference(function)(hi.detach().float(), low.float())
    return joined
