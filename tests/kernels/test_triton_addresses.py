"""No offset of a Triton kernel passes through 32 bits where it could leave them.

*Exact*: intervals of all integers in Triton's IR (tests/kernels/address_types.py), and launches
whose results lie beyond 2**31 elements, in memory that is reserved and not there. Mutants: the
products of sizes as they were in 32 bits.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import LANES, Fold, product_fold, sum_fold
from mcf.kernels.formats import BF16, FP64
from mcf.kernels.triton import element_kernels
from mcf.kernels.triton import fold_kernels as fold
from mcf.kernels.triton.launching import options
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.kernels import machine_code as code
from tests.kernels.address_types import front, narrow_offsets
from tests.kernels.kernel_table import all_kernels
from tests.kernels.test_triton_compile_fold import source

KERNELS = all_kernels()
# One of each kind of text: plain, sums, random numbers, codes, few elements, one element for all,
# 64-bit registers.
EVERYDAY = (
    "adamw_plus_bf16_wide",
    "adamw_master_bf16_wide_metrics",
    "adamw_stochastic_bf16_wide",
    "adamw_8bit_bf16_wide",
    "adamw_4bit_bf16_wide",
    "coefficients_adam",
    "expansion_fma_222_fp64_one_y",
)
TARGET = "sm_90"


def elementwise_problems(spec: Elementwise) -> list[str]:
    problems = []
    for many in (False, True):
        chosen = options(code.TARGETS[TARGET], spec.few)
        text = front(code.kernel_source(spec, TARGET, many=many), TARGET, chosen)
        count, found = narrow_offsets(text)
        # Of a table's start nothing is an offset.
        assert count >= sum(not field.table for field in spec.fields)
        problems += found
    return problems


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "name",
    everyday(KERNELS, EVERYDAY),
)
def test_offsets_of_elementwise_kernels(name: str) -> None:
    assert not elementwise_problems(KERNELS[name])


FOLDS = [
    (spec, kind)
    for spec, kinds in (
        (sum_fold(BF16, 2, 2), ("sum", "halving")),
        (sum_fold(FP64, 4, 4), ("sum", "halving")),
        (product_fold(BF16, 2, 2, 2), ("sum", "product")),
        (product_fold(FP64, 4, 4, 4), ("sum", "product", "halving")),
    )
    for kind in kinds
]


def fold_problems(spec: Fold, kind: str) -> list[str]:
    chosen = options(code.TARGETS[TARGET])
    count, found = narrow_offsets(front(source(spec, kind, TARGET), TARGET, chosen))
    assert count >= spec.state
    return found


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("spec", "kind"), FOLDS, ids=lambda x: getattr(x, "name", x))
def test_offsets_of_folds(spec: Fold, kind: str) -> None:
    assert not fold_problems(spec, kind)


def changed(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str) -> None:
    """Let a function that makes a kernel's text make another one."""
    make: Callable[..., str] = getattr(module, name)

    def mutant(*arguments: Any) -> str:
        text = make(*arguments)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(module, name, mutant)


MUTANTS = {
    "sum": ("sum_source", "((item * 0 + 1) * kept + j)", "(1 * LANES + j)"),
    "product": ("product_source", "(item * 0 + 3)", "3"),
    "halving": ("halving_source", "(none + 3)", "3"),
}


@pytest.mark.parametrize("kind", MUTANTS)
def test_products_in_32_bits_are_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fold.build.cache_clear()
    changed(monkeypatch, fold, *MUTANTS[kind])
    spec = product_fold(FP64, 4, 4, 4)
    assert fold_problems(spec, kind)
    fold.build.cache_clear()


def test_a_blocks_sums_in_32_bits_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    element_kernels.build.cache_clear()
    old = "tl.program_id(0).to(tl.int64) * "
    for name in ("source", "many_source"):
        changed(
            monkeypatch,
            element_kernels,
            name,
            f"sums_ptr + {old}",
            "sums_ptr + tl.program_id(0) * ",
        )
    assert elementwise_problems(KERNELS["adamw_master_bf16_wide_metrics"])
    element_kernels.build.cache_clear()


def reserved(count: int) -> torch.Tensor:
    """Float64 zeros of which only those pages exist that are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = mmap.mmap(-1, 8 * count, flags=flags)
    except OSError as error:
        pytest.skip(f"no address space of {8 * count >> 30} GiB here: {error}")
    return torch.frombuffer(memory, dtype=torch.float64)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reserves memory as Linux does")


@linux
def test_partial_sums_of_many_rows() -> None:
    """Row 0 of so many that its last lanes lie 2**31 elements from the first."""
    spec, items = sum_fold(FP64, 2, 2), 4_300_000
    out = reserved(spec.state * LANES * items)
    x = [torch.arange(LANES, dtype=torch.float64) * s for s in (1.0, 2.0**-60)]
    fold.launch_kernel(spec, "sum", 1, *x, out, 0, LANES, 1, items, LANES)
    for k in range(spec.state):
        found = out[k * LANES * items : (k + 1) * LANES * items : items]
        assert_same_bits(found, x[k], f"state {k}")


@pytest.mark.slow
@linux
def test_results_of_large_products() -> None:
    spec, stride = product_fold(FP64, 1, 1, 4), 2**30
    assert spec.state == 4
    out = reserved(3 * stride + fold.COLUMNS)
    row = torch.arange(1, 1 + fold.COLUMNS, dtype=torch.float64)
    left = torch.full((1, 1), 1 + 2.0**-40, dtype=torch.float64)
    right = (row * (1 + 2.0**-40)).reshape(1, -1)
    fold.launch_kernel(spec, "product", 1, left, right, out, 1, 1, fold.COLUMNS, stride, 1, 1)
    exact = registry.product(spec, [left[None]], [right[None]])[:, 0, 0]
    for k in range(spec.state):
        assert_same_bits(out[k * stride : k * stride + fold.COLUMNS], exact[k], f"state {k}")


@linux
def test_halving_of_large_planes() -> None:
    spec, found = sum_fold(FP64, 4, 4), []
    for plane in (2, 2**30):
        state = reserved(3 * plane + 2)
        for k in range(4):
            state[k * plane : k * plane + 2] = torch.tensor([1.0, 2.0]) * 2.0 ** (-60 * k)
        fold.launch_kernel(spec, "halving", 1, state, plane, 1, 1)
        found.append([state[k * plane].item() for k in range(4)])
    assert found[0][:2] == [3.0, 3 * 2.0**-60]
    assert found[1] == found[0]


@pytest.mark.parametrize("width", [3, LANES + 5])
def test_rows_are_folded_in_parts(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sum_fold(FP64, 2, 2)
    x = [torch.arange(7.0 * width, dtype=torch.float64).reshape(7, -1) / 3 * s for s in (1, 2**-60)]
    whole = fold.fold(spec, [x])
    monkeypatch.setattr(fold, "PARTIAL", 3 * spec.state * min(width, LANES))
    sizes = []
    launch = fold.launch_kernel

    def watched(spec: Fold, kind: str, programs: int, *arguments: Any) -> None:
        sizes.extend([programs] * (kind == "sum"))
        launch(spec, kind, programs, *arguments)

    monkeypatch.setattr(fold, "launch_kernel", watched)
    assert_same_bits(fold.fold(spec, [x]), whole, "rows")
    assert sizes == [3, 3, 1]
