"""What loops are made of beside algorithms: sums, indices, and functions that are inlined."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)

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


@intrinsic
def bits64(context, x):
    """Intrinsic: the pattern of a float64 as an integer."""
    return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], _I64)


@intrinsic
def power(context, exponent):
    """Intrinsic: 2**exponent in float64, for exponents of normal numbers."""

    def generate(c, b, signature, args):
        biased = b.add(args[0], ir.Constant(_I64, 1023))
        return b.bitcast(b.shl(biased, ir.Constant(_I64, 52)), ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def element(context, i):
    """An index modulo 2**32, as a word."""
    return types.int32(types.int64), lambda c, b, s, args: b.trunc(args[0], _I32)


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
    """Intrinsic (address, bytes) -> the address so many bytes further."""
    return types.uint64(types.uint64, types.int64), lambda c, b, s, args: b.add(args[0], args[1])


@intrinsic
def move(context, target, source, size):
    """Intrinsic (target, source, bytes): copy bytes to where none of them is."""

    def generate(c, b, signature, args):
        pointers = [b.inttoptr(a, ir.IntType(8).as_pointer()) for a in args[:2]]
        cgutils.raw_memcpy(b, *pointers, args[2], 1)
        return c.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), generate
