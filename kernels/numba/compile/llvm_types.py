"""LLVM's types of registers and integers."""

from __future__ import annotations

from llvmlite import ir

from mcf.kernels.formats import FP16, FP32, FP64

I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
LLVM = {FP16: ir.HalfType(), FP32: FLOAT, FP64: DOUBLE}
