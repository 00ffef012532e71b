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

from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, INT16, Format

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_INTEGERS = {INT8: ir.IntType(8), INT16: _I16}
_LLVM = {FP16: ir.HalfType(), FP32: ir.FloatType(), FP64: ir.DoubleType()}
NUMBA = {FP32: types.float32, FP64: types.float64}


def _const(value: int) -> Any:
    return ir.Constant(_I32, value)


def _round_bf16(b: Any, x: Any, payloads: bool) -> Any:
    """Round a float32 to bf16 (nearest even) on its bits; the carry makes infinity of overflow.

    The carry would also turn a NaN with payload bits that are rounded away into -0. Where such
    payloads can occur NaN is selected out, which costs as much as the rounding.
    """
    bits = b.bitcast(x, _I32)
    odd = b.and_(b.lshr(bits, _const(16)), _const(1))
    rounded = b.and_(b.add(bits, b.add(odd, _const(0x7FFF))), _const(0xFFFF0000))
    if not payloads:
        return b.bitcast(rounded, ir.FloatType())
    quiet = b.and_(b.or_(bits, _const(0x00400000)), _const(0xFFFF0000))
    return b.bitcast(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), ir.FloatType())


def _round(b: Any, x: Any, register: Format, fmt: Format, payloads: bool) -> Any:
    if fmt == register or fmt in _INTEGERS:
        return x
    if fmt == BF16:
        return _round_bf16(b, x, payloads)
    return b.fpext(b.fptrunc(x, _LLVM[fmt]), _LLVM[register])


@functools.cache
def rounding(register: Format, fmt: Format, payloads: bool = True) -> Any:
    """Intrinsic x -> x rounded to `fmt`, kept in the register.

    `payloads` says whether x may be a NaN with a payload in the bits that bf16 does not keep. It
    cannot where all data is bf16: processors make NaNs without payload and pass on operands'.
    """
    if register == FP64 and fmt in (BF16, FP16):
        # Through float32 it would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    kind = NUMBA[register]

    @intrinsic
    def rn(context, x):
        return kind(kind), lambda c, b, signature, args: _round(b, args[0], register, fmt, payloads)

    return rn


def _no_alias(module: Any, instruction: Any, index: int, count: int) -> None:
    domain = module.add_metadata(["mcf"])
    scopes = [module.add_metadata([f"mcf field {k}", domain]) for k in range(count)]
    others = [s for k, s in enumerate(scopes) if k != index]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[index]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))


def _cell(b: Any, address: Any, index: Any, fmt: Format) -> tuple[Any, int]:
    kind = _I16 if fmt == BF16 else _INTEGERS.get(fmt) or _LLVM[fmt]
    size = {INT8: 1, INT16: 2, BF16: 2, FP16: 2, FP32: 4, FP64: 8}[fmt]
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
            if fmt in _INTEGERS:
                return b.sitofp(value, _LLVM[register])
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
            elif fmt in _INTEGERS:
                value = b.trunc(b.fptosi(value, _I32), _INTEGERS[fmt])
            elif fmt != register:
                value = b.fptrunc(value, _LLVM[fmt])
            _no_alias(b.module, b.store(value, pointer, align=size), index, count)
            return c.get_dummy_value()

        return types.void(types.uint64, types.int64, kind), generate

    return store


@intrinsic
def word(context, address, i):
    """Intrinsic (address, i) -> the 64-bit word i of a table, as an address."""

    def generate(c, b, signature, args):
        return b.load(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), align=8)

    return types.uint64(types.uint64, types.int64), generate


@intrinsic
def number(context, address, i):
    """Intrinsic (address, i) -> the 64-bit word i of a table, as an integer."""

    def generate(c, b, signature, args):
        return b.load(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), align=8)

    return types.int64(types.uint64, types.int64), generate


@intrinsic
def advance(context, address, i):
    """Intrinsic (address, i) -> the address of the 64-bit word i of a table."""

    def generate(c, b, signature, args):
        return b.ptrtoint(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), _I64)

    return types.uint64(types.uint64, types.int64), generate


@intrinsic
def put(context, address, i, value):
    """Intrinsic (address, i, value): store a 64-bit integer as word i of a table."""

    def generate(c, b, signature, args):
        b.store(args[2], b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), align=8)
        return c.get_dummy_value()

    return types.void(types.uint64, types.int64, types.int64), generate


@intrinsic
def bits64(context, x):
    """Intrinsic: the pattern of a float64 as an integer."""
    return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], _I64)


@intrinsic
def claim(context, address, i):
    """Intrinsic (address, i) -> the 64-bit word i there, which becomes one more; atomic."""

    def generate(c, b, signature, args):
        word = ir.IntType(64)
        cell = b.gep(b.inttoptr(args[0], word.as_pointer()), [args[1]])
        return b.atomic_rmw("add", cell, word(1), "monotonic")

    return types.int64(types.uint64, types.int64), generate


@intrinsic
def fetch(context, address):
    """Intrinsic address -> nothing: a hint, which never fails, whatever the address."""

    def generate(c, b, signature, args):
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        hint = b.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # To read, kept in all caches, data.
        b.call(hint, [b.inttoptr(args[0], pointer), i32(0), i32(3), i32(1)])
        return c.get_dummy_value()

    return types.void(types.uint64), generate


@intrinsic
def accumulate(context, total, term):
    """Intrinsic (total, term) -> total + term, of which a loop may keep several.

    Sums of one loop are added up in any order and contracted with their products; a boolean term is
    counted.
    """

    def generate(c, b, signature, args):
        if signature.args[1] == types.boolean:
            one = b.trunc(args[1], ir.IntType(1)) if args[1].type.width > 1 else args[1]
            return b.add(args[0], b.zext(one, _I32))
        return b.fadd(args[0], args[1], flags=("reassoc", "nsz", "contract"))

    return total(total, term), generate


@functools.cache
def fused_multiply_subtract(register: Format, fmt: Format, payloads: bool) -> Any:
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
            return _round(builder, exact, register, fmt, payloads)

        return kind(kind, kind, kind), generate

    return fms


@intrinsic
def prefer_wide_vectors(context):
    """Ask LLVM for 512-bit vectors in the calling function, where the processor has them.

    LLVM takes the number of lanes from the widest type in memory and a preferred width of 256 bits:
    16 lanes of float32 registers in two halves for a loop over 16-bit tensors, but only 8 once a
    float32 tensor or sum is in the loop, which costs half the speed.
    """

    def generate(c, builder, signature, args):
        # llvmlite knows no string attributes; its set prints what it holds.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return c.get_dummy_value()

    return types.void(), generate
