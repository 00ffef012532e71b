"""LLVM loads and stores of integers narrower than registers."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I64 = ir.IntType(64)


@functools.cache
def loading(bits: int) -> Any:
    """Return the intrinsic (address, i) -> unsigned integer i of `bits` bits."""
    kind = ir.IntType(bits)

    @intrinsic
    def load(context, address, i):
        def generate(c, b, signature, args):
            cell = b.gep(b.inttoptr(args[0], kind.as_pointer()), [args[1]])
            return b.zext(b.load(cell, align=bits // 8), _I64)

        return types.int64(types.uint64, types.int64), generate

    return load


@functools.cache
def storing(bits: int) -> Any:
    """Return the intrinsic (address, i, value) that stores a value's lower bits as integer i."""
    kind = ir.IntType(bits)

    @intrinsic
    def store(context, address, i, value):
        def generate(c, b, signature, args):
            cell = b.gep(b.inttoptr(args[0], kind.as_pointer()), [args[1]])
            b.store(b.trunc(args[2], kind), cell, align=bits // 8)
            return c.get_dummy_value()

        return types.void(types.uint64, types.int64, types.int64), generate

    return store


@functools.cache
def advancing(bits: int) -> Any:
    """Return the intrinsic (address, i) -> address of element i of `bits` bits."""

    @intrinsic
    def advance(context, address, i):
        def generate(c, b, signature, args):
            return b.add(args[0], b.mul(args[1], _I64(bits // 8)))

        return types.uint64(types.uint64, types.int64), generate

    return advance


NAMES = {
    "byte": loading(8),
    "short": loading(16),
    "half": loading(32),
    "put_byte": storing(8),
    "put_short": storing(16),
    "put_half": storing(32),
}
