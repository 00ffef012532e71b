"""The primitives as Triton device functions: for GPUs, and for the interpreter on a CPU."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.bind import Binder
from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, INT16, Format
from mcf.kernels.torch.primitives import primitives as reference
from mcf.kernels.triton.words import WORDS


class Dialect(enum.Enum):
    """What the device functions are made for."""

    INTERPRETER = "Triton's interpreter, on NumPy arrays"
    CUDA = "NVIDIA GPUs from sm_80 on"
    HIP = "AMD GPUs"

    @classmethod
    def of(cls, target: Any) -> Dialect:
        """The dialect for a `triton.backends.compiler.GPUTarget`."""
        return cls.HIP if target.backend == "hip" else cls.CUDA

    @classmethod
    def of_process(cls) -> Dialect:
        """The dialect for the kernels that `triton.jit` makes in this process."""
        if triton.knobs.runtime.interpret:
            return cls.INTERPRETER
        return cls.CUDA if torch.version.hip is None else cls.HIP


def _same(x):
    return x


def _kept_cuda(x):
    """x, through a move that LLVM cannot look through: a rounding to the register's own format.

    Without it LLVM packs float32 operations for sm_100, and the ptxas of Triton 3.6 (12.9)
    contracts a packed product and sum into FMA although both say that they round. ptxas removes
    the move.
    """
    if isinstance(x, float) or x.dtype != tl.float32:
        # A sum of two literals; or float64, which is never packed.
        return x
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )


def _round_bf16_bits(x):
    """Round float32 to bf16 on its bits; NaN stays NaN, infinity comes by carry."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    quiet = (bits | 0x00400000) & -65536
    return tl.where(x == x, rounded, quiet).to(tl.float32, bitcast=True)


def _round_bf16_cuda(x):
    """Round float32 to bf16 by a conversion that LLVM cannot look into.

    With a plain cast LLVM narrows the operation before it to bf16x2, with the same bits but on
    sm_80 as an FMA, which could not be told from a contraction. This way the machine code is the
    formula: float32 operations, and a conversion for each rounding.
    """
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
    ).to(tl.float32)


def _round_fp16(x):
    # LLVM may narrow here: sums and products of fp16 numbers, products below the normal range
    # among them, round to the same fp16 number with and without float32 on the way.
    return x.to(tl.float16).to(tl.float32)


def _round_fp16_hip(x):
    """Round float32 to fp16 by a conversion that LLVM cannot look into.

    With a plain cast LLVM makes products `v_fma_mixlo_f16` with an addend of +0, so that a product
    of -0 becomes +0.
    """
    return tl.inline_asm_elementwise(
        "v_cvt_f16_f32 $0, $1", "=v,v", [x], tl.float16, is_pure=True, pack=1
    ).to(tl.float32)


def _round_fp32(x):
    return x.to(tl.float32).to(tl.float64)


def _neg(x):
    return x * -1.0


def _div(a, b):
    return tl.div_rn(a, b)


def _div_cuda(a, b):
    # Before Triton 3.6 its `div_rn` and `sqrt_rn` flush subnormal numbers to zero.
    return tl.inline_asm_elementwise(
        "div.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, is_pure=True, pack=1
    )


def _div_fp64(a, b):
    # `div_rn` is float32 only; on float64 `/` is the correctly rounded division.
    return a / b


def _sqrt(x):
    return tl.sqrt_rn(x)


