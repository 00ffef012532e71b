"""The device functions of `mcf.kernels.triton` inside a user's own kernels, compiled and read.

That they compute the right bits is tested in test_triton_device.py.
"""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import triton
import triton.language as tl
from triton.compiler import ASTSource

from mcf.kernels.triton import add, bf16, fp16, mul, scale, two_prod, two_sum
from tests.kernels import machine_code as code

pytestmark = pytest.mark.usefixtures("fresh_triton_cache")


@triton.jit
def transforms_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    s, e = two_sum(x, y)
    p, f = two_prod(x, y)
    tl.store(out_ptr + i, s)
    tl.store(out_ptr + BLOCK + i, e)
    tl.store(out_ptr + 2 * BLOCK + i, p)
    tl.store(out_ptr + 3 * BLOCK + i, f)


@triton.jit
def expansions_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    hi, lo = mul(x, 0.0, tl.load(y_ptr + i), 0.0)
    hi, lo = scale(hi, lo, x)
    tl.store(out_ptr + i, hi)
    tl.store(out_ptr + BLOCK + i, lo)


@triton.jit
def constants_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    hi, lo = add(tl.load(x_ptr + i), 0.0, tl.load(y_ptr + i), 0.0)
    tl.store(out_ptr + i, hi)
    tl.store(out_ptr + BLOCK + i, lo)


@triton.jit
def kernel_of_16_bits(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    kind = out_ptr.dtype.element_ty
    i = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i).to(tl.float32), tl.load(y_ptr + i).to(tl.float32)
    if kind == tl.bfloat16:
        s, e = bf16.two_sum(x, y)
    else:
        s, e = fp16.two_sum(x, y)
    tl.store(out_ptr + i, s.to(kind))
    tl.store(out_ptr + BLOCK + i, e.to(kind))


@triton.jit
def scalar_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    s, e = bf16.two_sum(tl.load(x_ptr).to(tl.float32), tl.load(y_ptr).to(tl.float32))
    tl.store(out_ptr, s.to(tl.bfloat16))
    tl.store(out_ptr + 1, e.to(tl.bfloat16))


def compiled(
    kernel: Any, pointer: str, target: str, block: int, *, fusion: bool = False
) -> code.Compiled:
    source = ASTSource(
        fn=kernel,
        signature={"x_ptr": pointer, "y_ptr": pointer, "out_ptr": pointer, "BLOCK": "constexpr"},
        constexprs={"BLOCK": block},
        attrs={(k,): [["tt.divisibility", 16]] for k in range(3)},
    )
    # The default is to fuse.
    chosen = {"num_warps": 4} | ({} if fusion else {"enable_fp_fusion": False})
    return code.compile_source(source, target, chosen)


def opcodes(kernel: Any, pointer: str, target: str, block: int) -> collections.Counter[str]:
    """How often each kind of arithmetic is in a user's kernel."""
    ptx = compiled(kernel, pointer, target, block).asm["ptx"]
    names = [op for _, op in code.ptx_instructions(ptx)]
    kinds: collections.Counter[str] = collections.Counter()
    register = "64" if pointer == "*fp64" else "32"
    for name in names:
        if re.search(rf"\.f(16|{register})(x2)?$", name):
            kinds[name.split(".")[0]] += 2 if name.endswith("x2") else 1
    kinds["conversions"] = sum(n.startswith("cvt.rn.bf16x2.f32") for n in names)
    return kinds


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("pointer", ["*fp32", "*fp64"])
@pytest.mark.parametrize("block", [128, 1024])
def test_transforms(pointer: str, target: str, block: int) -> None:
    """Six additions for TwoSum; a product and an FMA for TwoProd."""
    found = opcodes(transforms_kernel, pointer, target, block)
    per_thread = block // 128
    assert found["add"] + found["sub"] == 6 * per_thread
    assert found["mul"] == found["fma"] == per_thread


@pytest.mark.parametrize("pointer", ["*fp32", "*fp64"])
def test_constant_components(pointer: str) -> None:
    """A constant for a component, and an operation that has none but constants."""
    found = opcodes(expansions_kernel, pointer, "sm_90", 1024)
    assert found["fma"] == 2 * 8
    assert found["mul"] >= 4 * 8
    found = opcodes(constants_kernel, pointer, "sm_90", 1024)
    assert found["add"] + found["sub"] >= 6 * 8


@pytest.mark.slow
def test_fusion_left_on_changes_a_users_kernel() -> None:
    """Why the package's docstring asks for `enable_fp_fusion=False`."""
    careful = compiled(expansions_kernel, "*fp32", "sm_90", 1024).asm["cubin"]
    careless = compiled(expansions_kernel, "*fp32", "sm_90", 1024, fusion=True).asm["cubin"]
    assert code.sass_contractions(careful) == 2 * 8
    assert code.sass_contractions(careless) > 2 * 8


@pytest.mark.parametrize(
    ("kernel", "pointer", "block"),
    [
        (kernel_of_16_bits, "*bf16", 1024),
        (kernel_of_16_bits, "*bf16", 128),
        (kernel_of_16_bits, "*fp16", 1024),
        (scalar_kernel, "*bf16", 128),
    ],
)
def test_numbers_of_16_bits(kernel: Any, pointer: str, block: int) -> None:
    """Two elements share a conversion to bf16; a thread with a single one converts that."""
    found = opcodes(kernel, pointer, "sm_90", block)
    per_thread = block // 128
    assert found["add"] + found["sub"] == 6 * per_thread
    if pointer == "*bf16":
        assert found["conversions"] >= max(1, per_thread // 2)
