"""The CPU executor's words: 32-bit integers beside float32 registers, as LLVM instructions.

Numba's own integer arithmetic widens to 64 bits, which halves the lanes of a vector.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I32, _FLOAT = ir.IntType(32), ir.FloatType()


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
