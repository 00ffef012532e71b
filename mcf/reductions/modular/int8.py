"""Exact products of int8 matrices: on integer units, or in floating point.

Every intermediate sum is an integer that the arithmetic can represent, so neither the order of
additions nor the hardware changes a bit.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# Since |a b| <= 2**14, this many products fit an int32 (2**30) and a float32 (2**24) accumulator.
INTEGERS, FLOATS = 1 << 16, 1 << 10


def product(a: Tensor, b: Tensor, out: Tensor, modulus: int) -> None:
    """Store a @ b, or a value congruent to it modulo `modulus` <= 2**16, in int32 `out`.

    a and b are contiguous int8 [m, k] and [k, n] with m, k, n > 0.
    """
    inner = a.shape[1]
    if _units(a.device):
        if inner <= INTEGERS:
            _on_units(a, b, out)
            return
        step, part_of = INTEGERS, _part_on_units
    else:
        step, part_of = FLOATS, _part_in_floats
    out.zero_()
    for start in range(0, inner, step):
        part = part_of(a[:, start : start + step].contiguous(), b[start : start + step])
        out += part.remainder_(modulus) if inner > INTEGERS else part


def _part_on_units(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    _on_units(a, b, out)
    return out


def _part_in_floats(a: Tensor, b: Tensor) -> Tensor:
    # Autocast would round the sums to 16 bits.
    with torch.autocast(a.device.type, enabled=False):
        return (a.float() @ b.float()).int()


def _on_units(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.device.type == "cpu":
        torch._int_mm(a, b, out=out)
        return
    # cuBLAS requires more than 16 rows, and an inner dimension and columns that are multiples of 8.
    out.copy_(_padded(a, b))


def _padded(a: Tensor, b: Tensor) -> Tensor:
    rows, columns, inner = a.shape[0], b.shape[1], -a.shape[1] % 8
    a = torch.nn.functional.pad(a, (0, inner, 0, max(0, 32 - rows)))
    b = torch.nn.functional.pad(b, (0, -columns % 8, 0, inner))
    return torch._int_mm(a, b)[:rows, :columns]


@functools.cache
def _units(device: torch.device) -> bool:
    """Return whether the device multiplies int8 exactly and fast, tested on the largest numbers.

    Processors without VNNI add pairs of products in 16 bits, which saturate.
    """
    if device.type == "cpu" and not getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        return False
    try:
        for size in (64, 320):
            a = torch.full((size, size), -128, dtype=torch.int8, device=device)
            b = a.clone()
            b[:, ::3] = 127
            if not torch.equal(_part_on_units(a, b).double(), a.double() @ b.double()):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True
