"""The primitives on torch tensors that hold float32 or float64 registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import FP32, FP64, INT8, INT16, INT32, Format, power_of_two
from mcf.kernels.register_choice import chosen

Rounding = Callable[[Tensor], Tensor]


def rounding(register: Format, fmt: Format) -> Rounding:
    """Return the function that rounds x to nearest even in `fmt`, kept in the register's dtype."""
    if fmt == register:
        return lambda x: x
    if fmt.dtype is None:
        return lambda x: _round_toy(x, fmt)
    if fmt in (INT8, INT16, INT32):
        # The number is an integer already.
        return lambda x: x
    if register == FP64 and fmt != FP32:
        # Rounding through float32 would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    return lambda x: x.to(fmt.dtype).to(register.dtype)


def _round_toy(x: Tensor, fmt: Format) -> Tensor:
    """Round float64 values to a format of p <= 24 bits; every step but the rounding is exact."""
    _, exponent = torch.frexp(x)
    ulp = power_of_two((exponent - fmt.p).clamp(min=fmt.emin - fmt.p + 1))
    y = torch.round(x / ulp) * ulp
    y = torch.where(y.abs() > float(fmt.max), torch.copysign(torch.full_like(y, torch.inf), y), y)
    return torch.where(torch.isfinite(x), y, x)


def _fms_by_dekker(fmt: Format, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return RN(a * b - c) in a register's format, where c = RN(a * b), by Dekker's product.

    PyTorch has no FMA. The factors are scaled to [1/2, 1), so that no step overflows or underflows,
    and the result is scaled back with one rounding. An exact zero is +0 and an underflow to zero
    keeps its sign, as with an FMA.
    """
    assert fmt.dtype is not None
    x, m = torch.frexp(a)
    y, n = torch.frexp(b)
    splitter = 2.0 ** ((fmt.p + 1) // 2) + 1
    tx, ty = splitter * x, splitter * y
    xh, yh = tx - (tx - x), ty - (ty - y)
    xl, yl = x - xh, y - yh
    p = x * y
    e = xl * yl - (((p - xh * yh) - xl * yh) - xh * yl)
    e = torch.where(e == 0, 0.0, e)
    exponent = m + n
    half = exponent // 2
    error = e * power_of_two(half, fmt) * power_of_two(exponent - half, fmt)
    # Below the smallest normal number c has an error of at most half the smallest number, and p may
    # differ from the scaled c; the error rounds to a zero of its sign.
    scaled = c * power_of_two(-half, fmt) * power_of_two(half - exponent, fmt)
    left = (p - scaled) + e
    zero = torch.where(left < 0, torch.full_like(left, -0.0), torch.zeros_like(left))
    error = torch.where(c.abs() <= torch.finfo(fmt.dtype).tiny, zero, error)
    # If only the rounded product overflows, an FMA subtracts infinity from a finite product.
    overflow = torch.where(torch.isfinite(a) & torch.isfinite(b), -c, a * b - c)
    return torch.where(torch.isfinite(c), error, overflow)


def _fms_fp32(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    if chosen(a.device) == FP32:
        return _fms_by_dekker(FP32, a, b, c)
    # Products of float32 are exact in float64; so is the difference, for c = RN(a * b).
    return (a.double() * b.double() - c.double()).float()


def _fms(register: Format, arithmetic: Format) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if arithmetic == FP64:
        return functools.partial(_fms_by_dekker, FP64)
    rn = rounding(register, arithmetic)
    return _fms_fp32 if arithmetic == FP32 else lambda a, b, c: rn(a * b - c)


def _sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded root.

    PyTorch uses MKL on CPUs, which fails to in 0.6 % of cases.
    """
    if x.device.type == "cpu":
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))
    return torch.sqrt(x)


def _shift_right(a: Tensor, count: int) -> Tensor:
    return (a >> count) & ((1 << (32 - count)) - 1) if count else a


WORDS: dict[str, Any] = {
    "bits": lambda x: x.contiguous().view(torch.int32),
    "from_bits": lambda w: w.view(torch.float32),
    "word": lambda x: x.to(torch.int32),
    "number": lambda w: w.to(torch.float32),
    "wadd": torch.add,
    "wsub": torch.sub,
    "wmul": torch.mul,
    "wand": torch.bitwise_and,
    "wor": torch.bitwise_or,
    "wxor": torch.bitwise_xor,
    "wshl": torch.bitwise_left_shift,
    "wshr": _shift_right,
    "wsar": torch.bitwise_right_shift,
}


@functools.cache
def _literal(x: float, dtype: torch.dtype, sign: float) -> Tensor:
    return torch.tensor(x, dtype=dtype, device="cpu")


def _const(dtype: torch.dtype) -> Callable[[float], Tensor]:
    # A zero-dimensional tensor combines with tensors of any device. 0.0 == -0.0 as cache keys, so
    # the sign is a key too.
    return lambda x: _literal(x, dtype, math.copysign(1.0, x))


# Longs have 32 bits if registers are float32.
SHORT_LONGS: dict[str, Any] = {
    "const": _const(torch.float32),
    "whole": lambda k: _literal(k, torch.int32, 1.0),
    "long": lambda x: x.to(torch.int32),
    "floating": lambda w: w.to(torch.float32),
}

LONGS: dict[str, Any] = {
    "const": _const(torch.float64),
    "whole": lambda k: _literal(k, torch.int64, 1.0),
    "bits64": lambda x: x.contiguous().view(torch.int64),
    "from_bits64": lambda w: w.view(torch.float64),
    "long": lambda x: x.to(torch.int64),
    "floating": lambda w: w.to(torch.float64),
    "floor": torch.floor,
    "rint": torch.round,
    "absolute": torch.abs,
    "gather": lambda table, index: table[index.long()],
    "invert": torch.logical_not,
}


def primitives(
    register: Format, arithmetic: Format, roundings: Mapping[str, Format]
) -> dict[str, Any]:
    """Return the reference version of every primitive."""
    return {
        "rn": rounding(register, arithmetic),
        "rx": rounding(register, register if arithmetic.dtype else arithmetic),
        "fms": _fms(register, arithmetic),
        "linear": lambda x, a, b: x * a + b,
        "neg": torch.neg,
        "signed": torch.signbit,
        "div": torch.div,
        "sqrt": _sqrt,
        "where": torch.where,
        "lesser": lambda a, b: torch.where(a < b, a, b),
        "greater": lambda a, b: torch.where(a > b, a, b),
        "unless_payload": lambda x, rounded, quiet: torch.where(x == x, rounded, quiet),
        **WORDS,
        **LONGS,
        **(SHORT_LONGS if register == FP32 else {}),
        "SPLITTER": 2 ** ((arithmetic.p + 1) // 2) + 1,
        "ZERO": 0.0,
        "ONE": 1.0,
        "LARGEST": float(roundings.get("rv", arithmetic).max),
        **{name: rounding(register, fmt) for name, fmt in roundings.items()},
    }
