"""Kernels of formulas: what lets Triton compile long ones in seconds, and fusion and spills.

Triton's pass for wide accesses follows each pointer that an operation made through everything that
is computed with it, again from everything that it meets: minutes for a formula of some thousand
operations. So no pointer of a long kernel is made by an operation, and the formula is there once.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import mcf
from mcf.elementary import fused
from mcf.elementary.tables import table
from mcf.expansions.launch import fused_formulas
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.triton import device_functions, element_kernels, gpu
from mcf.kernels.triton.launching import options
from tests.kernels import machine_code as code
from tests.kernels.address_types import front
from tests.kernels.kernel_checks import check, check_flags
from tests.mcf.expansions.inputs import hard
from tests.mcf.expansions.test_fused_formulas import CALLS, COUNT

pytestmark = pytest.mark.usefixtures("fresh_triton_cache")


TARGET = "sm_90"


def followed(spec: Elementwise, many: bool = False) -> tuple[int, int]:
    """How many accesses a kernel makes, and how many of their pointers an operation makes."""
    chosen = options(code.TARGETS[TARGET], spec.few)
    text = front(code.kernel_source(spec, TARGET, many=many), TARGET, chosen)
    made, pointers = set(), []
    for line in text.splitlines():
        made.update(re.findall(r"^\s*(%[\w.]+)(?::\d+)? = ", line))
        pointers += re.findall(r"tt\.(?:load|store) (%[\w.#]+).*: tensor<\d+x!tt\.ptr", line)
    return len(pointers), sum(p.split("#")[0] in made for p in pointers)


@pytest.mark.parametrize("many", [False, True])
def test_no_operation_makes_a_pointer(many: bool) -> None:
    spec = fused.kernel("exp", FP64, 2)
    assert followed(spec, many) == (4, 0)


def test_the_check_sees_pointers_that_operations_make() -> None:
    """Two paths of a kernel that is not called long."""
    spec = dataclasses.replace(fused.kernel("exp", FP64, 2), long=False)
    assert followed(spec) == (8, 8)


def test_entries_of_tables_are_no_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the first test: entries that are loaded as Triton loads."""
    plain = device_functions._function("gather", "tl.load(table + index)")
    monkeypatch.setattr(device_functions, "_gather_cuda", plain)
    for cached in (element_kernels.build, device_functions.binder):
        cached.cache_clear()
    try:
        accesses, made = followed(fused.kernel("exp", FP64, 2))
    finally:
        for cached in (element_kernels.build, device_functions.binder):
            cached.cache_clear()
    assert accesses > 4
    assert made > 0


@pytest.mark.slow
def test_a_kernel_in_float32_registers() -> None:
    spec = fused.kernel("exp", FP32, 2, register=FP32)
    compiled = code.compile_kernel(spec, TARGET)
    check(compiled, spec)
    names = [op for _, op in code.ptx_instructions(compiled.asm["ptx"])]
    assert not [op for op in names if "f64" in op]


@pytest.mark.parametrize("live", [1, 0])
def test_elements_are_counted_in_each_row(live: int) -> None:
    """Angles that the formula lacks steps for, in the interpreter; none where nothing is live."""
    spec = fused.kernel("sin", FP64, 2)
    tables = [table(f.name, torch.device("cpu")) for f in spec.fields if f.table]
    rows = []
    for n in (5, 0, element_kernels.BLOCK + 3):
        x = [torch.arange(n, dtype=torch.float64) * 2000.0, torch.zeros(n, dtype=torch.float64)]
        rows.append([*(torch.full((n,), 7.0, dtype=torch.float64) for _ in range(2)), *x, *tables])
    none = torch.zeros(3, 0, dtype=torch.float64)
    counted = gpu.EXECUTOR.run(spec, rows, none, torch.tensor(live))
    assert counted is not None
    # All but 0 and 2000.
    assert counted.flatten().tolist() == [live * 3, 0, live * (element_kernels.BLOCK + 1)]
    assert (rows[0][0] == 7).all() != live


@pytest.mark.slow
@pytest.mark.parametrize("target", [t for t in code.TARGETS if t.startswith("sm_")])
@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_formulas_have_no_fusion_and_no_spills(
    dtype: torch.dtype, terms: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_formulas, "_specs", {})
    monkeypatch.setattr(fused_formulas, "_kernels", {})
    x, y = (mcf.MCFTensor(hard(dtype, terms, COUNT, seed)) for seed in (1, 2))
    for call in CALLS.values():
        call(x, y)
    made = fused_formulas._specs.values()
    assert len(made) >= 8
    for spec in made:
        compiled = code.compile_kernel(spec, target)
        assert not check_flags(compiled.asm["llir"]), spec.name
        assert code.stack_bytes(compiled.asm["cubin"]) == 0, spec.name
