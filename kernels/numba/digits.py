"""Addition of float64 numbers to the digits of long accumulators, in integers."""

from __future__ import annotations

import functools
from array import array
from typing import Any

from torch import Tensor

from mcf.kernels.formats import FP64
from mcf.kernels.numba import objects, stored, team

# The mantissa is an integer of 53 bits with its sign; a subnormal number is scaled before.
_TEXT = """
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


def _function() -> tuple[Any, str]:
    from mcf.kernels.numba import compiler, memory

    names = {
        "load": memory.loading(FP64, FP64, 0, 1),
        "bits64": memory.bits64,
        "put": memory.put,
    }
    return compiler.compiled(_TEXT, "<mcf numba digits>", names)


@functools.cache
def _loop() -> objects.Native:
    return stored.native(("digits", _TEXT), _function)


def add(x: Tensor, exponent: Tensor, digits: Tensor, base: int) -> None:
    """Add x 2**exponent to rows of digits.

    Args:
        x: float64 [M, k], all finite.
        exponent: integers [M, k].
        digits: int64 [M, n], contiguous; digit j counts 2**(32 j + base).
        base: of digit 0.
    """
    x, exponent = x.contiguous(), exponent.long().contiguous()
    sizes = (*x.shape, digits.shape[1], base)
    table = array("q", [x.data_ptr(), exponent.data_ptr(), digits.data_ptr(), *sizes])
    team.run(_loop().address, table.buffer_info()[0], 1)
