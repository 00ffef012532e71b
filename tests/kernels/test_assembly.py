"""Sequences of PTX in the kernels for NVIDIA GPUs, run on NumPy arrays by what the PTX ISA says.

Each sequence replaces a formula of `mcf.kernels.algorithms`, which every other executor has. No GPU
is needed: the text that the kernel holds is read here, and its results are compared with the
formula's for every code in every place.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton has wheels for Linux only")


from mcf.kernels import registry
from mcf.kernels.algorithms import codes
from mcf.kernels.algorithms.primitives import greater, lesser
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32
from mcf.kernels.triton import code_instructions as device_codes
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor
from tests.kernels import machine_code as code
from tests.kernels.test_codes import reference

Words = np.ndarray[Any, np.dtype[np.uint32]]

# Bits of the fp16 numbers of all codes of OCP's e4m3.
E4M3 = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).half().numpy().view(np.uint16)


def text_of(function: Callable[..., Any]) -> str:
    """Return the text of PTX that a function holds."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    [found] = [t for t in texts if isinstance(t, str) and "$0" in t]
    return found


def halves(low: Words, high: Words) -> Words:
    """Return words made of two halves of 16 bits."""
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


def half(x: Words) -> Any:
    """Return the fp16 numbers in the lower halves of words."""
    return (x & 0xFFFF).astype(np.uint16).view(np.float16)


def products(x: Words, y: Words) -> Words:
    """Multiply the fp16 numbers in both halves of words."""
    return halves(*((half(x >> s) * half(y >> s)).view(np.uint16) for s in (0, 16)))


def prmt(a: Words, b: Words, selectors: Words) -> Words:
    """Take bytes of a (0 to 3) and b (4 to 7) by four selectors of 4 bits.

    The highest bit of a selector asks for eight copies of the byte's highest bit.
    """
    found = np.zeros_like(selectors)
    for place in range(4):
        selector = selectors >> 4 * place & 15
        taken = selector & 7
        byte = np.where(taken < 4, a >> 8 * (taken & 3), b >> 8 * (taken & 3)) & 0xFF
        byte = np.where(selector > 7, np.where(byte > 127, 0xFF, 0), byte)
        found |= byte.astype(np.uint32) << np.uint32(8 * place)
    return found


OPERATIONS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda x: x,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "shl.b32": np.left_shift,
    "shr.u32": np.right_shift,
    "prmt.b32": prmt,
    "cvt.rn.f16x2.e4m3x2": lambda x: halves(E4M3[x & 0xFF], E4M3[x >> 8 & 0xFF]),
    "mul.rn.f16x2": products,
    "cvt.f32.f16": lambda x: half(x).astype(np.float32).view(np.uint32),
}


def emulated(text: str, given: Words, results: int) -> list[Tensor]:
    """Run a sequence of one operand; return its results, float32."""
    values = {f"${results}": given}

    def operand(name: str) -> Words:
        return np.full_like(given, int(name, 0)) if name[0].isdigit() else values[name]

    for line in re.split(r"[;\n]", text.strip("{}")):
        if not line.strip() or line.split()[0] == ".reg":
            continue
        match = re.fullmatch(r"\s*([a-z][\w.]*) (.*)", line)
        assert match, f"not an instruction: {line!r}"
        # A pair in braces is the halves of a word.
        if pair := re.fullmatch(r"\{(\w+), (\w+)\}, (\S+)", match[2]):
            source = operand(pair[3])
            values |= {pair[1]: source & 0xFFFF, pair[2]: source >> 16}
            continue
        target, *operands = match[2].split(", ")
        values[target] = OPERATIONS[match[1]](*map(operand, operands))
    return [torch.from_numpy(values[f"${k}"].view(np.float32)) for k in range(results)]


def words() -> Words:
    """Return words in which each byte has each place, beside others."""
    k = np.arange(1 << 12, dtype=np.uint64)
    mixed = (k * 0x9E3779B97F4A7C15 >> 13).astype(np.uint32)
    place = (8 * (k >> 8 & 3)).astype(np.uint32)
    byte = (k & 0xFF).astype(np.uint32)
    return mixed & ~(np.uint32(0xFF) << place) | byte << place


def test_words_have_every_byte_in_every_place() -> None:
    found = words()
    assert all(len({*(found >> s & 0xFF).tolist()}) == 256 for s in (0, 8, 16, 24))


def test_codes_of_e4m3_are_those_of_the_formula() -> None:
    given = words()
    found = emulated(text_of(device_codes.e4m3_over_4), given, 4)
    for k, numbers in enumerate(found):
        byte = torch.from_numpy((given >> 8 * k & 0xFF).astype(np.float32))
        assert_same_bits(numbers, reference(codes.from_e4m3_over_4)(byte))


def test_pairs_of_4_bits_are_those_of_the_formula() -> None:
    given = words()
    found = emulated(text_of(device_codes.unpack_numbers), given, 8)
    for k, numbers in enumerate(found):
        # The first four results are of the lower halves of bytes, the others of the upper ones.
        shift = 8 * (k & 3) + 4 * (k >> 2)
        half = torch.from_numpy((given >> shift & 0xF).astype(np.float32))
        assert_same_bits(numbers, reference(codes.from_4_bits)(half))


@pytest.mark.parametrize("old", ["0x34302C7E", "0x4C08", "0x5D19", "0x423C3836"])
def test_the_emulation_sees_another_constant(old: str) -> None:
    text = text_of(device_codes.unpack_numbers)
    changed = text.replace(old, hex(int(old, 0) ^ 0x10), 1)
    assert changed != text
    given = words()
    pairs = zip(emulated(text, given, 8), emulated(changed, given, 8), strict=True)
    assert any(not torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs)


def extremes(x, y):
    return lesser(x, y), greater(x, y)


EXTREMES = Elementwise(
    name="extremes",
    function=extremes,
    results=("least", "most"),
    fields=(
        Field("x", FP32),
        Field("y", FP32),
        Field("least", FP32, read=False, written=True),
        Field("most", FP32, read=False, written=True),
    ),
    stores=(("least", "least"), ("most", "most")),
    arithmetic=FP32,
)


def operands() -> tuple[Tensor, Tensor]:
    """Return pairs that `lesser` may have: y is a number, and zeros have one sign."""
    some = [0.0, 2.0**-149, 2.0**-126, 1.0, 1 + 2.0**-23, 3e38, torch.inf]
    y = torch.tensor([*some, *(-s for s in some[1:])])
    x = torch.cat((y, torch.tensor([torch.nan])))
    return x.repeat_interleave(len(y)), y.repeat(len(x))


@on_each_executor
def test_extremes_are_those_of_selects(executor: str) -> None:
    x, y = operands()
    least, most = torch.zeros_like(x), torch.zeros_like(x)
    with registry.executor(executor):
        registry.run(EXTREMES, [[x, y, least, most]], torch.zeros(1, 0, dtype=torch.float64))
    assert_same_bits(least, torch.where(x < y, x, y))
    assert_same_bits(most, torch.where(x > y, x, y))
    # `min.f32` and `max.f32` give the other operand for a NaN, like these.
    assert_same_bits(least, torch.fmin(x, y))
    assert_same_bits(most, torch.fmax(x, y))


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_extremes_are_one_instruction(target: str) -> None:
    ptx = code.compile_kernel(EXTREMES, target).asm["ptx"]
    names = [op for _, op in code.ptx_instructions(ptx)]
    found = {n for n in names if re.match(r"(min|max|setp|selp)\b.*f32", n)}
    # `.NaN` would give NaN, and `.ftz` would flush subnormal numbers.
    assert found == {"min.f32", "max.f32"}
