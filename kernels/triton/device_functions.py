"""The primitives as Triton device functions: for GPUs, and for the interpreter on a CPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import triton.language as tl

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.bind import Binder
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.kernels.torch.registers import primitives as reference
from mcf.kernels.triton.code_instructions import own
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.register_rounding import jit, rounding
from mcf.kernels.triton.register_words import WORDS


def _neg(x):
    return x * -1.0


def _div(a, b):
    return tl.div_rn(a, b)


def _div_cuda(a, b):
    # `div_rn` and `sqrt_rn` flush subnormal numbers to zero before Triton 3.6.
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


def _lesser(a, b):
    return tl.where(a < b, a, b)


def _lesser_cuda(a, b):
    # `min.f32` returns the other operand for a NaN and keeps subnormal numbers (PTX ISA, "Floating
    # Point Instructions"). It orders -0 before +0, which `lesser` leaves open.
    return tl.minimum(a, b, tl.PropagateNan.NONE)


def _greater(a, b):
    return tl.where(a > b, a, b)


def _greater_cuda(a, b):
    # `max.f32`; see `_lesser_cuda`.
    return tl.maximum(a, b, tl.PropagateNan.NONE)


def _unless_payload(x, rounded, quiet):
    return tl.where(x == x, rounded, quiet)


def _fms_fma(a, b, c):
    if isinstance(a, float) and isinstance(b, float):
        # Both operands are zeros that stand for missing components.
        return a * b - c
    else:
        # The product becomes a sign flip in the instruction; `-c` costs a subtraction (`_neg`).
        return tl.fma(a, b, c * -1.0)


def _fms_of_16_bits(a, b, c):
    # The product is exact in float32, or underflows as on a CPU.
    return rn(a * b - c)


def _linear(x, a, b):
    return rn(rn(x * a) + b)


def _linear_fma(x, a, b):
    return tl.fma(x, a, b)


def _fms_interpreted(a, b, c):
    """Return RN(a * b - c) by the reference's primitive; the interpreter's `fma` rounds twice."""
    tensors = [x for x in (a, b, c) if isinstance(x, tl.tensor)]
    # Missing components are the Python number 0.0.
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


def _signed_fp32(x):
    return x.to(tl.int32, bitcast=True) < 0


def _signed_fp64(x):
    return x.to(tl.int64, bitcast=True) < 0


# Longs are int64 tensors if registers are float64.


def _const(x):
    return tl.full((), x, tl.float64)


def _whole(k):
    return tl.full((), k, tl.int64)


def _const_fp32(x):
    return tl.full((), x, tl.float32)


def _whole_fp32(k):
    return tl.full((), k, tl.int32)


def _bits64(x):
    return x.to(tl.int64, bitcast=True)


def _from_bits64(w):
    return w.to(tl.float64, bitcast=True)


def _long(x):
    return x.to(tl.int64)


def _floating(w):
    return w.to(tl.float64)


def _floor(x):
    return tl.floor(x)


def _rint(x):
    # Triton has no rint. From 2**52 on every number is whole; below, x + 2**52 is.
    magnitude = tl.abs(x)
    shift = 4503599627370496.0
    nearest = tl.where(magnitude < shift, magnitude + shift - shift, magnitude)
    sign = (x.to(tl.int64, bitcast=True) >> 63) << 63
    return (nearest.to(tl.int64, bitcast=True) | sign).to(tl.float64, bitcast=True)


def _rint_fp32(x):
    # From 2**23 on every number is whole.
    magnitude = tl.abs(x)
    shift = 8388608.0
    nearest = tl.where(magnitude < shift, magnitude + shift - shift, magnitude)
    sign = (x.to(tl.int32, bitcast=True) >> 31) << 31
    return (nearest.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


def _floor_fp32(x):
    # The hardware's floor on NVIDIA GPUs treats subnormal numbers as 0, but floor(-2**-130) is -1.
    magnitude = tl.abs(x)
    shift = 8388608.0
    nearest = tl.where(magnitude < shift, magnitude + shift - shift, magnitude)
    sign = (x.to(tl.int32, bitcast=True) >> 31) << 31
    nearest = (nearest.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return tl.where(nearest > x, nearest - 1.0, nearest)


def _absolute(x):
    return tl.abs(x)


def _gather(table, index):
    return tl.load(table + index)


def _gather_cuda(table, index):
    """Load a table entry by inline assembly, which Triton treats as arithmetic: see `_blocks`."""
    if not index.type.is_block():
        return tl.load(table + index)
    elif table.dtype.element_ty == tl.float64:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b64 $0, [$1];",
            "=d,l",
            [table.to(tl.int64) + index.to(tl.int64) * 8],
            tl.float64,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];",
            "=f,l",
            [table.to(tl.int64) + index.to(tl.int64) * 4],
            tl.float32,
            is_pure=True,
            pack=1,
        )


def _invert(condition):
    return condition == 0


LONGS = {
    "const": _const,
    "whole": _whole,
    "bits64": _bits64,
    "from_bits64": _from_bits64,
    "long": _long,
    "floating": _floating,
    "floor": _floor,
    "rint": _rint,
    "absolute": _absolute,
    "gather": _gather,
    "invert": _invert,
}


# Longs have 32 bits if registers are float32.
SHORT_LONGS = {
    "const": _const_fp32,
    "whole": _whole_fp32,
    "long": WORDS["word"],
    "floating": WORDS["number"],
    "rint": _rint_fp32,
    "floor": _floor_fp32,
}


@functools.cache
def binder(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, dialect: Dialect
) -> Binder:
    """Return a binder of algorithms as device functions.

    For the interpreter they stay plain Python functions, which run on its tensors.
    """
    interpret = dialect is Dialect.INTERPRETER
    wrap = (lambda f: f) if interpret else jit
    constant = float if interpret else tl.constexpr
    divide, root = _div_fp64, _sqrt_fp64
    if register == FP32:
        divide, root = (_div_cuda, _sqrt_cuda) if dialect.nvidia else (_div, _sqrt)
    bound = {
        "rn": rounding(register, arithmetic, dialect),
        "rx": rounding(register, register, dialect),
        "div": divide,
        "sqrt": root,
        "where": _where,
        "lesser": _lesser,
        "greater": _greater,
        "unless_payload": _unless_payload,
        "neg": _neg,
        "signed": _signed_fp32 if register == FP32 else _signed_fp64,
        **WORDS,
        **LONGS,
        **(SHORT_LONGS if register == FP32 else {}),
        **{name: rounding(register, fmt, dialect) for name, fmt in roundings},
    }
    if dialect.nvidia:
        bound |= {"gather": _gather_cuda, "lesser": _lesser_cuda, "greater": _greater_cuda}
    table = {name: wrap(f) for name, f in bound.items()}
    if arithmetic in (BF16, FP16):
        table["fms"] = Binder(wrap, table)(_fms_of_16_bits)
    else:
        table["fms"] = wrap(_fms_interpreted if interpret else _fms_fma)
    # The interpreter's `fma` rounds twice; an FMA in float32 does not round to 16-bit formats.
    fma = not interpret and arithmetic == register
    table["linear"] = wrap(_linear_fma) if fma else Binder(wrap, table)(_linear)
    constants = {
        "SPLITTER": 2.0 ** ((arithmetic.p + 1) // 2) + 1,
        "ZERO": 0.0,
        "ONE": 1.0,
        "LARGEST": float(dict(roundings).get("rv", arithmetic).max),
    }
    table |= {name: constant(value) for name, value in constants.items()}
    return Binder(wrap, table, dict(slots), own(dialect))
