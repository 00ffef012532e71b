"""Tensors as exact numbers: Python integers in units of 2**-1074, or Fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.exact import Number

# Every float64, and so every number of a narrower format, is a whole number of these.
UNIT = -1074


def integers(t: Tensor) -> np.ndarray[Any, np.dtype[np.object_]]:
    """The finite elements as integers x / 2**UNIT; sums of such arrays are exact.

    A product of two such arrays is in units of 2**(2 * UNIT).
    """
    assert torch.isfinite(t).all(), "only finite numbers have an integer"
    fraction, exponent = np.frexp(t.detach().double().cpu().numpy().ravel())
    mantissas = (fraction * 2.0**53).astype(np.int64)
    shifts = exponent.astype(np.int64) - 53 - UNIT
    out = np.empty(mantissas.shape, dtype=object)
    out[:] = [
        m << s if s >= 0 else m >> -s
        for m, s in zip(mantissas.tolist(), shifts.tolist(), strict=True)
    ]
    return out


def numbers(t: Tensor) -> list[Number]:
    """The elements as Fractions; infinities and NaN as floats."""
    values = t.detach().double().cpu().flatten().tolist()
    return [Fraction(x) if math.isfinite(x) else x for x in values]


def tensor_of(values: list[Number], dtype: torch.dtype) -> Tensor:
    """The values as a tensor; each must be a number of the dtype (zero comes without its sign)."""
    t = torch.tensor([float(x) for x in values], dtype=torch.float64)
    out = t.to(dtype)
    assert bool(((out.double() == t) | t.isnan()).all()), f"not all values are {dtype}"
    return out
