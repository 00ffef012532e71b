"""Loads and stores of the CPU executor, as LLVM instructions.

The generated loops read through raw addresses. LLVM would need a run-time overlap check for every
pair of tensors, and it does not vectorise with more than a small number of them. So each access
declares by alias scopes that the tensors of one kernel do not overlap, which the launcher ensures.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mcf.kernels.formats import BF16, FP16, FP32, FP64, INT8, INT16, INT32, UINT4, UINT8, Format
from mcf.kernels.numba.compile.llvm_types import LLVM, table_scope

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_BYTE = ir.IntType(8).as_pointer()
INTEGERS = {INT8: ir.IntType(8), UINT8: ir.IntType(8), INT16: ir.IntType(16), INT32: _I32}
NUMBA = {FP32: types.float32, FP64: types.float64}


def _const(value: int) -> Any:
    return ir.Constant(_I32, value)


def no_alias(module: Any, instruction: Any, index: int | None, count: int) -> None:
    """Declare that an access to field `index` of `count` overlaps no other field.

    The field None may overlap all others.
    """
    if index is None:
        return
    domain = module.add_metadata(["mcf"])
    scopes = [module.add_metadata([f"mcf field {k}", domain]) for k in range(count)]
    # No store of a kernel overlaps a table.
    others = [s for k, s in enumerate(scopes) if k != index] + [table_scope(module)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[index]]))
    instruction.set_metadata("noalias", module.add_metadata(others))


def _cell(b: Any, address: Any, index: Any, fmt: Format, lanes: int) -> tuple[Any, int]:
    kind = _I16 if fmt == BF16 else INTEGERS.get(fmt) or LLVM[fmt]
    pointer = b.gep(b.inttoptr(address, kind.as_pointer()), [index])
    if lanes:
        pointer = b.bitcast(pointer, _vector(kind, lanes).as_pointer())
    return pointer, int(fmt.itemsize)


@functools.cache
def loading(register: Format, fmt: Format, index: int, count: int) -> Any:
    """Intrinsic (address, i) -> element i of field `index` of `count`, widened to the register."""
    kind = NUMBA[register]

    @intrinsic
    def load(context, address, i):
        def generate(c, b, signature, args):
            return loaded(b, args[0], args[1], register, fmt, index, count)

        return kind(types.uint64, types.int64), generate

    return load


def _vector(kind: Any, lanes: int) -> Any:
    return ir.VectorType(kind, lanes) if lanes else kind


def loaded(
    b: Any,
    address: Any,
    i: Any,
    register: Format,
    fmt: Format,
    index: int | None,
    count: int,
    lanes: int = 0,
) -> Any:
    """Emit the load of element i of field `index` of `count`, widened to the register.

    With lanes it is the vector of elements i, ..., i + lanes - 1.
    """
    pointer, size = _cell(b, address, i, fmt, lanes)
    value = b.load(pointer, align=size)
    no_alias(b.module, value, index, count)
    real = _vector(LLVM[register], lanes)
    if fmt == BF16:
        word = _vector(_I32, lanes)
        value = b.shl(b.zext(value, word), ir.Constant(word, [16] * lanes if lanes else 16))
        value = b.bitcast(value, _vector(ir.FloatType(), lanes))
    if fmt == UINT8:
        return b.uitofp(value, real)
    if fmt in INTEGERS:
        return b.sitofp(value, real)
    source = FP32 if fmt == BF16 else fmt
    return value if source == register else b.fpext(value, real)


def stored(
    b: Any,
    address: Any,
    i: Any,
    value: Any,
    register: Format,
    fmt: Format,
    index: int | None,
    count: int,
    lanes: int = 0,
) -> None:
    """Emit the store of a register, rounded to `fmt`, as element i of field `index` of `count`."""
    pointer, size = _cell(b, address, i, fmt, lanes)
    if fmt in (BF16, FP16) and register == FP64:
        # Exact, and supported by processors.
        value = b.fptrunc(value, _vector(ir.FloatType(), lanes))
    if fmt == BF16:
        word = _vector(_I32, lanes)
        value = b.lshr(b.bitcast(value, word), ir.Constant(word, [16] * lanes if lanes else 16))
        value = b.trunc(value, _vector(_I16, lanes))
    elif fmt in INTEGERS:
        value = b.trunc(b.fptosi(value, _vector(_I32, lanes)), _vector(INTEGERS[fmt], lanes))
    elif fmt != register:
        value = b.fptrunc(value, _vector(LLVM[fmt], lanes))
    no_alias(b.module, b.store(value, pointer, align=size), index, count)


def _pair(b: Any, address: Any, index: Any, fmt: Format) -> tuple[Any, int]:
    """Return the address of the elements 2 i and 2 i + 1 as one integer, and the bits of each."""
    width = 4 if fmt == UINT4 else fmt.dtype.itemsize * 8  # type: ignore[union-attr]
    return b.gep(b.inttoptr(address, ir.IntType(2 * width).as_pointer()), [index]), width


def loaded_pair(
    b: Any, address: Any, i: Any, register: Format, fmt: Format, index: int, count: int
) -> list[Any]:
    """Emit one load of the elements 2 i and 2 i + 1; see `loaded`."""
    assert register == FP32, "pairs are of 32-bit registers"
    pointer, width = _pair(b, address, i, fmt)
    both = b.load(pointer, align=max(1, width // 8))
    no_alias(b.module, both, index, count)
    real = ir.FloatType()
    if fmt == BF16:
        return [b.bitcast(w, real) for w in (b.shl(both, _const(16)), b.and_(both, _const(-65536)))]
    one = ir.IntType(width)
    halves = [b.trunc(both, one), b.trunc(b.lshr(both, both.type(width)), one)]
    if fmt == FP32:
        return [b.bitcast(w, real) for w in halves]
    if fmt == FP16:
        return [b.fpext(b.bitcast(w, ir.HalfType()), real) for w in halves]
    # Signed: processors without AVX-512 convert only signed 32-bit integers.
    widen = b.zext if fmt in (UINT4, UINT8) else b.sext
    return [b.sitofp(widen(w, _I32), real) for w in halves]


def store_pair(
    b: Any,
    address: Any,
    i: Any,
    values: Sequence[Any],
    register: Format,
    fmt: Format,
    index: int,
    count: int,
) -> None:
    """Emit one store of both, which have been rounded to `fmt`; see `stored`."""
    assert register == FP32, "pairs are of 32-bit registers"
    pointer, width = _pair(b, address, i, fmt)
    two = ir.IntType(2 * width)
    if fmt == BF16:
        low, high = (b.bitcast(x, _I32) for x in values)
        both = b.or_(b.lshr(low, _const(16)), b.and_(high, _const(-65536)))
    elif fmt in (FP16, FP32):
        if fmt == FP16:
            values = [b.fptrunc(x, ir.HalfType()) for x in values]
        low, high = (b.zext(b.bitcast(x, ir.IntType(width)), two) for x in values)
        both = b.or_(low, b.shl(high, two(width)))
    else:
        low, high = (b.fptosi(x, _I32) for x in values)
        both = b.or_(b.and_(low, _const((1 << width) - 1)), b.shl(high, _const(width)))
        both = both if width == 16 else b.trunc(both, two)
    no_alias(b.module, b.store(both, pointer, align=max(1, width // 8)), index, count)


@intrinsic
def word(context, address, i):
    """Intrinsic (address, i) -> the 64-bit entry i of a table, as an address."""

    def generate(c, b, signature, args):
        return b.load(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), align=8)

    return types.uint64(types.uint64, types.int64), generate


@functools.cache
def loading_bits(bits: int) -> Any:
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
def storing_bits(bits: int) -> Any:
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


number, put = loading_bits(64), storing_bits(64)


@intrinsic
def advance(context, address, i):
    """Intrinsic (address, i) -> the address of the 64-bit entry i of a table."""

    def generate(c, b, signature, args):
        return b.ptrtoint(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]), _I64)

    return types.uint64(types.uint64, types.int64), generate


@intrinsic
def claim(context, address, i):
    """Intrinsic (address, i) -> the 64-bit counter i, which is incremented atomically."""

    def generate(c, b, signature, args):
        word = ir.IntType(64)
        cell = b.gep(b.inttoptr(args[0], word.as_pointer()), [args[1]])
        return b.atomic_rmw("add", cell, word(1), "monotonic")

    return types.int64(types.uint64, types.int64), generate


@intrinsic
def prefer_wide_vectors(context):
    """Ask LLVM for 512-bit vectors in the calling function, where the processor has them.

    LLVM takes the number of lanes from the widest type in memory and a preferred width of 256 bits.
    A loop over 16-bit tensors has 16 lanes of float32 registers, in two halves. With a float32
    tensor or sum in the loop there are only 8, at half the speed.
    """

    def generate(c, builder, signature, args):
        # llvmlite has no string attributes; its attribute set prints its elements verbatim.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return c.get_dummy_value()

    return types.void(), generate


def prefetched(b: Any, address: Any, i: Any) -> None:
    """Prefetch the float64 number i of an array."""
    pointer = b.inttoptr(b.add(address, b.shl(i, ir.Constant(_I64, 3))), _BYTE)
    kind = ir.FunctionType(ir.VoidType(), [_BYTE, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    # Arguments: read, high locality, data cache.
    b.call(function, [pointer, _const(0), _const(2), _const(1)])
