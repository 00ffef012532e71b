"""Conversions of 8-bit and 4-bit codes by instructions of NVIDIA GPUs.

They compute the same numbers as `algorithms/codes.py`. tests/kernels/test_assembly.py compares each
PTX sequence with its formula, code by code.
"""

from __future__ import annotations

import functools
from typing import Any

import triton.language as tl

from mcf.kernels.algorithms.codes import from_4_bits, from_e4m3_over_4
from mcf.kernels.bind import Algorithm
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.register_rounding import jit


def e4m3_over_4(code):
    """Decode four e4m3 codes per call with the hardware conversion of OCP's e4m3.

    `cvt.rn.f16x2.e4m3x2` converts the lower byte into the lower half of a word and the upper byte
    into the upper half (PTX ISA, "Data Movement and Conversion Instructions: cvt"). Every e4m3
    number and a quarter of it are fp16 numbers: the least quarter is 2**-11, which is normal. So
    all steps are exact. NaN has another payload than in `from_signed`; no product keeps it.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 a, b, x0, x1, x2, x3;
        .reg .b32 low, high, quarter;
        mov.b32 {a, b}, $4;
        cvt.rn.f16x2.e4m3x2 low, a;
        cvt.rn.f16x2.e4m3x2 high, b;
        mov.b32 quarter, 0x34003400;
        mul.rn.f16x2 low, low, quarter;
        mul.rn.f16x2 high, high, quarter;
        mov.b32 {x0, x1}, low;
        mov.b32 {x2, x3}, high;
        cvt.f32.f16 $0, x0;
        cvt.f32.f16 $1, x1;
        cvt.f32.f16 $2, x2;
        cvt.f32.f16 $3, x3;
        }""",
        "=f,=f,=f,=f,r",
        [code.to(tl.int32).to(tl.uint8)],
        tl.float32,
        is_pure=True,
        pack=4,
    )


def unpack_numbers(x, BLOCK: tl.constexpr):
    """Decode eight 4-bit codes per call; see `from_4_bits`.

    The numbers are fp16 numbers with lower bytes of 0. `prmt.b32` looks up their upper bytes in
    tables of eight bytes, four codes at a time (PTX ISA, "Data Movement and Conversion
    Instructions: prmt"). For a code of 8 or more it returns eight copies of the byte's highest bit,
    which is 0 in each table. So the first table serves codes 0 to 7, and the second serves codes 8
    to 15 with the highest bit flipped; its entry for code 8 is NaN. The two results are combined
    with a bitwise or. Then the bytes of codes k and k + 4 go to the halves of a word, and the sign
    bits of the codes are shifted to bits 15 and 31.
    """
    low, high = tl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, a, b, c, d, p, s;
        .reg .b16 l, h;
        mov.b32 x, $8;
        xor.b32 y, x, 0x88888888;
        prmt.b32 a, 0x34302C00, 0x423C3836, x;
        prmt.b32 c, 0x34302C7E, 0x423C3836, y;
        or.b32 a, a, c;
        shr.u32 s, x, 16;
        prmt.b32 b, 0x34302C00, 0x423C3836, s;
        shr.u32 s, y, 16;
        prmt.b32 d, 0x34302C7E, 0x423C3836, s;
        or.b32 b, b, d;
        prmt.b32 p, a, b, 0x4C08;
        shl.b32 s, x, 12;
        and.b32 s, s, 0x80008000;
        or.b32 p, p, s;
        mov.b32 {l, h}, p;
        cvt.f32.f16 $0, l;
        cvt.f32.f16 $2, h;
        prmt.b32 p, a, b, 0x5D19;
        shl.b32 s, x, 8;
        and.b32 s, s, 0x80008000;
        or.b32 p, p, s;
        mov.b32 {l, h}, p;
        cvt.f32.f16 $4, l;
        cvt.f32.f16 $6, h;
        prmt.b32 p, a, b, 0x6E2A;
        shl.b32 s, x, 4;
        and.b32 s, s, 0x80008000;
        or.b32 p, p, s;
        mov.b32 {l, h}, p;
        cvt.f32.f16 $1, l;
        cvt.f32.f16 $3, h;
        prmt.b32 p, a, b, 0x7F3B;
        and.b32 s, x, 0x80008000;
        or.b32 p, p, s;
        mov.b32 {l, h}, p;
        cvt.f32.f16 $5, l;
        cvt.f32.f16 $7, h;
        }""",
        "=f,=f,=f,=f,=f,=f,=f,=f,r",
        [x],
        (tl.float32, tl.float32),
        is_pure=True,
        pack=4,
    )
    return tl.reshape(tl.join(low, high), (BLOCK,))


def _same(number):
    return number


@functools.cache
def own(dialect: Dialect) -> dict[Algorithm, Any]:
    """Return the device functions that replace some algorithms, with the same bits."""
    return {from_e4m3_over_4: jit(e4m3_over_4)} if dialect is Dialect.CUDA_89 else {}


@functools.cache
def loaded_as_numbers() -> dict[Algorithm, Any]:
    """Return the decoder of `unpack_numbers` results, which are numbers already: the identity."""
    return {from_4_bits: jit(_same)}
