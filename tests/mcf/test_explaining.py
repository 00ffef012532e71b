"""Compare the path that `mcf.explain` reports with the one that a call takes.

Mutants: kernels without a loop (`result is not False` left out) are listed; `source` stops at the
kernel's own function; the bound of a sum is that of another count.
"""

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits


def test_explain_of_a_sum_names_operator_kernels_order_and_bound():
    x = mcf.randn(100)
    found = mcf.explain(torch.sum, x)
    [step] = found.steps
    assert step.operator == "aten.sum.default"
    assert step.where.startswith("mcf/expansions/ops/reductions/reductions.py:")
    assert step.kernels[0].name == "sum_fp32_2_2"
    assert step.bound == mcf.bound("sum", count=100)
    text = str(found)
    assert "merge: merge2  kernels/algorithms/accumulate.py:" in text
    assert "Lanes are halved" in text
    # Called by merge2, not by the kernel itself.
    assert "def two_sum(a, b):" in found.source()


@pytest.mark.parametrize("executor", ["numba", "torch"])
def test_explain_gives_the_bits_of_the_call(executor):
    a = mcf.randn(3, 3)
    with mcf.executor(executor):
        found = mcf.explain(lambda: torch.linalg.solve(a, a.mT + 3))
        expected = torch.linalg.solve(a, a.mT + 3)
    assert_all_same_bits(found.result.components, expected.components)
    kernels = [kernel for step in found.steps for kernel in step.kernels]
    assert {kernel.executor for kernel in kernels} == {executor}
    # The torch executor has no loop for an elimination, and runs elementwise kernels instead.
    assert any(kernel.method == "eliminate" for kernel in kernels) == (executor == "numba")


def test_explain_prints_the_code_for_gpus():
    x = mcf.randn(5)
    found = mcf.explain(torch.mul, x, x)
    assert "tl.program_id(0)" in found.triton()
    assert ".visible .entry" in found.ptx()


def test_explain_of_plain_tensors_names_the_kernels():
    [step] = mcf.explain(mcf.sum, torch.ones(8)).steps
    assert step.operator == "plain tensors"
    assert "sum_fp32_1_2" in [kernel.name for kernel in step.kernels]


def test_explain_of_a_result_is_refused():
    with pytest.raises(TypeError, match=r"function must be callable, got MCFTensor"):
        mcf.explain(mcf.randn(3).sum())
    with pytest.raises(ValueError, match="launches no Triton kernel"):
        mcf.explain(lambda: 1).triton()
