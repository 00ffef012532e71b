"""Integer loops faster than PyTorch's: digits of long accumulators, sums of squares.

Nothing in them is contracted or reordered: without fastmath Numba's operations are IEEE's.
"""

from __future__ import annotations

from array import array

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.runtime import team

# Elements that are widened at a time, which stay in the cache.
BLOCK = 1 << 14

LEAST_NORMAL, SCALED = 2.0**-1022, 2.0**54


def digits(data):
    """Add the numbers of each row to its long accumulator, which is an array of 32-bit digits."""
    x, exponent, out = word(data, 0), word(data, 1), word(data, 2)
    rows, columns, width, base = number(data, 3), number(data, 4), number(data, 5), number(data, 6)
    for row in range(rows):
        for k in range(columns):
            element, shift = value(x, row * columns + k), 1075
            if abs(element) < LEAST_NORMAL:
                element, shift = element * SCALED, 1075 + 54
            pattern = bits64(element)
            mantissa = (pattern & 0xFFFFFFFFFFFFF) | 0x10000000000000
            if element == 0:
                continue
            if pattern < 0:
                mantissa = -mantissa
            place = ((pattern >> 52) & 0x7FF) - shift + number(exponent, row * columns + k) - base
            digit, shift = row * width + (place >> 5), place & 31
            low = (mantissa & 0xFFFFFFFF) << shift
            high = (mantissa >> 32) << shift
            put(out, digit, number(out, digit) + (low & 0xFFFFFFFF))
            middle = (low >> 32) + (high & 0xFFFFFFFF)
            put(out, digit + 1, number(out, digit + 1) + middle)
            put(out, digit + 2, number(out, digit + 2) + (high >> 32))


def squares(data):
    """Add squares to two integers: the upper bits of each, and the bits after them."""
    x, scales, out = (word(data, 0),), word(data, 1), word(data, 3)
    first, second = real(value(scales, 0)), real(value(scales, 1))
    high, low = number(out, 0), number(out, 1)
    for i in range(number(data, 2)):
        scaled = real(load(0, x, i)[0]) * first * second
        square = scaled * scaled * real(SHIFT)
        upper = whole(square)
        high += int64(upper)
        low += int64(whole(rint((square - real(upper)) * real(SCALE))))
    put(out, 0, high)
    put(out, 1, low)


@stored.once
def digits_loop() -> objects.Native:
    """Return the loop that adds to digits; the object owns its code."""
    return Loop(digits, whole=True).native()


@stored.once
def squares_loop(register: Format, high_bits: int, low_bits: int) -> objects.Native:
    """Return the loop that sums squares, for one pair of bit counts."""
    single = register == FP32
    names = {
        "real": np.float32 if single else np.float64,
        "whole": np.int32 if single else np.int64,
        "int64": np.int64,
        "rint": np.rint,
        "SHIFT": 2.0**high_bits,
        "SCALE": 2.0**low_bits,
    }
    return Loop(squares, numbered=[(FP32, FP32, 1)], names=names, whole=True).native()


def add_digits(x: Tensor, exponent: Tensor, digits: Tensor, base: int) -> None:
    """Add to digits, see `mcf.kernels.executor.Executor`."""
    x, exponent = x.contiguous(), exponent.long().contiguous()
    sizes = (*x.shape, digits.shape[1], base)
    table = array("q", [x.data_ptr(), exponent.data_ptr(), digits.data_ptr(), *sizes])
    team.run(digits_loop().address, table.buffer_info()[0], 1)


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
