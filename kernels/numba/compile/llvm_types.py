"""LLVM types of registers and integers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from mcf.kernels.formats import FP16, FP32, FP64

I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
LLVM = {FP16: ir.HalfType(), FP32: FLOAT, FP64: DOUBLE}


# Constant tables in memory, which no kernel writes.


def entry(b: Any, table: Any, index: Any, beyond: int, kind: Any) -> Any:
    """Load the entry at index + beyond of a constant table."""
    align = 8 if kind == DOUBLE else 4
    place = b.gep(b.inttoptr(table, kind.as_pointer()), [index])
    found = b.load(b.gep(place, [I64(beyond)]), align=align)
    found.set_metadata("alias.scope", b.module.add_metadata([table_scope(b.module)]))
    return found


def table_scope(module: Any) -> Any:
    """Return the alias scope of the constant tables."""
    return module.add_metadata(["mcf tables", module.add_metadata(["mcf"])])
