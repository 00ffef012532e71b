"""The primitives as Triton device functions: for GPUs, and for the interpreter on a CPU."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import numpy as np
import torch
import triton.language as tl

from mcf.kernels.algorithms import primitives
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import parameters
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.kernels.operators import TRANSFORMS
from mcf.kernels.statements import written
from mcf.kernels.torch.registers import primitives as reference
from mcf.kernels.triton.code_instructions import own
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.register_rounding import assembly, jit, rounding


def _nearest(bits: int, shift: float) -> str:
    """Return the nearest integer of x, with its sign, as an expression: Triton has no rint.

    From `shift` on every number is whole; below, x + shift is.
    """
    magnitude = f"tl.where(tl.abs(x) < {shift}, tl.abs(x) + {shift} - {shift}, tl.abs(x))"
    sign = f"x.to(tl.int{bits}, bitcast=True) >> {bits - 1} << {bits - 1}"
    return f"({magnitude}.to(tl.int{bits}, bitcast=True) | {sign}).to(tl.float{bits}, bitcast=True)"


# Primitives as expressions of their parameters. Words are int32 tensors, longs int64 tensors.
_EXPRESSIONS = {
    "neg": "x * -1.0",
    # On float64 `/` is the correctly rounded division.
    "div": "a / b",
    "sqrt": "tl.sqrt(x)",
    "where": "tl.where(condition, a, b)",
    "lesser": "tl.where(a < b, a, b)",
    "greater": "tl.where(a > b, a, b)",
    "unless_payload": "tl.where(x == x, rounded, quiet)",
    "signed": "x.to(tl.int64, bitcast=True) < 0",
    "bits": "x.to(tl.int32, bitcast=True)",
    "from_bits": "w.to(tl.float32, bitcast=True)",
    "word": "x.to(tl.int32)",
    "number": "w.to(tl.float32)",
    "wadd": "a + b",
    "wsub": "a - b",
    "wmul": "a * b",
    "wand": "a & b",
    "wor": "a | b",
    "wxor": "a ^ b",
    "wshl": "a << count",
    "wshr": "(a.to(tl.uint32, bitcast=True) >> count).to(tl.int32, bitcast=True)",
    "wsar": "a >> count",
    "const": "tl.full((), x, tl.float64)",
    "whole": "tl.full((), k, tl.int64)",
    "bits64": "x.to(tl.int64, bitcast=True)",
    "from_bits64": "w.to(tl.float64, bitcast=True)",
    "long": "x.to(tl.int64)",
    "floating": "w.to(tl.float64)",
    "floor": "tl.floor(x)",
    "rint": _nearest(64, 2.0**52),
    "absolute": "tl.abs(x)",
    "gather": "tl.load(table + index)",
    "invert": "condition == 0",
}
# Primitives that differ if registers are float32: longs are int32 tensors.
_SHORT_EXPRESSIONS = {
    "div": "tl.div_rn(a, b)",
    "sqrt": "tl.sqrt_rn(x)",
    "signed": "x.to(tl.int32, bitcast=True) < 0",
    "const": "tl.full((), x, tl.float32)",
    "whole": "tl.full((), k, tl.int32)",
    "long": "x.to(tl.int32)",
    "floating": "w.to(tl.float32)",
    "rint": _nearest(32, 2.0**23),
    # The hardware's floor on NVIDIA GPUs treats subnormal numbers as 0, but floor(-2**-130) is -1.
    "floor": f"nearest = {_nearest(32, 2.0**23)}; tl.where(nearest > x, nearest - 1.0, nearest)",
}
# Primitives that differ on NVIDIA GPUs. `min.f32` and `max.f32` return the other operand for a NaN,
# and keep subnormal numbers (PTX ISA, "Floating Point Instructions"). They order -0 before +0,
# which `lesser` and `greater` leave open.
_NVIDIA_EXPRESSIONS = {
    "lesser": "tl.minimum(a, b, tl.PropagateNan.NONE)",
    "greater": "tl.maximum(a, b, tl.PropagateNan.NONE)",
}
# `div_rn` and `sqrt_rn` flush subnormal numbers to zero before Triton 3.6.
_NVIDIA_SHORT_EXPRESSIONS = {
    "div": assembly("div.rn.f32 $0, $1, $2;", "=f,f,f", "a, b"),
    "sqrt": assembly("sqrt.rn.f32 $0, $1;", "=f,f", "x"),
}


@functools.cache
def _function(name: str, expression: str) -> FunctionType:
    """Return a primitive as a function; statements separated by "; " precede the result."""
    form = getattr(primitives, name).__wrapped__
    *before, result = expression.split("; ")
    body = [*before, f"return {result}"]
    return written(f"_{name}", ", ".join(parameters(form)), body, form.__doc__, tl=tl)


def _fms_fma(a, b, c):
    if isinstance(a, float) and isinstance(b, float):
        # Both operands are zeros that stand for missing components.
        return a * b - c
    else:
        # The product becomes a sign flip in the instruction; `-c` costs a subtraction (`_neg`).
        return tl.fma(a, b, c * -1.0)


def _fms_of_16_bits(a, b, c):
    # The product is exact in float32, or underflows as on a CPU.
    return rn(a * b - c)


def _linear(x, a, b):
    return rn(rn(x * a) + b)


def _linear_fma(x, a, b):
    return tl.fma(x, a, b)


def _fms_interpreted(a, b, c):
    """Return RN(a * b - c) by the reference's primitive; the interpreter's `fma` rounds twice."""
    tensors = [x for x in (a, b, c) if isinstance(x, tl.tensor)]
    # Missing components are the Python number 0.0.
    if not tensors:
        return a * b - c
    like = max(tensors, key=lambda x: x.handle.data.size)
    fmt = FP64 if like.dtype == tl.float64 else FP32
    fms = reference(fmt, fmt, {})["fms"]
    data = [
        x.handle.data if isinstance(x, tl.tensor) else like.handle.data.dtype.type(x)
        for x in (a, b, c)
    ]
    parts = np.broadcast_arrays(*data)
    exact = fms(*(torch.from_numpy(np.ascontiguousarray(x)) for x in parts))
    return tl.tensor(type(like.handle)(exact.numpy(), like.handle.dtype), like.type)


def _gather_cuda(table, index):
    """Load a table entry by inline assembly, which Triton treats as arithmetic: see `_blocks`."""
    if not index.type.is_block():
        return tl.load(table + index)
    elif table.dtype.element_ty == tl.float64:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b64 $0, [$1];",
            "=d,l",
            [table.to(tl.int64) + index.to(tl.int64) * 8],
            tl.float64,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];",
            "=f,l",
            [table.to(tl.int64) + index.to(tl.int64) * 4],
            tl.float32,
            is_pure=True,
            pack=1,
        )


@functools.cache
def binder(
    register: Format, arithmetic: Format, roundings: Any, slots: Any, dialect: Dialect
) -> Binder:
    """Return a binder of algorithms as device functions.

    For the interpreter they stay plain Python functions, which run on its tensors.
    """
    interpret = dialect is Dialect.INTERPRETER
    wrap = (lambda f: f) if interpret else jit
    constant = float if interpret else tl.constexpr
    expressions = _EXPRESSIONS | (_SHORT_EXPRESSIONS if register == FP32 else {})
    if dialect.nvidia:
        expressions |= _NVIDIA_EXPRESSIONS
        expressions |= _NVIDIA_SHORT_EXPRESSIONS if register == FP32 else {}
    bound: dict[str, Any] = {name: _function(name, e) for name, e in expressions.items()}
    if dialect.nvidia:
        bound["gather"] = _gather_cuda
    bound |= {
        "rn": rounding(register, arithmetic, dialect),
        "rx": rounding(register, register, dialect),
        **{name: rounding(register, fmt, dialect) for name, fmt in roundings},
    }
    table = {name: wrap(f) for name, f in bound.items()}
    if arithmetic in (BF16, FP16):
        table["fms"] = Binder(wrap, table)(_fms_of_16_bits)
    else:
        table["fms"] = wrap(_fms_interpreted if interpret else _fms_fma)
    # The interpreter's `fma` rounds twice; an FMA in float32 does not round to 16-bit formats.
    fma = not interpret and arithmetic == register
    table["linear"] = wrap(_linear_fma) if fma else Binder(wrap, table)(_linear)
    constants = {
        "SPLITTER": 2.0 ** ((arithmetic.p + 1) // 2) + 1,
        "ZERO": 0.0,
        "ONE": 1.0,
        "LARGEST": float(dict(roundings).get("rv", arithmetic).max),
    }
    table |= {name: constant(value) for name, value in constants.items()}
    return Binder(wrap, table, dict(slots), own(dialect))


def transforms(fmt: Format) -> list[Any]:
    """Return the algorithms on components of a format, as device functions of this process."""
    bind = binder(FP32, fmt, (("rc", fmt),), (), Dialect.of_process())
    return [bind(operation.algorithms[1]) for operation in TRANSFORMS]
