"""Whether a kernel's offsets can leave 32 bits: intervals of integers through Triton's IR."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend

from tests.kernels import machine_code as code

_OPERATION = re.compile(r"^\s*(%[\w.]+)(?::\d+)? = \"?([\w.]+)\"?(.*)$")
_CONSTANT = re.compile(r"(?:dense<)?(-?\d+)>? ?:")
_RANGE = re.compile(r"end = (\d+) : i32, start = (\d+) : i32")
_WIDTH = re.compile(r"(?:tensor<[\dx]*x)?i(\d+)>?")
_ARGUMENT = re.compile(r"(%[\w.]+): (?:tensor<[\dx]*x)?i(\d+)")
_MOVES = (
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
    "arith.extsi",
)


class _Value(NamedTuple):
    """What is known of an integer: its interval, and whether it may have left its type."""

    low: int
    high: int
    wrapped: bool = False


def front(source: Any, target: str, chosen: dict[str, Any]) -> str:
    """Triton's IR of a kernel as its front end makes it, in a moment."""
    backend = make_backend(code.TARGETS[target])
    options = backend.parse_options(dict(chosen))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    modules = backend.get_module_map()
    return str(source.make_ir(code.TARGETS[target], options, functions, modules, context))


def _type(bits: int) -> _Value:
    return _Value(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _known(name: str, rest: str, values: dict[str, _Value], bits: int) -> _Value:
    """The result of an operation, as wide as it may get."""
    if name == "tt.get_program_id":
        return _Value(0, 2**31 - 1)
    if name == "tt.make_range":
        found = _RANGE.search(rest)
        assert found, rest
        return _Value(int(found[2]), int(found[1]) - 1)
    if name == "arith.constant":
        found = _CONSTANT.search(rest)
        return _Value(int(found[1]), int(found[1])) if found else _type(bits)
    names = re.findall(r"%[\w.#]+", rest.split(" : ")[0])
    operands = [values.get(v, _type(bits)) for v in names]
    wrapped = any(v.wrapped for v in operands)
    if name in _MOVES and len(operands) == 1:
        return operands[0]
    if name in ("arith.addi", "arith.subi", "arith.muli") and len(operands) == 2:
        a, b = operands
        ends = {
            "arith.addi": [a.low + b.low, a.high + b.high],
            "arith.subi": [a.low - b.high, a.high - b.low],
            "arith.muli": [x * y for x in a[:2] for y in b[:2]],
        }[name]
        low, high = min(ends), max(ends)
        # In 64 bits nothing is as large: what a tensor has in memory is below 2**63 bytes.
        if bits < 64 and not (_type(bits).low <= low and high <= _type(bits).high):
            wrapped = True
        return _Value(max(low, _type(bits).low), min(high, _type(bits).high), wrapped)
    if name in ("arith.divsi", "arith.remsi") and operands[0].low >= 0 and operands[1].low > 0:
        a, b = operands
        high = a.high // b.low if name == "arith.divsi" else min(a.high, b.high - 1)
        return _Value(0, high, wrapped)
    if name == "arith.trunci":
        narrow = _type(bits)
        fits = narrow.low <= operands[0].low and operands[0].high <= narrow.high
        return operands[0] if fits else narrow._replace(wrapped=True)
    return _type(bits)._replace(wrapped=wrapped)


def narrow_offsets(ttir: str) -> tuple[int, list[str]]:
    """How many offsets a kernel adds to pointers, and those that may have left 32 bits before.

    Functions are looked at one by one: what they are called with, rows of a table, has their
    arguments' type and comes of no sizes.
    """
    count, found = 0, []
    for function in re.split(r"(?m)^(?=\s*tt\.func )", ttir):
        own, narrow = _narrow_offsets(function)
        count, found = count + own, found + narrow
    return count, found


def _narrow_offsets(function: str) -> tuple[int, list[str]]:
    # Arguments, and what loops carry.
    values = {name: _type(int(bits)) for name, bits in _ARGUMENT.findall(function)}
    count, found = 0, []
    for line in function.splitlines():
        line = line.split(" loc(")[0]
        match = _OPERATION.match(line)
        if match is None:
            continue
        result, name, rest = match.groups()
        if name == "tt.load":
            loaded = re.search(r"!tt\.ptr<i(\d+)>", rest)
            if loaded is not None:
                values[result] = _type(int(loaded[1]))
            continue
        if name == "tt.addptr":
            count += 1
            offset = values.get(rest.split(":")[0].split(",")[1].strip())
            assert offset is not None, f"nothing is known of an offset: {line}"
            if offset.wrapped:
                found.append(line.strip())
            continue
        width = _WIDTH.fullmatch(rest.replace("->", ":").split(":")[-1].split(" to ")[-1].strip())
        if width is not None:
            values[result] = _known(name, rest, values, int(width[1]))
        elif "%" in result and re.match(r"scf\.(if|for|while)", name):
            for k in range(16):
                values[f"{result}#{k}"] = _type(64)
    return count, found
