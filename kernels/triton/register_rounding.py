"""Roundings between registers and formats as Triton device functions."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, INT16, INT32, UINT4, UINT8, Format
from mcf.kernels.statements import written
from mcf.kernels.triton.dialect import Dialect


def jit(function: FunctionType) -> Any:
    """Compile a device function, even if TRITON_INTERPRET makes `triton.jit` interpret."""
    return triton.JITFunction(function)


# A Python float among the arguments is the zero of a missing component, or a sum or product of such
# zeros: there is nothing to round.


def _same(x):
    return x


def assembly(text: str, constraints: str, given: str = "x", kind: str = "float32") -> str:
    """Return one instruction as an expression; it is opaque to LLVM."""
    pack = 2 if "x2" in text else 1
    asm = f'tl.inline_asm_elementwise("{text}", "{constraints}", [{given}], tl.{kind}'
    return f"{asm}, is_pure=True, pack={pack})"


def _of_number(name: str, condition: str, expression: str) -> FunctionType:
    """Return a function that returns x itself where a condition holds, else an expression."""
    body = [f"if {condition}:", "    return x", "else:", f"    return {expression}"]
    return written(f"_{name}", "x", body, "Round x.", tl=tl)


# A rounding to the register's own format: without an opaque move LLVM packs float32 operations for
# sm_100, and the ptxas of Triton 3.6 (12.9) contracts a packed product and sum into FMA although
# both are marked as rounding. ptxas removes the move. float64 is never packed.
_kept_cuda = _of_number(
    "kept",
    "isinstance(x, float) or x.dtype != tl.float32",
    assembly("mov.b32 $0, $1;", "=f,f"),
)


def _round_bf16_bits(x):
    """Round float32 to bf16 on its bits; NaN stays NaN, infinity arises by carry."""
    if isinstance(x, float):
        return x
    else:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        quiet = (bits | 0x00400000) & -65536
        return tl.where(x == x, rounded, quiet).to(tl.float32, bitcast=True)


# With a plain cast LLVM narrows the preceding operation to bf16x2. The bits are the same, but on
# sm_80 it becomes an FMA, which could not be told from a contraction. This way the machine code
# matches the formula: float32 operations, and a conversion for each rounding.
_round_bf16_cuda = _of_number(
    "round_bf16",
    "isinstance(x, float)",
    assembly("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", kind="bfloat16") + ".to(tl.float32)",
)
# LLVM may narrow here: sums and products of fp16 numbers, also below the normal range, round to the
# same fp16 number with and without float32 in between.
_round_fp16 = _of_number("round_fp16", "isinstance(x, float)", "x.to(tl.float16).to(tl.float32)")
# With a plain cast LLVM compiles products to `v_fma_mixlo_f16` with an addend of +0, which turns a
# product of -0 into +0.
_round_fp16_hip = _of_number(
    "round_fp16_hip",
    "isinstance(x, float)",
    assembly("v_cvt_f16_f32 $0, $1", "=v,v", kind="float16") + ".to(tl.float32)",
)


def _round_fp32(x):
    return x.to(tl.float32).to(tl.float64)


_ROUNDINGS = {BF16: _round_bf16_bits, FP16: _round_fp16, FP32: _round_fp32}
_OPAQUE_ROUNDINGS = {
    (Dialect.CUDA, BF16): _round_bf16_cuda,
    (Dialect.CUDA_89, BF16): _round_bf16_cuda,
    (Dialect.HIP, FP16): _round_fp16_hip,
}


def rounding(register: Format, fmt: Format, dialect: Dialect) -> Any:
    """Return the function that rounds x to nearest even in `fmt`, kept in the register."""
    if fmt in (INT8, UINT4, UINT8, INT16, INT32):
        return _same
    if fmt == register:
        return _kept_cuda if dialect.nvidia else _same
    if register == FP64 and fmt != FP32:
        # Rounding through float32 would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    return _OPAQUE_ROUNDINGS.get((dialect, fmt), _ROUNDINGS[fmt])


def _cast(name: str, expression: str) -> FunctionType:
    return written(f"_to_{name}", "x", [f"return {expression}"], "Convert x.", tl=tl)


_CASTS = {
    fmt: _cast(fmt.name, expression)
    for fmt, expression in {
        BF16: "x.to(tl.bfloat16)",
        FP16: "x.to(tl.float16)",
        FP32: "x.to(tl.float32)",
        FP64: "x.to(tl.float64)",
        INT8: "x.to(tl.int8)",
        # Through 32 bits: a direct conversion saturates on some GPUs and wraps on others.
        UINT8: "x.to(tl.int32).to(tl.uint8)",
        # Two codes are packed into a byte afterwards.
        UINT4: "x.to(tl.int32)",
        INT16: "x.to(tl.int16)",
        INT32: "x.to(tl.int32)",
    }.items()
}
# Conversions from and to bf16 on bits.
_WIDENED = "(x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)"
_WIDENED_BITS = {
    FP32: _cast("fp32_by_bits", _WIDENED),
    FP64: _cast("fp64_by_bits", f"{_WIDENED}.to(tl.float64)"),
}
_NARROWED_BITS = _cast(
    "bf16_by_bits",
    "(x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)",
)


@functools.cache
def widening(register: Format, fmt: Format, dialect: Dialect) -> Any:
    """Return the device function that widens an element of `fmt` to a register.

    The interpreter's own casts from and to bf16 are wrong for subnormal numbers.
    """
    if dialect is not Dialect.INTERPRETER:
        return jit(_CASTS[register])
    return (_WIDENED_BITS if fmt == BF16 else _CASTS)[register]


@functools.cache
def storage(
    register: Format, fmt: Format, dialect: Dialect, on_bits: bool = False
) -> tuple[Any, Any, Any]:
    """Return three device functions between a register and a tensor's format.

    They widen what is loaded, round a register to the format, and narrow the rounded register to
    what is stored.

    Args:
        register: the format of registers.
        fmt: the format of the tensor.
        dialect: the dialect of the functions.
        on_bits: whether registers are rounded to bf16 on their bits, so that the upper half is
            stored without a conversion.
    """
    interpreted = dialect is Dialect.INTERPRETER
    narrow = _NARROWED_BITS if fmt == BF16 and (interpreted or on_bits) else _CASTS[fmt]
    rounded = rounding(register, fmt, dialect)
    if not interpreted:
        rounded, narrow = jit(rounded), jit(narrow)
    return widening(register, fmt, dialect), rounded, narrow
