"""Make the Triton kernel of an `Elementwise` declaration."""

from __future__ import annotations

import functools
import linecache
from types import FunctionType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.triton.primitives import DTYPES, binder, storage_rounding

# 8 elements for each of 128 threads: loads and stores of 16 bytes for 16-bit tensors.
BLOCK = 1024
WARPS = 4
# Every launch and compilation: without it multiply and add contract into FMA.
OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": False}


def source(spec: Elementwise) -> str:
    """The kernel in Python: an unmasked path for full blocks, a masked one for the last."""
    names = [f"{f.name}_ptr" for f in spec.fields]
    register = f"tl.{DTYPES[spec.register]}"
    register = {"tl.fp32": "tl.float32", "tl.fp64": "tl.float64"}[register]
    lines = [
        f"def mcf_{spec.name}({', '.join(names)}, scalars_ptr, sums_ptr, n, BLOCK: tl.constexpr):",
        "    start = tl.program_id(0).to(tl.int64) * BLOCK",
        "    i = start + tl.arange(0, BLOCK)",
    ]
    for k, scalar in enumerate(spec.scalars):
        lines.append(f"    {scalar} = tl.load(scalars_ptr + {k}).to({register})")
    lines.append("    if start + BLOCK <= n:")
    lines += _body(spec, register, masked=False)
    lines.append("    else:")
    lines.append("        live = i < n")
    lines += _body(spec, register, masked=True)
    return "\n".join(lines).replace("ZERO", "0.0") + "\n"


def _body(spec: Elementwise, register: str, masked: bool) -> list[str]:
    mask = ", mask=live" if masked else ""
    lines = []
    for f in spec.fields:
        if f.read:
            lines.append(f"{f.name} = tl.load({f.name}_ptr + i{mask}).to({register})")
    lines.append(f"{spec.outputs()} = function({spec.call()})")
    for result, field in spec.stores:
        lines.append(f"new_{field} = round_{field}(out_{result})")
        element = f"{field}_ptr.dtype.element_ty"
        lines.append(f"tl.store({field}_ptr + i, new_{field}.to({element}){mask})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        lines.append(f"{terms}, = sum_terms({spec.sums_call()})")
        for k in range(spec.sum_count):
            term = f"tl.where(live, term{k}, 0.0)" if masked else f"term{k}"
            total = f"tl.reduce({term}.to(tl.float64), 0, combine)"
            lines.append(f"tl.store(sums_ptr + tl.program_id(0) * {spec.sum_count} + {k}, {total})")
    return ["        " + line for line in lines]


@functools.cache
def build(spec: Elementwise, interpret: bool) -> Any:
    """The kernel of a declaration: interpreted for CPU tensors, compiled on first use for GPUs."""
    bind = binder(spec.register, spec.arithmetic, spec.roundings, spec.slots, interpret)
    namespace: dict[str, Any] = {"tl": tl, "function": bind(spec.function)}
    if spec.sums is not None:
        namespace["sum_terms"] = bind(spec.sums)
        namespace["combine"] = tl.standard._sum_combine
    for field in spec.fields:
        if field.written:
            rounding = storage_rounding(spec.register, field.format, interpret)
            namespace[f"round_{field.name}"] = rounding
    text = source(spec)
    filename = f"<mcf triton {spec.name} {spec.serial}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    function = namespace[f"mcf_{spec.name}"]
    assert isinstance(function, FunctionType)
    function.__module__ = __name__
    if interpret:
        return InterpretedFunction(function)
    return triton.JITFunction(
        function, do_not_specialize=["scalars_ptr", "sums_ptr", "n"]
    )
