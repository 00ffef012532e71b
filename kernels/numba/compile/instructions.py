"""Intrinsics of loops other than algorithms: calls, copies, narrow integers."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mcf.kernels.numba.compile import memory

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Functions called only by loops need no wrapper for Python or C; wrappers take a third of the time.
INNER: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def jit(function: Any) -> Any:
    """Compile a function that is inlined wherever it is called."""
    # Inlined into the loop regardless of length; otherwise the loop does not vectorise.
    return numba.njit(function, forceinline=True, **INNER)


@intrinsic
def bits64(context, x):
    """Intrinsic: return the bit pattern of a float64 as an integer."""
    return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], _I64)


@intrinsic
def power(context, exponent):
    """Intrinsic: return 2**exponent in float64, for exponents of normal numbers."""

    def generate(c, b, signature, args):
        biased = b.add(args[0], ir.Constant(_I64, 1023))
        return b.bitcast(b.shl(biased, ir.Constant(_I64, 52)), ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def call(context, function, data):
    """Intrinsic: call the native code `void(uint64)` at an address."""

    def generate(c, b, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        b.call(b.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return c.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@intrinsic
def beyond(context, address, offset):
    """Intrinsic (address, bytes) -> address + bytes."""
    return types.uint64(types.uint64, types.int64), lambda c, b, s, args: b.add(args[0], args[1])


@intrinsic
def move(context, target, source, size):
    """Intrinsic (target, source, bytes): copy bytes between blocks that do not overlap."""

    def generate(c, b, signature, args):
        pointers = [b.inttoptr(a, ir.IntType(8).as_pointer()) for a in args[:2]]
        cgutils.raw_memcpy(b, *pointers, args[2], 1)
        return c.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), generate


def _resized(given: Any, made: Any, size: int) -> Any:
    """Return an intrinsic that loads a float, converts its size and returns its bits."""

    @intrinsic
    def load(context, address, i):
        def generate(c, b, signature, args):
            cell = b.gep(b.inttoptr(args[0], given.as_pointer()), [args[1]])
            x = b.load(cell, align=12 - size // 8)
            x = b.fpext(x, made) if size == 64 else b.fptrunc(x, made)
            x = b.bitcast(x, ir.IntType(size))
            return x if size == 64 else b.zext(x, _I64)

        return types.int64(types.uint64, types.int64), generate

    return load


@intrinsic
def call_team(context, entry, function, data, threads):
    """Intrinsic: run a function by GOMP_parallel on several threads, the calling one included."""

    def generate(c, b, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32])
        count = b.trunc(args[3], _I32)
        b.call(b.inttoptr(args[0], kind.as_pointer()), [args[1], args[2], count, _I32(0)])
        return c.get_dummy_value()

    given = types.uint64, types.uint64, types.uint64, types.int64
    return types.void(*given), generate


NAMES = {
    "byte": memory.loading_bits(8),
    "short": memory.loading_bits(16),
    "half": memory.loading_bits(32),
    "put_byte": memory.storing_bits(8),
    "put_short": memory.storing_bits(16),
    "put_half": memory.storing_bits(32),
    "bits64": bits64,
    "power": power,
    "call": call,
    "call_team": call_team,
    "beyond": beyond,
    "move_bytes": move,
    "widened": _resized(ir.FloatType(), ir.DoubleType(), 64),
    "narrowed": _resized(ir.DoubleType(), ir.FloatType(), 32),
}
