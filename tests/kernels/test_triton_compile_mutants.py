"""The checks of test_triton_compile.py fail on kernels that are wrong on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mcf.kernels.elementwise import Elementwise

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import triton.language as tl

from mcf.kernels.formats import BF16, FP16, Format
from mcf.kernels.triton import device_functions, element_kernels, register_rounding
from mcf.kernels.triton.dialect import Dialect
from tests.kernels import machine_code as code
from tests.kernels.kernel_checks import check, check_ptx
from tests.kernels.kernel_table import all_kernels

pytestmark = pytest.mark.usefixtures("fresh_triton_cache")


KERNELS = all_kernels()


Patch = Callable[[Any, str, Any], None]


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patch]:
    """Replace something that kernels are made of, and forget the kernels made before and after."""

    def forget() -> None:
        for cached in (element_kernels.build, device_functions.binder, register_rounding.storage):
            cached.cache_clear()

    def replace(module: Any, name: str, value: Any) -> None:
        forget()
        monkeypatch.setattr(module, name, value)

    yield replace
    forget()


def rejected(spec: Elementwise, target: str, message: str, **compilation: Any) -> None:
    """The checks refuse a kernel, among others for a reason that the pattern finds."""
    compiled = code.compile_kernel(spec, target, **compilation)
    with pytest.raises(AssertionError, match=message):
        check(compiled, spec)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("scale_bf16", "sm_80"),
        *(("adamw_plus_bf16_wide", target) for target in code.TARGETS),
        ("mul_fp32", "sm_90"),
        ("scale_bf16", "sm_100"),
        ("adamw_plain_fp64_wide", "gfx942"),
    ],
)
def test_fusion_left_at_its_default(name: str, target: str) -> None:
    where = "the assembly" if target == "gfx942" else "machine code"
    rejected(KERNELS[name], target, f"FMAs in {where}: ", enable_fp_fusion=None)


def unrounded_product(a, b, c):
    return a * b - c


def test_a_missing_fma(mutate: Patch) -> None:
    mutate(device_functions, "_fms_fma", unrounded_product)
    rejected(KERNELS["two_prod_fp32"], "sm_90", "FMAs in machine code: 0 where 16 is expected")


def mutate_expression(mutate: Patch, target: str, name: str, expression: str) -> None:
    """Replace a primitive of float32 registers by an expression."""
    short = "_SHORT_EXPRESSIONS" if target == "gfx942" else "_NVIDIA_SHORT_EXPRESSIONS"
    table = "_EXPRESSIONS" if name == "neg" else short
    mutate(device_functions, table, getattr(device_functions, table) | {name: expression})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expression", "target"),
    [
        *(("div", "a / b", target) for target in ("sm_80", "sm_90", "gfx942")),
        *(("sqrt", "tl.sqrt(x)", target) for target in ("sm_90", "gfx942")),
    ],
)
def test_vague_operations(mutate: Patch, name: str, expression: str, target: str) -> None:
    """Triton's own division and root of float32."""
    mutate_expression(mutate, target, name, expression)
    found = f"imprecise operation in Triton's IR: .*{name}"
    rejected(KERNELS["adamw_plain_bf16_wide"], target, found)


@pytest.mark.slow
def test_approximate_division_in_ptx(mutate: Patch) -> None:
    mutate_expression(mutate, "sm_90", "div", "a / b")
    found = "approximate or flushing instructions in PTX: {'div.full.f32': 16}"
    rejected(KERNELS["adamw_plain_bf16_wide"], "sm_90", found)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_another_approximation(mutate: Patch, target: str) -> None:
    mutate_expression(mutate, target, "neg", "tl.exp(x)")
    where = "the assembly" if target == "gfx942" else "machine code"
    rejected(KERNELS["sgd_plain_bf16_wide"], target, f"approximations in {where}")


@pytest.mark.slow
def test_negation_that_loses_the_sign_of_zero(mutate: Patch) -> None:
    # Triton computed -x itself so before 3.8.
    mutate_expression(mutate, "sm_90", "neg", "0.0 - x")
    rejected(KERNELS["adamw_light_bf16_wide"], "sm_90", "0 - x")


def without(mutate: Patch, opaque: tuple[Dialect, Format]) -> None:
    """Round by a plain cast, which LLVM sees through."""
    left = {k: v for k, v in register_rounding._OPAQUE_ROUNDINGS.items() if k != opaque}
    mutate(register_rounding, "_OPAQUE_ROUNDINGS", left)
    mutate(register_rounding, "_ROUNDINGS", {**register_rounding._ROUNDINGS, BF16: cast_to_bf16})


def cast_to_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_rounding_that_llvm_narrows(mutate: Patch, target: str) -> None:
    without(mutate, (Dialect.CUDA_89, BF16))
    rejected(KERNELS["scale_bf16"], target, "narrowed to bf16")


def test_narrowed_fp16_on_amd(mutate: Patch) -> None:
    without(mutate, (Dialect.HIP, FP16))
    rejected(KERNELS["mul_fp16"], "gfx942", "narrowed to fp16")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_narrow_loads(target: str) -> None:
    rejected(KERNELS["mul_bf16"], target, "16-byte loads in .*: 0 where 4", aligned=False)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_spills(target: str) -> None:
    spec = KERNELS["adamw_master_bf16_wide"]
    rejected(spec, target, "bytes of stack: .* where 0", maxnreg=40)


def test_32_bit_offsets(mutate: Patch) -> None:
    source = element_kernels.source
    mutate(element_kernels, "source", lambda spec: source(spec).replace(".to(tl.int64)", "", 1))
    rejected(KERNELS["mul_bf16"], "sm_90", "types of offsets")


@pytest.mark.slow
def test_a_block_start_in_32_bits(mutate: Patch) -> None:
    source = element_kernels.source
    late = "start = (tl.program_id(0) * BLOCK).to(tl.int64)"
    early = "start = tl.program_id(0).to(tl.int64) * BLOCK"
    mutate(element_kernels, "source", lambda spec: source(spec).replace(early, late))
    rejected(KERNELS["mul_bf16"], "sm_90", "32-bit uses of the block's number: 1 where 0")


@pytest.fixture(scope="module")
def ptx() -> str:
    text: str = code.compile_kernel(KERNELS["adamw_plus_bf16_wide"], "sm_90").asm["ptx"]
    return text


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"add\.rn\.f32", "add.f32", "without a rounding"),
        (r"mul\.rn\.f32", "mul.rn.ftz.f32", "flushing"),
        (r"div\.rn\.f32", "div.full.f32", "approximate"),
        (r"sqrt\.rn\.f32", "sqrt.approx.f32", "approximate"),
        (r"div\.rn\.f32", "add.rn.f32", "div instructions in PTX: 0 where 16"),
        (r"add\.rn\.f32", "fma.rn.f32", "fma instructions in PTX: .* where 0"),
        (r"ld\.global\.v4", "ld.global.v2", "16-byte loads of a full block in PTX: 0 where 6"),
        (r"st\.global\.v4", "st.local.v4", "local memory"),
    ],
)
def test_ptx(pattern: str, replacement: str, message: str, ptx: str) -> None:
    spec = KERNELS["adamw_plus_bf16_wide"]
    assert not check_ptx(ptx, spec)
    problems = check_ptx(re.sub(pattern, replacement, ptx), spec)
    assert any(re.search(message, p) for p in problems), problems
