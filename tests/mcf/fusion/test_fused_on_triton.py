"""Fused programs on Triton: in its interpreter, and compiled for GPUs that need not be there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import mcf
from tests.helpers.steps import acceleration, bodies, step
from tests.kernels import machine_code as code
from tests.mcf.fusion.test_fused import compiled, expansion, same

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()


def kernels(f: Any, *operands: Any) -> list[Any]:
    """The declarations of a program's kernels on Triton; its results are compared."""
    from mcf.fusion import graphs

    made: list[Any] = []
    kernel_of = graphs.kernel_of

    def noted(*arguments: Any) -> Any:
        made.append(kernel_of(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch, mcf.executor("triton"):
        patch.setattr(graphs, "kernel_of", noted)
        found = compiled(f)(*operands)
    same(found, f(*operands))
    return [k.spec for k in made if k is not None]


def test_the_interpreter_has_the_same_bits() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * y - x).sum(-1).sqrt()

    assert len(kernels(f, expansion((2, 2), 1), expansion((2, 2), 2))) == 1


@SLOW
def test_the_interpreter_steps_with_the_same_bits() -> None:
    assert len(kernels(step, *bodies(2, torch.float64))) == 6


@SLOW
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_no_addition_is_contracted(target: str) -> None:
    """As many FMAs as LLVM was given, which are those that formulas ask for."""
    [spec, *_] = kernels(acceleration, bodies(2, torch.float64)[0])
    made = code.compile_kernel(spec, target, many=True)
    wanted = code.llvm_operations(made.asm["llir"])["fma"]
    assert wanted > 0
    assert len(re.findall(r"\bfma\.rn\.f64", made.asm["ptx"])) == wanted
    assert not re.search(r"\.approx|\.ftz", made.asm["ptx"])
