"""The primitives as Triton device functions: for a GPU, and for the interpreter on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from mcf.kernels.bind import Binder
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.kernels.torch.primitives import primitives as reference

DTYPES = {BF16: tl.bfloat16, FP16: tl.float16, FP32: tl.float32, FP64: tl.float64}


def _same(x):
    return x


def _round_bf16_bits(x):
    """Round float32 to bf16 on its bits; NaN stays NaN. Portable."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    quiet = (bits | 0x00400000) & -65536
    return tl.where(x == x, rounded, quiet).to(tl.float32, bitcast=True)


def _round_bf16_cuda(x):
    """Round float32 to bf16 by one opaque conversion.

    With a plain cast LLVM narrows the operation before it to bf16x2. That saves time, but rounds a
    product below the normal range once where float32 arithmetic rounds twice, and the bits would
    no longer be those of the other executors.
    """
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
    ).to(tl.float32)


def _round_fp16(x):
    return x.to(tl.float16).to(tl.float32)


def _round_fp32(x):
    return x.to(tl.float32).to(tl.float64)


def _div(a, b):
    return tl.div_rn(a, b)


def _div_plain(a, b):
    # `div_rn` is float32 only; on float64 `/` is the correctly rounded division.
    return a / b


def _sqrt(x):
    return tl.sqrt_rn(x)


def _sqrt_plain(x):
    return tl.sqrt(x)


def _where(condition, a, b):
    return tl.where(condition, a, b)


def _fms_fma(a, b, c):
    return tl.fma(a, b, -c)


def _fms_exact_product(a, b, c):
    return a * b - c


def _fms_interpreted(a, b, c):
    """The reference's version; the interpreter's own `fma` rounds twice."""
    fmt = FP64 if a.dtype == tl.float64 else FP32
    fms = reference(fmt, fmt, {})["fms"]
    parts = np.broadcast_arrays(a.handle.data, b.handle.data, c.handle.data)
    exact = fms(*(torch.from_numpy(np.ascontiguousarray(x)) for x in parts))
    return tl.tensor(type(c.handle)(exact.numpy(), c.handle.dtype), c.type)


def _rounding(register: Format, fmt: Format, interpret: bool) -> Callable[..., Any]:
    if fmt == register:
        return _same
    if (register, fmt) == (FP32, BF16):
        # Inline assembly is CUDA's; elsewhere the bits are rounded by hand.
        return _round_bf16_bits if interpret or torch_is_hip() else _round_bf16_cuda
    table = {(FP32, FP16): _round_fp16, (FP64, FP32): _round_fp32}
    return table[register, fmt]


def torch_is_hip() -> bool:
    """Whether this torch drives AMD GPUs."""
    return torch.version.hip is not None


def _fms(register: Format, arithmetic: Format, interpret: bool) -> Callable[..., Any]:
    if arithmetic in (BF16, FP16):
        return _fms_exact_product
    if not interpret:
        return _fms_fma
    return _fms_interpreted


def jit(function: FunctionType) -> Any:
    """Compile a device function, also where TRITON_INTERPRET would make `triton.jit` interpret."""
    return triton.JITFunction(function)


def interpreting() -> bool:
    """Whether `triton.jit` interprets in this process."""
    return bool(triton.knobs.runtime.interpret)


@functools.cache
def binder(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, interpret: bool
) -> Binder:
    """Binds algorithms as device functions.

    For the interpreter they stay plain Python functions: they run on the interpreter's tensors
    inside an interpreted kernel.
    """
    wrap = (lambda f: f) if interpret else jit
    constant = float if interpret else tl.constexpr
    single = register == FP32
    bound = {
        "rn": _rounding(register, arithmetic, interpret),
        "fms": _fms(register, arithmetic, interpret),
        "div": _div if single else _div_plain,
        "sqrt": _sqrt if single else _sqrt_plain,
        "where": _where,
        **{name: _rounding(register, fmt, interpret) for name, fmt in roundings},
    }
    constants = {"SPLITTER": 2.0 ** ((arithmetic.p + 1) // 2) + 1, "ZERO": 0.0, "ONE": 1.0}
    return Binder(
        wrap,
        {name: wrap(f) for name, f in bound.items()}
        | {name: constant(value) for name, value in constants.items()},
        dict(slots),
    )


@functools.cache
def storage_rounding(register: Format, fmt: Format, interpret: bool) -> Any:
    """The device function that rounds a register to a field's format."""
    rounding = _rounding(register, fmt, interpret)
    return rounding if interpret else jit(rounding)
