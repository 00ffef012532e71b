"""Every Triton kernel the library can make, compiled for GPUs that need not be there, and read.

A kernel passes (tests/kernels/kernel_checks.py) when PTX, AMD assembly and NVIDIA machine code hold

- exactly the FMAs that its formula asks for: none but those of `fms` in float32 and float64,
- correctly rounded divisions and square roots, as many as asked for, and nothing approximate,
- no flushing of subnormal numbers and, for bf16, no arithmetic narrowed to bf16,
- loads and stores of 16 bytes for a full block, as many as its tensors need,
- 64-bit offsets, and nothing spilled to memory.

By default a part of the table runs (EVERYDAY), a sample of it is slow, all of it nightly. That
each check can fail is shown in test_triton_compile_mutants.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from typing import Any

import pytest
import torch

import mcf.optim
from mcf.kernels import operators
from mcf.kernels.formats import BF16, FORMATS, FP16, Format

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from mcf.kernels.triton import dialect, gpu
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.element_kernels import BLOCK
from mcf.optim.step import opaque_operator
from tests.helpers.everyday import everyday
from tests.kernels import machine_code as code
from tests.kernels.kernel_checks import check
from tests.kernels.kernel_table import all_kernels
from tests.optim.variants import RECENT_RULES, VARIANTS

pytestmark = pytest.mark.usefixtures("fresh_triton_cache")


KERNELS = all_kernels()

# Kernels that run by default, as patterns of names: what is most likely to compile differently on
# another target, and on one target those of bf16 and one of each other kind. Of the targets of one
# compiler the others take a part each: the oldest, which has no arithmetic in bf16, what is rounded
# to it, the newest the formats whose products it fuses. AMD's compiler is another and takes all.
_OLD = (
    "scale_fp32",
    "adamw_plus_bf16_strict",
    "expansion_div_22_bf16",
    "coefficients_rectification",
)
_NEW = (
    "adamw_8bit_bf16_wide",
    "adamw_4bit_bf16_wide",
    "mul_fp16",
    "adamw_master_bf16_wide_metrics",
    "adamw_plain_fp64_wide",
    "sgd_nesterov_light_fp16_strict",
    "expansion_mul_22_fp32",
)
_HARD = (*_OLD, *_NEW, "adamw_plus_bf16_wide", "expansion_complex_mul_2222_fp64")
EVERYDAY = {
    "sm_80": ("scale_fp32", "adamw_plus_bf16_strict", "coefficients_rectification"),
    "sm_90": (
        *_HARD,
        r"(two_sum|two_prod|grow|scale|renormalize)_bf16",
        "two_prod_fp64",
        "split_fp32",
        # The other storages are loaded and stored as one of these is; stochastic ones are below.
        "adamw_split8_bf16_wide",
        "adamax_plus_bf16_wide",
        "lion_light_bf16_wide",
        "muon_nesterov_float32_float32_bf16_wide",
        "expansion_fma_222_fp64_one_y",
        "expansion_(sqrt|compare)_2+_fp16",
        "expansion_lt_22_fp32",
        "expansion_mul_4+_fp64",
        "expansion_renormalize_4to2_fp32",
    ),
    "sm_100": ("mul_fp16", "adamw_master_bf16_wide_metrics", "expansion_mul_22_fp32"),
    # Its strict kernels are those of fp16: rounding is the same function.
    "gfx942": (*(name for name in _HARD if name != "adamw_plus_bf16_strict"),),
}


CASES = everyday(
    [(name, target) for target in code.TARGETS for name in KERNELS],
    lambda name, target: any(re.fullmatch(wanted, name) for wanted in EVERYDAY[target]),
    id=lambda name, target: f"{name}-{target}",
)


# A second or more each: of the slow ones one in thirteen, each third kernel for one target.
@pytest.mark.sampled(every=40, slow=13)
@pytest.mark.parametrize(("name", "target"), CASES)
def test_kernel(name: str, target: str) -> None:
    check(code.compile_kernel(KERNELS[name], target), KERNELS[name])


# One with two of each kind of pointer, one with sums, one with random numbers.
MANY = ("adamw_plus_bf16_wide", "adamw_master_bf16_wide_metrics", "adamw_stochastic_bf16_wide")


# By default all of them for one target, and one for each of the others.
_OTHERS = dict(zip(("sm_80", "sm_100", "gfx942"), MANY, strict=True))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("name", "target"),
    everyday(itertools.product(MANY, code.TARGETS), lambda n, t: _OTHERS.get(t, n) == n),
)
def test_kernel_of_many_tensors(name: str, target: str) -> None:
    """Pointers out of a table lose no width of access, and the formula is the same."""
    spec = KERNELS[name]
    check(code.compile_kernel(spec, target, many=True), spec)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_many_unaligned_tensors(target: str) -> None:
    """The mutant of the test above: without the alignment's hint no access is wide."""
    spec = KERNELS[MANY[0]]
    with pytest.raises(AssertionError, match="16"):
        check(code.compile_kernel(spec, target, many=True, aligned=False), spec)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_what_optimizers_run_is_in_the_table(dtype: torch.dtype) -> None:
    p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    p.grad = torch.ones_like(p)
    makers = [functools.partial(v.make, **v.options) for v in [*VARIANTS, *RECENT_RULES]]
    # Kernels are made once; those of the table were made when it was.
    before = set(opaque_operator._kernels)
    steps = 0
    for make, precision, compute_dtype, track in itertools.product(
        makers, mcf.optim.PRECISIONS, {torch.float32, dtype}, (False, True)
    ):
        try:
            options = {"compute_dtype": compute_dtype, "track_metrics": track}
            optimizer = make([p], precision=precision, **options)
        except ValueError:
            # A combination that the library refuses.
            continue
        with mcf.executor("torch"):
            optimizer.step()
        steps += 1
    assert steps >= 2 * len(makers)
    assert set(opaque_operator._kernels) == before


