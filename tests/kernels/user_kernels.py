"""A user's own Triton kernels that call the device functions; test_triton_device runs it.

    python user_kernels.py INPUTS RESULTS

INPUTS is a file with, per format, four tensors x_hi, x_lo, y_hi, y_lo; RESULTS gets, per format,
the components of every operation in the order in which the kernel stores them.
"""

from __future__ import annotations

import sys
from types import FunctionType

import torch
import triton
import triton.language as tl

import mcf.kernels.triton as device
from mcf.kernels.triton import (
    add,
    bf16,
    fast_two_sum,
    fp16,
    grow,
    mul,
    renormalize,
    scale,
    two_prod,
    two_sum,
)

RESULTS = 16
BLOCK = 256


@triton.jit
def _loaded(ptr, i, n):
    x = tl.load(ptr + i, mask=i < n)
    return x if x.dtype == tl.float64 else x.to(tl.float32)


@triton.jit
def _keep(out_ptr, i, n, hi, lo, k: tl.constexpr):
    kind = out_ptr.dtype.element_ty
    tl.store(out_ptr + 2 * k * n + i, hi.to(kind), mask=i < n)
    tl.store(out_ptr + (2 * k + 1) * n + i, lo.to(kind), mask=i < n)


def kernel(x_hi_ptr, x_lo_ptr, y_hi_ptr, y_lo_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x_hi, x_lo = _loaded(x_hi_ptr, i, n), _loaded(x_lo_ptr, i, n)
    y_hi, y_lo = _loaded(y_hi_ptr, i, n), _loaded(y_lo_ptr, i, n)
    a, b = two_sum(x_hi, y_hi)
    _keep(out_ptr, i, n, a, b, 0)
    a, b = fast_two_sum(x_hi, x_lo)
    _keep(out_ptr, i, n, a, b, 1)
    a, b = two_prod(x_hi, y_hi)
    _keep(out_ptr, i, n, a, b, 2)
    a, b = grow(x_hi, x_lo, y_hi)
    _keep(out_ptr, i, n, a, b, 3)
    a, b = scale(x_hi, x_lo, y_hi)
    _keep(out_ptr, i, n, a, b, 4)
    a, b = add(x_hi, x_lo, y_hi, y_lo)
    _keep(out_ptr, i, n, a, b, 5)
    a, b = mul(x_hi, x_lo, y_hi, y_lo)
    _keep(out_ptr, i, n, a, b, 6)
    a, b = renormalize(x_lo, y_hi)
    _keep(out_ptr, i, n, a, b, 7)


def kernel_over(module):
    """Return the kernel with the device functions of a module."""
    names = {
        name: getattr(module, name) for name in kernel.__code__.co_names if hasattr(module, name)
    }
    return triton.jit(FunctionType(kernel.__code__, {**globals(), **names}, "kernel"))


KERNELS = {
    name: kernel_over(module)
    for name, module in {"fp32": device, "fp64": device, "bf16": bf16, "fp16": fp16}.items()
}


def main(inputs: str, results: str) -> None:
    out = {}
    for name, tensors in torch.load(inputs).items():
        n = tensors[0].numel()
        out[name] = torch.full((RESULTS, n), torch.nan, dtype=tensors[0].dtype).to(
            tensors[0].device
        )
        KERNELS[name][(triton.cdiv(n, BLOCK),)](
            *tensors, out[name], n, BLOCK=BLOCK, enable_fp_fusion=False
        )
    torch.save(out, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
