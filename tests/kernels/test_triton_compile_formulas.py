"""Formulas of torch as one kernel each, compiled for GPUs that need not be there, and read."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import mcf
from mcf.expansions.launch import fused_formulas
from tests.kernels import machine_code as code
from tests.kernels.kernel_checks import check_flags
from tests.mcf.expansions.inputs import hard
from tests.mcf.expansions.test_fused_formulas import CALLS, COUNT

pytestmark = pytest.mark.usefixtures("fresh_triton_cache")


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