@pytest.mark.parametrize("target", code.TARGETS)
def test_every_pattern_selects_a_kernel(target: str) -> None:
    for pattern in EVERYDAY[target]:
        assert any(re.fullmatch(pattern, name) for name in KERNELS), pattern


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("target", code.TARGETS)
def test_a_launch_compiles_what_is_tested(
    target: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher passes the options that the compilations above use; fusion is off."""
    launches = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **options: launches.append((grid, arguments, options))

    made = []
    monkeypatch.setattr(
        gpu, "build", lambda *what, many=False: made.append((*what, many)) or Recorder()
    )
    monkeypatch.setattr(gpu, "to_device", lambda t, device: t)
    monkeypatch.setattr(dialect, "_target", lambda index: code.TARGETS[target])
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    spec = KERNELS["two_sum_bf16"]
    sizes = (0, BLOCK + 1, 1) if many else (BLOCK + 1,)
    rows = [[torch.empty(n, dtype=torch.bfloat16, device="meta")] * 4 for n in sizes]
    gpu.EXECUTOR.run(spec, rows, torch.zeros(len(rows), 0, dtype=torch.float64))
    assert made == [(spec, Dialect.of(code.TARGETS[target]), many)]
    [(grid, arguments, options)] = launches
    assert grid == (3 if many else 2,)
    assert many or arguments[-1] == BLOCK + 1
    # Scalars have the type that the kernel is compiled for.
    assert (arguments[4] if many else arguments[-3]).dtype == spec.register.dtype
    used = code.compile_kernel(spec, target, many=many).options
    assert options == {**({"ALIGNMENT": 16} if many else {}), **used}
    assert options["enable_fp_fusion"] is False


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    "name", ["mul_bf16", "grow_fp64", "adamw_master_bf16_wide", "adamw_4bit_bf16_wide"]
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_unaligned_tensors_are_read_by_single_elements(name: str, target: str) -> None:
    """A tensor may start anywhere in its storage, where a 16-byte access would fault."""
    spec = KERNELS[name]
    compiled = code.compile_kernel(spec, target, aligned=False)
    widest = max(f.format.dtype.itemsize for f in spec.fields if f.format.dtype)
    if "ptx" in compiled.asm:
        names = [op for _, op in code.ptx_instructions(compiled.asm["ptx"])]
        wide = [n for n in names if re.match(r"(ld|st)\.global\..*v[248]\.", n)]
    else:
        names = [op for op, _ in code.amd_instructions(compiled.asm["amdgcn"])]
        allowed = {2: "ushort|short", 4: "ushort|short|dword", 8: "dwordx2"}[widest]
        accesses = [n for n in names if re.match(r"(global|buffer)_(load|store)_", n)]
        single = rf"\w+_(load|store)_(u?byte|{allowed})(_d16_hi)?"
        wide = [n for n in accesses if not re.fullmatch(single, n)]
    assert names
    assert not wide


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "target"),
    [(BF16, "sm_90"), (FP16, "gfx942")],
    ids=lambda c: getattr(c, "name", c),
)
def test_zeros_of_absent_components_are_multiplied(fmt: Format, target: str) -> None:
    """Factors that lack the same components; the counts above are of kernels that lack none."""
    assert code.compile_kernel(operators.kernel(operators.FMA, fmt, 1, 1, 4), target).asm


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_more_than_2_31_elements(target: str) -> None:
    """From there on Triton passes the number of elements in 64 bits, to a kernel of its own."""
    spec = KERNELS["adamw_plus_bf16_wide"]
    check(code.compile_kernel(spec, target, size="i64"), spec)


# Machine instructions of a kernel for sm_90 by element, both of its paths and the slow branches of
# roots and quotients included; rounded up by 3 %. Before codes of few bits had instructions of
# their own they were 308 for "8bit" and 351 for "4bit".
INSTRUCTIONS = {
    "adamw_plain_bf16_wide": 154,
    "adamw_bf16_sr_bf16_wide": 216,
    "adamw_8bit_bf16_wide": 278,
    "adamw_4bit_bf16_wide": 305,
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_steps_keep_to_a_budget_of_instructions(name: str) -> None:
    spec = KERNELS[name]
    cubin = code.compile_kernel(spec, "sm_90", many=True).asm["cubin"]
    found = len(code.sass_instructions(cubin)) / code.elements(spec)
    assert found <= INSTRUCTIONS[name]
    # So four blocks of 128 threads share the 65,536 registers of a multiprocessor.
    assert code.registers(cubin) <= 128
    assert code.stack_bytes(cubin) == 0
