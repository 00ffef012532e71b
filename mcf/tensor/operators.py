"""Operators with numbers that torch's do not take: big integers, Fraction, Decimal, mpmath."""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import torch

# A Python int beyond this does not fit torch's scalars.
_LARGEST = 2**63

NAMES = ("add", "sub", "mul", "truediv", "pow")


def _special(value: Any) -> bool:
    if isinstance(value, int):
        return not -_LARGEST <= value < _LARGEST
    return isinstance(value, (Fraction, decimal.Decimal)) or hasattr(value, "_mpf_")


def _method(name: str) -> Any:
    own = getattr(torch.Tensor, name)

    def method(self: Any, other: Any) -> Any:
        if _special(other):
            from mcf.tensor.creation import tensor

            other = tensor(other, self.terms, self.dtype, self.device)
        return own(self, other)

    method.__name__ = name
    return method


class Operators:
    """Arithmetic operators of an `MCFTensor` with a number: the nearest expansion of it."""


for _name in NAMES:
    for _prefix in ("", "r", "i"):
        setattr(Operators, f"__{_prefix}{_name}__", _method(f"__{_prefix}{_name}__"))
