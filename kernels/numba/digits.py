"""Addition of float64 numbers to the digits of long accumulators, in integers."""

from __future__ import annotations

import functools
import math
from typing import Any

import numba


def _add(x, exponent, digits, base):
    for row in range(x.shape[0]):
        for k in range(x.shape[1]):
            fraction, e = math.frexp(x[row, k])
            mantissa = numba.int64(fraction * 9007199254740992.0)
            if mantissa == 0:
                continue
            place = numba.int64(e) + exponent[row, k] - 53 - base
            digit, shift = place >> 5, place & 31
            low = (mantissa & 0xFFFFFFFF) << shift
            high = (mantissa >> 32) << shift
            digits[row, digit] += low & 0xFFFFFFFF
            digits[row, digit + 1] += (low >> 32) + (high & 0xFFFFFFFF)
            digits[row, digit + 2] += high >> 32


@functools.cache
def add() -> Any:
    """The loop (x, exponent, digits, base): adds x 2**exponent, all finite, to rows of digits."""
    signature = "void(float64[:, :], int32[:, :], int64[:, ::1], int64)"
    return numba.njit(signature, error_model="numpy", nogil=True)(_add)