def _sqrt_cuda(x):
    return tl.inline_asm_elementwise(
        "sqrt.rn.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


def _sqrt_fp64(x):
    return tl.sqrt(x)


def _where(condition, a, b):
    return tl.where(condition, a, b)


def _fms_fma(a, b, c):
    # The product becomes a sign flip in the instruction; `-c` costs a subtraction (see `_neg`).
    return tl.fma(a, b, c * -1.0)


def _fms_of_16_bits(a, b, c):
    # The product is exact in float32, or underflows as it does on a CPU.
    return rn(a * b - c)


def _fms_interpreted(a, b, c):
    """The reference's version; the interpreter's own `fma` rounds twice."""
    tensors = [x for x in (a, b, c) if isinstance(x, tl.tensor)]
    # What memory lacks is the number 0.0.
    if not tensors:
        return a * b - c
    like = max(tensors, key=lambda x: x.handle.data.size)
    fmt = FP64 if like.dtype == tl.float64 else FP32
    fms = reference(fmt, fmt, {})["fms"]
    data = [
        x.handle.data if isinstance(x, tl.tensor) else like.handle.data.dtype.type(x)
        for x in (a, b, c)
    ]
    parts = np.broadcast_arrays(*data)
    exact = fms(*(torch.from_numpy(np.ascontiguousarray(x)) for x in parts))
    return tl.tensor(type(like.handle)(exact.numpy(), like.handle.dtype), like.type)


_ROUNDINGS = {BF16: _round_bf16_bits, FP16: _round_fp16, FP32: _round_fp32}
_OPAQUE_ROUNDINGS = {
    (Dialect.CUDA, BF16): _round_bf16_cuda,
    (Dialect.HIP, FP16): _round_fp16_hip,
}


def _rounding(register: Format, fmt: Format, dialect: Dialect) -> Callable[..., Any]:
    if fmt in (INT8, INT16):
        return _same
    if fmt == register:
        return _kept_cuda if dialect is Dialect.CUDA else _same
    if register == FP64 and fmt != FP32:
        # Through float32 it would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    return _OPAQUE_ROUNDINGS.get((dialect, fmt), _ROUNDINGS[fmt])


def jit(function: FunctionType) -> Any:
    """Compile a device function, also where TRITON_INTERPRET would make `triton.jit` interpret."""
    return triton.JITFunction(function)


@functools.cache
def binder(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, dialect: Dialect
) -> Binder:
    """Binds algorithms as device functions.

    For the interpreter they stay plain Python functions: they run on the interpreter's tensors
    inside an interpreted kernel.
    """
    interpret = dialect is Dialect.INTERPRETER
    wrap = (lambda f: f) if interpret else jit
    constant = float if interpret else tl.constexpr
    divide, root = _div_fp64, _sqrt_fp64
    if register == FP32:
        cuda = dialect is Dialect.CUDA
        divide, root = (_div_cuda, _sqrt_cuda) if cuda else (_div, _sqrt)
    bound = {
        "rn": _rounding(register, arithmetic, dialect),
        "rx": _rounding(register, register, dialect),
        "div": divide,
        "sqrt": root,
        "where": _where,
        "neg": _neg,
        **WORDS,
        **{name: _rounding(register, fmt, dialect) for name, fmt in roundings},
    }
    table = {name: wrap(f) for name, f in bound.items()}
    if arithmetic in (BF16, FP16):
        table["fms"] = Binder(wrap, table)(_fms_of_16_bits)
    else:
        table["fms"] = wrap(_fms_interpreted if interpret else _fms_fma)
    constants = {
        "SPLITTER": 2.0 ** ((arithmetic.p + 1) // 2) + 1,
        "ZERO": 0.0,
        "ONE": 1.0,
        "LARGEST": float(dict(roundings).get("rv", arithmetic).max),
    }
    table |= {name: constant(value) for name, value in constants.items()}
    return Binder(wrap, table, dict(slots))


def _bf16_to_fp32_bits(x):
    return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)


def _fp32_to_bf16_bits(x):
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


def _to_bf16(x):
    return x.to(tl.bfloat16)


def _to_fp16(x):
    return x.to(tl.float16)


def _to_fp32(x):
    return x.to(tl.float32)


def _to_fp64(x):
    return x.to(tl.float64)


def _bf16_to_fp64_bits(x):
    return (
        (x.to(tl.int16, bitcast=True).to(tl.int32) << 16)
        .to(tl.float32, bitcast=True)
        .to(tl.float64)
    )


def _to_int16(x):
    return x.to(tl.int16)


def _to_int8(x):
    return x.to(tl.int8)


_CASTS = {
    BF16: _to_bf16,
    FP16: _to_fp16,
    FP32: _to_fp32,
    FP64: _to_fp64,
    INT8: _to_int8,
    INT16: _to_int16,
}


@functools.cache
def widening(fmt: Format, dialect: Dialect) -> Any:
    """Device function from what a tensor of `fmt` holds to a float64 register."""
    if dialect is not Dialect.INTERPRETER:
        return jit(_to_fp64)
    return _bf16_to_fp64_bits if fmt == BF16 else _to_fp64


@functools.cache
def storage(register: Format, fmt: Format, dialect: Dialect) -> tuple[Any, Any, Any]:
    """Three device functions between a register and a tensor's format.

    They widen what is loaded, round a register to the format, and narrow the rounded register to
    what is stored. The interpreter's own casts from and to bf16 are wrong for subnormal numbers.
    """
    widen, narrow = _CASTS[register], _CASTS[fmt]
    if dialect is Dialect.INTERPRETER and fmt == BF16:
        widen, narrow = _bf16_to_fp32_bits, _fp32_to_bf16_bits
    functions = (widen, _rounding(register, fmt, dialect), narrow)
    if dialect is Dialect.INTERPRETER:
        return functions
    return tuple(jit(f) for f in functions)  # type: ignore[return-value]
