"""Fused programs on Triton: in its interpreter, and compiled for GPUs that need not be there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from tests.helpers.programs import noted, step_kernels
from tests.helpers.steps import acceleration, bodies, step
from tests.kernels import machine_code as code
from tests.mcf.fusion.test_fused import compiled, expansion, same

SLOW = pytest.mark.slow


def kernels(f: Any, *operands: Any) -> list[Any]:
    """The declarations of a program's kernels on Triton; its results are compared."""
    with noted(run=True) as made:
        found = compiled(f)(*operands)
    same(found, f(*operands))
    return [k.spec for k in made if k is not None]


def test_the_interpreter_has_the_same_bits() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * y - x).sum(-1).sqrt()

    assert len(kernels(f, expansion((2, 2), 1), expansion((2, 2), 2))) == 1


@SLOW
@pytest.mark.parametrize("systems", [0, 35])
def test_the_interpreter_steps_with_the_same_bits(systems: int) -> None:
    """In one kernel; of 35 systems in two blocks of 32."""
    assert len(kernels(step, *bodies(2, torch.float64, systems))) == 1


@SLOW
def test_the_interpreter_has_the_derivatives_bits() -> None:
    """Of the step that keeps what they need, and of them: a kernel each."""
    grads = []
    for run in (False, True):
        x, v = (t.requires_grad_() for t in bodies(2, torch.float64))
        with noted(run) as made:
            results = compiled(step)(x, v) if run else step(x, v)
            torch.autograd.backward(results, [r.detach() for r in results])
        grads.append((x.grad, v.grad))
        assert len(made) == (2 if run else 0)
    same(*grads)


@SLOW
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_step_is_one_kernel_of_registers(target: str) -> None:
    """Which compiles, contracts nothing and spills nothing: 46 numbers at most are alive at once.

    In the order of the recording 98 are, and 136 bytes of them are spilled.
    """
    [spec] = step_kernels(2, torch.float64)
    made = code.compile_kernel(spec, target, many=True)
    fused_operations(made)
    assert code.stack_bytes(made.asm["cubin"]) == 0


def fused_operations(made: code.Compiled) -> None:
    """As many FMAs as LLVM was given, which are those that formulas ask for."""
    wanted = code.llvm_operations(made.asm["llir"])["fma"]
    assert wanted > 0
    assert len(re.findall(r"\bfma\.rn\.f64", made.asm["ptx"])) == wanted
    assert not re.search(r"\.approx|\.ftz", made.asm["ptx"])


@SLOW
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_no_addition_is_contracted(target: str) -> None:
    [spec] = kernels(acceleration, bodies(2, torch.float64)[0])
    fused_operations(code.compile_kernel(spec, target, many=True))
