"""Generate the Triton kernel of an `Elementwise` declaration."""

from __future__ import annotations

import functools
from typing import Any

import triton.language as tl

from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP64
from mcf.kernels.triton.code_instructions import loaded_as_numbers, unpack_numbers
from mcf.kernels.triton.device_functions import binder
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.launching import THREADS, kernel_of
from mcf.kernels.triton.register_rounding import jit, storage

# 8 elements for each of 128 threads: 16-byte loads and stores for 16-bit tensors.
BLOCK = 1024
# From 8 float64 tensors on a thread has 4 elements, from 24 on 2. More would fill half of its
# registers, and the assembler spills or recomputes intermediate results (seen in quotients and
# roots of four components; at 4 elements in complex quotients).
_MANY_WIDE, _MOST_WIDE = 8, 24
# Small tensors: one warp computes one element per lane.
FEW = 32

# The arguments of a kernel of many rows.
TABLES = ["addresses_ptr", "sizes_ptr", "owners_ptr", "blocks_ptr", "scalars_ptr", "sums_ptr"]
_TYPES = {
    "int8": tl.int8,
    "uint8": tl.uint8,
    "uint4": tl.uint8,
    "int16": tl.int16,
    "int32": tl.int32,
    "bf16": tl.bfloat16,
    "fp16": tl.float16,
    "fp32": tl.float32,
    "fp64": tl.float64,
}


def block(spec: Elementwise, interpreted: bool = False) -> int:
    """Return how many elements a program of a kernel computes."""
    if spec.few:
        return FEW
    if spec.long:
        # One element per thread: its operations hide the memory's latency and fill its registers,
        # and two elements would double the code. The interpreter has no such limits.
        return BLOCK if interpreted else THREADS
    wide = sum(f.format == FP64 and not f.uniform for f in spec.fields)
    return BLOCK // (4 if wide >= _MOST_WIDE else 2 if wide >= _MANY_WIDE else 1)


def source(spec: Elementwise) -> str:
    """Return the Python source of the kernel for one row of tensors; see `_blocks`."""
    names = [f"{f.name}_ptr" for f in spec.fields]
    lines = [
        f"def mcf_{spec.name}({', '.join(names)}, scalars_ptr, sums_ptr, n):",
        "    start = tl.program_id(0).to(tl.int64) * BLOCK",
    ]
    return _blocks(spec, lines)


def many_source(spec: Elementwise) -> str:
    """Return the source of the kernel for many rows, listed in int64 tables; see `_blocks`.

    Program b computes block `blocks[b]` of row `owners[b]`, of size `sizes[row]`. Row r's tensors
    begin at `addresses[r * fields]`, all at multiples of ALIGNMENT. The compiler cannot infer the
    alignment of a pointer that is loaded from memory.
    """
    lines = [
        f"def mcf_many_{spec.name}(addresses_ptr, sizes_ptr, owners_ptr, blocks_ptr, scalars_ptr, "
        "sums_ptr, ALIGNMENT: tl.constexpr):",
        "    row = tl.load(owners_ptr + tl.program_id(0))",
        "    start = tl.load(blocks_ptr + tl.program_id(0)) * BLOCK",
        "    n = tl.load(sizes_ptr + row)",
    ]
    for k, f in enumerate(spec.fields):
        name = f"{f.name}_ptr"
        lines.append(f"    {name} = tl.load(addresses_ptr + row * {len(spec.fields)} + {k})")
        lines.append(f"    {name} = tl.multiple_of({name}, ALIGNMENT).to({name}_type)")
        lines.append(f"    {name} = tl.multiple_of({name}, ALIGNMENT)")
    if spec.scalars:
        lines.append(f"    scalars_ptr += row * {len(spec.scalars)}")
    return _blocks(spec, lines)


def _blocks(spec: Elementwise, lines: list[str]) -> str:
    """Complete a kernel: an unmasked path for full blocks, a masked path for the last one.

    A formula of many operations is emitted once, with a mask, inside a loop of one iteration, so
    that the pointers are loop-carried and come from no operation. Otherwise Triton's pass for wide
    accesses follows each pointer through everything computed with it, in quadratic time (19 of 20
    seconds for a logarithm, and minutes for longer functions).
    """
    lines.append("    i = start + tl.arange(0, BLOCK)")
    for k, scalar in enumerate(spec.scalars):
        lines.append(f"    {scalar} = tl.load(scalars_ptr + {k})")
    for f in spec.fields:
        if f.table:
            lines.append(f"    {f.name} = {f.name}_ptr")
        elif f.uniform:
            lines.append(f"    {f.name} = widen_{f.name}(tl.load({f.name}_ptr))")
    if spec.long:
        return "\n".join([*lines, *_loop(spec)]).replace("ZERO", "0.0") + "\n"
    lines.append("    if start + BLOCK <= n:")
    lines += _body(spec, masked=False)
    lines.append("    else:")
    lines.append("        live = i < n")
    lines += _body(spec, masked=True)
    return "\n".join(lines).replace("ZERO", "0.0") + "\n"


def _loop(spec: Elementwise) -> list[str]:
    """Return the loop around a formula of many operations; see `_blocks`."""
    streams = [f.name for f in spec.fields if not f.uniform]
    totals = range(spec.sum_count if spec.sums is not None else 0)
    lines = [f"{s}_ptr += i" for s in streams]
    lines += [f"total{k} = tl.full((), 0.0, tl.float64)" for k in totals]
    # Triton 3.6 cannot make a `range` of the interpreter's tensors with NumPy 2.4.
    lines += ["first = start", "while first < n:"]
    lines.append("    live = first + tl.arange(0, BLOCK) < n")
    lines += [f"    {line}" for line in _statements(spec, masked=True)]
    lines += [f"    {s}_ptr += n" for s in streams]
    lines.append("    first += n")
    lines += [_stored_total(spec, k, f"total{k}") for k in totals]
    return [f"    {line}" for line in lines]


