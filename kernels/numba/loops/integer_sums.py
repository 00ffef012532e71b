"""Integer loops faster than PyTorch's: digits of long accumulators, sums of squares.

Nothing in them is contracted or reordered: without fastmath Numba's operations are IEEE's.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.runtime import team

# Elements that are widened at a time, which stay in the cache.
BLOCK = 1 << 14

# The mantissa is a signed integer of 53 bits; a subnormal number is scaled first.
_DIGITS = """
def kernel(data):
    x, exponent, digits = word(data, 0), word(data, 1), word(data, 2)
    rows, columns, width, base = number(data, 3), number(data, 4), number(data, 5), number(data, 6)
    for row in range(rows):
        for k in range(columns):
            value, shift = load(x, row * columns + k), 1075
            if abs(value) < 2.2250738585072014e-308:
                value, shift = value * 18014398509481984.0, 1075 + 54
            pattern = bits64(value)
            mantissa = (pattern & 0xFFFFFFFFFFFFF) | 0x10000000000000
            if value == 0:
                continue
            if pattern < 0:
                mantissa = -mantissa
            place = ((pattern >> 52) & 0x7FF) - shift + number(exponent, row * columns + k) - base
            digit, shift = row * width + (place >> 5), place & 31
            low = (mantissa & 0xFFFFFFFF) << shift
            high = (mantissa >> 32) << shift
            put(digits, digit, number(digits, digit) + (low & 0xFFFFFFFF))
            middle = (low >> 32) + (high & 0xFFFFFFFF)
            put(digits, digit + 1, number(digits, digit + 1) + middle)
            put(digits, digit + 2, number(digits, digit + 2) + (high >> 32))
"""
_SQUARES = """
def kernel(data):
    x, scales, out = word(data, 0), word(data, 1), word(data, 3)
    first, second = kind(load(scales, 0)), kind(load(scales, 1))
    high, low = number(out, 0), number(out, 1)
    for i in range(number(data, 2)):
        y = kind(read(x, i)) * ONE * first * second
        t = y * y * SHIFT
        h = whole(t)
        high += int64(h)
        low += int64(whole(rint((t - kind(h)) * SCALE)))
    put(out, 0, high)
    put(out, 1, low)
"""


def _digits_function() -> tuple[Any, str]:
    from mcf.kernels.numba.compile import compiler, instructions, memory

    names = {
        "load": memory.loading(FP64, FP64, 0, 1),
        "bits64": instructions.bits64,
        "put": memory.put,
    }
    return compiler.callback(_DIGITS, "<mcf numba digits>", names)


@stored.once
def digits_loop() -> objects.Native:
    """Return the loop that adds to digits; the object owns its code."""
    return stored.native(("digits", _DIGITS), _digits_function)


def add_digits(x: Tensor, exponent: Tensor, digits: Tensor, base: int) -> None:
    """Add to digits, see `mcf.kernels.executor.Executor`."""
    x, exponent = x.contiguous(), exponent.long().contiguous()
    sizes = (*x.shape, digits.shape[1], base)
    table = array("q", [x.data_ptr(), exponent.data_ptr(), digits.data_ptr(), *sizes])
    team.run(digits_loop().address, table.buffer_info()[0], 1)


def _squares_function(register: Format, high_bits: int, low_bits: int) -> tuple[Any, str]:
    import numpy as np

    from mcf.kernels.numba.compile import compiler, memory

    kind: Any = np.float32 if register == FP32 else np.float64
    names = {
        "kind": kind,
        "whole": np.int32 if register == FP32 else np.int64,
        "int64": np.int64,
        "rint": np.rint,
        "ONE": kind(1),
        "SHIFT": kind(2.0**high_bits),
        "SCALE": kind(2.0**low_bits),
        "load": memory.loading(FP64, FP64, 0, 2),
        "read": memory.loading(FP32, FP32, 1, 2),
        "put": memory.put,
    }
    return compiler.callback(_SQUARES, "<mcf numba squares>", names)


@stored.once
def squares_loop(register: Format, high_bits: int, low_bits: int) -> objects.Native:
    """Return the loop that sums squares, for one pair of bit counts."""
    return stored.native(
        ("squares", _SQUARES, register, high_bits, low_bits),
        lambda: _squares_function(register, high_bits, low_bits),
    )


def square_sums(t: Tensor, first: float, second: float, high: int, low: int) -> tuple[int, int]:
    """Sum squares of 16-bit formats and float32, see `mcf.kernels.executor.Executor`.

    The squares of 16-bit numbers are exact in float32 unless too small to count, those of float32
    are exact in float64.
    """
    address = squares_loop(FP32 if t.dtype.itemsize == 2 else FP64, high, low).address
    scales, out = array("d", [first, second]), array("q", [0, 0])
    flat = t.detach().view(-1)
    for start in range(0, flat.numel(), BLOCK):
        part = flat[start : start + BLOCK].to(torch.float32)
        places = [part.data_ptr(), scales.buffer_info()[0], part.numel(), out.buffer_info()[0]]
        table = array("Q", places)
        team.run(address, table.buffer_info()[0], 1)
    return out[0], out[1]
