"""Ask for lines of memory before they are needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mcf.kernels.numba import memory, team


@intrinsic
def _fetch(context, address):
    """Intrinsic address -> nothing: a hint, which never fails, whatever the address."""

    def generate(c, b, signature, args):
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        hint = b.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # To read, kept in all caches, data.
        b.call(hint, [b.inttoptr(args[0], pointer), i32(0), i32(3), i32(1)])
        return c.get_dummy_value()

    return types.void(types.uint64), generate


@functools.cache
def _loop() -> Callable[[int], None]:
    word, number = memory.word, memory.number

    def loop(table):
        lines = word(table, 0)
        for k in range(number(table, 1)):
            _fetch(word(lines, k))

    compiled: Any = numba.cfunc("void(uint64)")(loop)
    # The function goes with the object.
    _kept.append(compiled)
    return team.native(compiled.address)


_kept: list[Any] = []


def prefetch(table: int) -> None:
    """Ask for lines of memory.

    Args:
        table: the address of two words: the address of an array of addresses, and its length.
    """
    _loop()(table)
