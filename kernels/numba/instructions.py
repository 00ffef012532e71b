"""The primitives as LLVM instructions: roundings, operations, and 32-bit words beside registers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, INT16, INT32, UINT8, Format

_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
INTEGERS = {
    INT8: ir.IntType(8),
    UINT8: ir.IntType(8),
    INT16: ir.IntType(16),
    INT32: _I32,
}
LLVM = {FP16: ir.HalfType(), FP32: _FLOAT, FP64: ir.DoubleType()}
NUMBA = {FP32: types.float32, FP64: types.float64}


def _const(value: int) -> Any:
    return ir.Constant(_I32, value)


# Functions that loops alone call need no wrapper for Python or C, which take a third of the time.
INNER: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def jit(function: Any) -> Any:
    """A function that is inlined wherever it is called."""
    # Inlined into the loop whatever its length, or the loop does not vectorise.
    return numba.njit(function, forceinline=True, **INNER)


def _round_bf16(b: Any, x: Any, payloads: bool) -> Any:
    """Round a float32 to bf16 (nearest even) on its bits; the carry makes infinity of overflow.

    The carry would also turn a NaN with payload bits that are rounded away into -0. Where such
    payloads can occur NaN is selected out, which costs as much as the rounding.
    """
    bits = b.bitcast(x, _I32)
    odd = b.and_(b.lshr(bits, _const(16)), _const(1))
    rounded = b.and_(b.add(bits, b.add(odd, _const(0x7FFF))), _const(0xFFFF0000))
    if not payloads:
        return b.bitcast(rounded, _FLOAT)
    quiet = b.and_(b.or_(bits, _const(0x00400000)), _const(0xFFFF0000))
    return b.bitcast(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), _FLOAT)


def _round(b: Any, x: Any, register: Format, fmt: Format, payloads: bool) -> Any:
    if fmt == register or fmt in INTEGERS:
        return x
    if fmt == BF16:
        return _round_bf16(b, x, payloads)
    return b.fpext(b.fptrunc(x, LLVM[fmt]), LLVM[register])


@functools.cache
def rounding(register: Format, fmt: Format, payloads: bool = True) -> Any:
    """Intrinsic x -> x rounded to `fmt`, kept in the register.

    `payloads` says whether x may be a NaN with a payload in the bits that bf16 does not keep. It
    cannot where all data is bf16: processors make NaNs without payload and pass on operands', and
    scalars have none, see `usual_nan`.
    """
    if register == FP64 and fmt in (BF16, FP16):
        # Through float32 it would round twice.
        raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
    kind = NUMBA[register]

    @intrinsic
    def rn(context, x):
        return kind(kind), lambda c, b, signature, args: _round(b, args[0], register, fmt, payloads)

    return rn


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
def linear(context, x, a, b):
    """See `mcf.kernels.algorithms.primitives`: LLVM may make one instruction of both."""
    kind = types.float64 if x == types.float64 else types.float32

    def generate(c, builder, signature, args):
        product = builder.fmul(args[0], args[1], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return kind(kind, kind, kind), generate


@jit
def _same(x):
    return x


@jit
def _neg(x):
    return -x


@jit
def _div(a, b):
    return a / b


@jit
def _sqrt(x):
    return np.sqrt(x)


@intrinsic
def where(context, condition, a, b):
    """See `mcf.kernels.algorithms.primitives`; of the kind that Numba finds for both."""
    kind = context.unify_types(a, b)

    def generate(c, builder, signature, args):
        given = signature.args[1:]
        x, y = (c.cast(builder, v, t, kind) for v, t in zip(args[1:], given, strict=True))
        return builder.select(args[0], x, y)

    return kind(types.boolean, a, b), generate


@intrinsic
def usual_nan(context, x):
    """Intrinsic: x, and for any NaN the one without a payload.

    Scalars may come from a GPU, whose NaN has all bits set: a carry makes -0 of it.
    """

    def generate(c, b, signature, args):
        return b.select(
            b.fcmp_unordered("uno", args[0], args[0]),
            ir.Constant(args[0].type, float("nan")),
            args[0],
        )

    return x(x), generate


@jit
def _unless_payload(x, rounded, quiet):
    return where(x == x, rounded, quiet)


@jit
def _rounded(x, rounded, quiet):
    return rounded


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


@intrinsic
def bits64(context, x):
    """Intrinsic: the pattern of a float64 as an integer."""
    return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], _I64)


# Words. Numba's own integer arithmetic widens to 64 bits, which halves the lanes of a vector.


def _as_word(b: Any, value: Any) -> Any:
    """A word as it is; an integer literal, which Numba types as 64 bits, cut to 32."""
    width = value.type.width
    return value if width == 32 else b.trunc(value, _I32) if width > 32 else b.zext(value, _I32)


@intrinsic
def bits(context, x):
    """See `mcf.kernels.algorithms.primitives`."""
    return types.int32(types.float32), lambda c, b, s, args: b.bitcast(args[0], _I32)


@intrinsic
def from_bits(context, w):
    """See `mcf.kernels.algorithms.primitives`."""
    return types.float32(types.int32), lambda c, b, s, args: b.bitcast(args[0], _FLOAT)


@intrinsic
def word(context, x):
    """See `mcf.kernels.algorithms.primitives`."""
    return types.int32(types.float32), lambda c, b, s, args: b.fptosi(args[0], _I32)


@intrinsic
def number(context, w):
    """See `mcf.kernels.algorithms.primitives`."""
    return types.float32(types.int32), lambda c, b, s, args: b.sitofp(args[0], _FLOAT)


@intrinsic
def element(context, i):
    """An index modulo 2**32, as a word."""
    return types.int32(types.int64), lambda c, b, s, args: b.trunc(args[0], _I32)


def _operation(name: str) -> Any:
    @intrinsic
    def operation(context, a, b):
        def generate(c, builder, signature, args):
            return getattr(builder, name)(*(_as_word(builder, x) for x in args))

        return types.int32(a, b), generate

    return operation


WORDS = {
    "bits": bits,
    "from_bits": from_bits,
    "word": word,
    "number": number,
    "wadd": _operation("add"),
    "wsub": _operation("sub"),
    "wmul": _operation("mul"),
    "wand": _operation("and_"),
    "wor": _operation("or_"),
    "wxor": _operation("xor"),
    "wshl": _operation("shl"),
    "wshr": _operation("lshr"),
    "wsar": _operation("ashr"),
}


@jit
def _whole(k):
    return np.int64(k)


@jit
def _invert(condition):
    return not condition


@intrinsic
def from_bits64(context, w):
    """Intrinsic: the float64 with the pattern of an integer."""
    return types.float64(types.int64), lambda c, b, s, args: b.bitcast(args[0], LLVM[FP64])


@intrinsic
def _long(context, x):
    return types.int64(types.float64), lambda c, b, s, args: b.fptosi(args[0], _I64)


@intrinsic
def _floating(context, w):
    return types.float64(types.int64), lambda c, b, s, args: b.sitofp(args[0], LLVM[FP64])


def _of_register(name: str) -> Any:
    """One of LLVM's functions of a float64."""

    @intrinsic
    def function(context, x):
        def generate(c, b, signature, args):
            return b.call(b.module.declare_intrinsic(name, [LLVM[FP64]]), args)

        return types.float64(types.float64), generate

    return function


LONGS = {
    "const": _same,
    "whole": _whole,
    "bits64": bits64,
    "from_bits64": from_bits64,
    "long": _long,
    "floating": _floating,
    "floor": _of_register("llvm.floor"),
    "rint": _of_register("llvm.rint"),
    "absolute": _of_register("llvm.fabs"),
    "invert": _invert,
}


def primitives(
    register: Format, arithmetic: Format, roundings: Mapping[str, Format], payloads: bool
) -> dict[str, Any]:
    """The CPU's version of every primitive."""
    number = np.float32 if register == FP32 else np.float64
    return {
        "rn": rounding(register, arithmetic, payloads),
        "rx": _same,
        "fms": fused_multiply_subtract(register, arithmetic, payloads),
        "linear": linear,
        "neg": _neg,
        "div": _div,
        "sqrt": _sqrt,
        "where": where,
        "unless_payload": _unless_payload if payloads else _rounded,
        **WORDS,
        **LONGS,
        "SPLITTER": number(2 ** ((arithmetic.p + 1) // 2) + 1),
        "ZERO": number(0),
        "ONE": number(1),
        "LARGEST": number(roundings.get("rv", arithmetic).max),
        **{name: rounding(register, fmt, payloads) for name, fmt in roundings.items()},
    }