def _body(spec: Elementwise, masked: bool) -> list[str]:
    return [f"        {line}" for line in _statements(spec, masked)]


def _statements(spec: Elementwise, masked: bool) -> list[str]:
    """Return the statements of a block, from its loads to its stores."""
    lines, fields = [], {f.name: f for f in spec.fields}
    if spec.packed:
        # Indices of the elements of a packed tensor, which hold two numbers each.
        lines.append("pairs = start // 2 + tl.arange(0, BLOCK // 2)")
        lines += ["live_pairs = pairs * 2 < n"] if masked else []
    cells = {f.name: _cells(f, masked, spec.long) for f in spec.fields}
    # Masked elements must be 0 if they may end up in a table index.
    known = ", other=0.0" if masked and any(f.table for f in spec.fields) else ""
    for f in spec.fields:
        if f.read and not f.uniform:
            loaded = f"tl.load({', '.join(cells[f.name])}{known})"
            lines.append(f"{f.name} = widen_{f.name}({unpacked(f, loaded)})")
    lines += spec.decode_statements("decode_loaded_")
    lines += spec.draw_statements("i.to(tl.int32)")
    lines.append(f"{spec.outputs()} = function({spec.call()})")
    lines += spec.store_statements()
    for _, field in spec.stores:
        where, *masks = cells[field]
        kept = packed(fields[field], f"narrow_{field}({spec.kept(field)})")
        lines.append(f"tl.store({', '.join([where, kept, *masks])})")
    if spec.sums is not None:
        terms = ", ".join(f"term{k}" for k in range(spec.sum_count))
        lines.append(f"{terms}, = sum_terms({spec.call_of(spec.sums)})")
        for k in range(spec.sum_count):
            term = f"tl.where(live, term{k}, 0.0)" if masked else f"term{k}"
            total = f"tl.reduce({term}.to(tl.float64), 0, combine)"
            lines.append(f"total{k} += {total}" if spec.long else _stored_total(spec, k, total))
    return lines


def _stored_total(spec: Elementwise, k: int, total: str) -> str:
    return f"tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * {spec.sum_count} + {k}, {total})"


def _cells(field: Field, masked: bool, placed: bool) -> list[str]:
    """Return the pointers of a block in a field's tensor, and the mask.

    `placed`: whether the field's pointer already includes the block's offset.
    """
    index, live = ("i", "live") if field.format.packed == 1 else ("pairs", "live_pairs")
    where = f"{field.name}_ptr" if placed else f"{field.name}_ptr + {index}"
    return [where, f"mask={live}"] if masked else [where]


def unpacked(field: Field, loaded: str) -> str:
    """Return the unpacked numbers of loaded elements; neighbours stay in one thread."""
    if field.format.packed == 1:
        return loaded
    return f"unpack({loaded}, BLOCK)"


def packed(field: Field, kept: str) -> str:
    """Return the packed elements that hold the numbers."""
    return kept if field.format.packed == 1 else f"pack({kept}, BLOCK)"


def _unpack(x, BLOCK: tl.constexpr):
    both = x.to(tl.int32)
    return tl.reshape(tl.join(both & 15, both >> 4), (BLOCK,))


def _pack(x, BLOCK: tl.constexpr):
    low, high = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    return (low | (high << 4)).to(tl.uint8)


@functools.cache
def build(spec: Elementwise, dialect: Dialect, many: bool = False) -> Any:
    """Return the kernel of a declaration, for one row of tensors or for many."""
    interpreted = dialect is Dialect.INTERPRETER
    bind = binder(spec.register, spec.arithmetic, spec.roundings, spec.slots, dialect)
    namespace: dict[str, Any] = {"function": bind(spec.function)}
    namespace |= {name: bind(each) for name, each in spec.helpers().items()}
    loaded, unpack = bind, _unpack
    if spec.packed and dialect.nvidia:
        # On NVIDIA GPUs unpacking also decodes; other targets keep codes in registers.
        loaded, unpack = bind.with_own(loaded_as_numbers()), unpack_numbers
    namespace |= {f"decode_loaded_{code.field}": loaded(code.decode) for code in spec.codes}
    if spec.sums is not None:
        namespace["sum_terms"] = bind(spec.sums)
        namespace["combine"] = tl.standard._sum_combine
    if spec.packed:
        both = (unpack, _pack)
        namespace |= zip(("unpack", "pack"), both if interpreted else map(jit, both), strict=True)
    for field in spec.fields:
        widen, rounding, narrow = storage(
            spec.register, field.format, dialect, on_bits=field.rounding is not None
        )
        namespace[f"widen_{field.name}"] = widen
        namespace[f"round_{field.name}"] = rounding
        namespace[f"narrow_{field.name}"] = narrow
        namespace[f"{field.name}_ptr_type"] = tl.pointer_type(_TYPES[field.format.name])
    name = f"mcf_many_{spec.name}" if many else f"mcf_{spec.name}"
    # Kernels of many rows get the alignment in ALIGNMENT; formulas of many operations use narrow
    # accesses.
    aligned = [] if many or spec.long else [f"{f.name}_ptr" for f in spec.fields]
    return kernel_of(
        many_source(spec) if many else source(spec),
        f"{name} {spec.serial}",
        namespace,
        {"BLOCK": block(spec, interpreted)},
        dialect,
        name,
        aligned,
    )
