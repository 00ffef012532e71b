"""Loads, stores and roundings of the CPU executor, as LLVM instructions.

The generated loops read through raw addresses. LLVM would need a run-time overlap check for every
pair of tensors and gives up vectorising beyond a few, so each access says that the tensors of one
kernel do not overlap (alias scopes). The launcher guarantees that they do not.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_LLVM = {FP16: ir.HalfType(), FP32: ir.FloatType(), FP64: ir.DoubleType()}
NUMBA = {FP32: types.float32, FP64: types.float64}


def _const(value: int) -> Any:
    return ir.Constant(_I32, value)


def _round_bf16(b: Any, x: Any) -> Any:
    """Round a float32 to bf16 (nearest even) on its bits; NaN stays NaN, infinity by carry."""
    bits = b.bitcast(x, _I32)
    odd = b.and_(b.lshr(bits, _const(16)), _const(1))
    rounded = b.and_(b.add(bits, b.add(odd, _const(0x7FFF))), _const(0xFFFF0000))
    quiet = b.and_(b.or_(bits, _const(0x00400000)), _const(0xFFFF0000))
    return b.bitcast(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), ir.FloatType())


def _round(b: Any, x: Any, register: Format, fmt: Format) -> Any:
    if fmt == register:
        return x
    if fmt == BF16:
        return _round_bf16(b, x)
    return b.fpext(b.fptrunc(x, _LLVM[fmt]), _LLVM[register])


@functools.cache
def rounding(register: Format, fmt: Format) -> Any:
    """Intrinsic x -> x rounded to `fmt`, kept in the register."""
    if register == FP64 and fmt in (BF16, FP16):
        # Through float32 it would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    kind = NUMBA[register]

    @intrinsic
    def rn(context, x):
        return kind(kind), lambda c, b, signature, args: _round(b, args[0], register, fmt)

    return rn


def _no_alias(module: Any, instruction: Any, index: int, count: int) -> None:
    domain = module.add_metadata(["mcf"])
    scopes = [module.add_metadata([f"mcf field {k}", domain]) for k in range(count)]
    others = [s for k, s in enumerate(scopes) if k != index]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[index]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))


def _cell(b: Any, address: Any, index: Any, fmt: Format) -> tuple[Any, int]:
    kind = _I16 if fmt == BF16 else _LLVM[fmt]
    size = {BF16: 2, FP16: 2, FP32: 4, FP64: 8}[fmt]
    return b.gep(b.inttoptr(address, kind.as_pointer()), [index]), size


@functools.cache
def loading(register: Format, fmt: Format, index: int, count: int) -> Any:
    """Intrinsic (address, i) -> element i of field `index` of `count`, widened to the register."""
    kind = NUMBA[register]

    @intrinsic
    def load(context, address, i):
        def generate(c, b, signature, args):
            pointer, size = _cell(b, args[0], args[1], fmt)
            value = b.load(pointer, align=size)
            _no_alias(b.module, value, index, count)
            if fmt == BF16:
                value = b.bitcast(b.shl(b.zext(value, _I32), _const(16)), ir.FloatType())
            source = FP32 if fmt == BF16 else fmt
            return value if source == register else b.fpext(value, _LLVM[register])

        return kind(types.uint64, types.int64), generate

    return load


@functools.cache
def storing(register: Format, fmt: Format, index: int, count: int) -> Any:
    """Intrinsic (address, i, x): store x, which is already rounded to `fmt`."""
    kind = NUMBA[register]

    @intrinsic
    def store(context, address, i, x):
        def generate(c, b, signature, args):
            pointer, size = _cell(b, args[0], args[1], fmt)
            value = args[2]
            if fmt == BF16:
                value = b.trunc(b.lshr(b.bitcast(value, _I32), _const(16)), _I16)
            elif fmt != register:
                value = b.fptrunc(value, _LLVM[fmt])
            _no_alias(b.module, b.store(value, pointer, align=size), index, count)
            return c.get_dummy_value()

        return types.void(types.uint64, types.int64, kind), generate

    return store


@functools.cache
def fused_multiply_subtract(register: Format, fmt: Format) -> Any:
    """Intrinsic (a, b, c) -> a * b - c, rounded once in `fmt`."""
    kind = NUMBA[register]

    @intrinsic
    def fms(context, a, b, c):
        def generate(c_, builder, signature, args):
            x, y, z = args
            if fmt == register:
                return builder.fma(x, y, builder.fneg(z))
            # Products of 16-bit formats are exact in float32, and so is their rounding error.
            exact = builder.fsub(builder.fmul(x, y), z)
            return _round(builder, exact, register, fmt)

        return kind(kind, kind, kind), generate

    return fms


@functools.cache
def adding_in_any_order(register: Format) -> Any:
    """Intrinsic (a, b) -> a + b which LLVM may reassociate, so that a sum of many vectorises."""
    kind = NUMBA[register]

    @intrinsic
    def accumulate(context, a, b):
        def generate(c, builder, signature, args):
            return builder.fadd(args[0], args[1], flags=("reassoc", "nsz"))

        return kind(kind, kind), generate

    return accumulate
