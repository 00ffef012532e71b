"""Sums of squares in integers on a CPU: what `mcf.optim.norm` sums, several times faster."""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.numba import objects, stored, team

# Elements that are widened at a time: they stay in the cache.
BLOCK = 1 << 14

# Nothing is contracted or reordered: without fastmath these are IEEE operations.
_TEXT = """
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


def _function(register: Format, high_bits: int, low_bits: int) -> tuple[Any, str]:
    import numpy as np

    from mcf.kernels.numba import compiler, memory

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
    return compiler.compiled(_TEXT, "<mcf numba squares>", names)


@functools.cache
def _loop(register: Format, high_bits: int, low_bits: int) -> objects.Native:
    return stored.native(
        ("squares", _TEXT, register, high_bits, low_bits),
        lambda: _function(register, high_bits, low_bits),
    )


def sums(t: Tensor, first: float, second: float, high: int, low: int) -> tuple[int, int]:
    """The sums over (g first second)^2 = h 2**-high + l 2**-(high + low) + rest of h and of l.

    h is rounded down and l to nearest, ties to even. The squares of 16-bit numbers are exact in
    float32 where they are not too small to count, those of float32 in float64.

    Args:
        t: a contiguous 16-bit or float32 tensor on the CPU.
        first: a power of two.
        second: another; with both |g first second| < 1.
        high: at most 28.
        low: at most 30.
    """
    address = _loop(FP32 if t.dtype.itemsize == 2 else FP64, high, low).address
    scales, out = array("d", [first, second]), array("q", [0, 0])
    flat = t.detach().view(-1)
    for start in range(0, flat.numel(), BLOCK):
        part = flat[start : start + BLOCK].to(torch.float32)
        places = [part.data_ptr(), scales.buffer_info()[0], part.numel(), out.buffer_info()[0]]
        table = array("Q", places)
        team.run(address, table.buffer_info()[0], 1)
    return out[0], out[1]
