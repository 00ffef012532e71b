"""The algorithms inside a user's own Triton kernel (tests/kernels/user_kernels.py).

In Triton's interpreter, which TRITON_INTERPRET switches on for a whole process; so the kernels run
in one of their own. With a GPU they are compiled as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64
from tests.helpers import assert_same_bits, integers
from tests.helpers.adversarial import Draw

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = Path(__file__).with_name("user_kernels.py")
FORMATS = {f.name: f for f in (BF16, FP16, FP32, FP64)}
# The order in which the kernels store.
CALLS = {
    "two_sum": lambda x, y: mcf.two_sum(x[0], y[0]),
    "fast_two_sum": lambda x, y: mcf.fast_two_sum(*x),
    "two_prod": lambda x, y: mcf.two_prod(x[0], y[0]),
    "grow": lambda x, y: mcf.grow(x, y[0]),
    "scale": lambda x, y: mcf.scale(x, y[0]),
    "add": mcf.add,
    "mul": mcf.mul,
    "renormalize": lambda x, y: mcf.renormalize((x[1], y[0])),
}


def inputs() -> dict[str, list[Tensor]]:
    """Expansions in the middle of the range; the interpreter's own bf16 loads lose subnormals."""
    found = {}
    for name, fmt in FORMATS.items():
        draw = Draw(fmt, seed=6)
        reach = 2 if fmt is FP16 else 20
        x, y = (draw.numbers(draw.exponents(700, -reach, reach)) for _ in range(2))
        found[name] = [draw.tensor(t) for t in (x, draw.low(x), y, draw.low(y))]
    return found


def run_script(folder: Path, given: dict[str, list[Tensor]], **environment: str):
    torch.save(given, folder / "inputs.pt")
    command = [sys.executable, str(SCRIPT), str(folder / "inputs.pt"), str(folder / "results.pt")]
    run = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return torch.load(folder / "results.pt")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return run_script(tmp_path_factory.mktemp("kernels"), inputs(), TRITON_INTERPRET="1")


def compare(name: str, results: Tensor, operation: str) -> None:
    x_hi, x_lo, y_hi, y_lo = inputs()[name]
    expected = CALLS[operation]((x_hi, x_lo), (y_hi, y_lo))
    k = list(CALLS).index(operation)
    assert_same_bits(results[2 * k], expected[0], operation)
    assert_same_bits(results[2 * k + 1], expected[1], operation)


@pytest.mark.slow
@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("name", FORMATS)
def test_bits_are_those_of_the_functions(name: str, operation: str, interpreted) -> None:
    compare(name, interpreted[name], operation)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_two_sum_is_exact(name: str, interpreted) -> None:
    x_hi, _, y_hi, _ = inputs()[name]
    s, e = interpreted[name][:2]
    assert (integers(s) + integers(e) == integers(x_hi) + integers(y_hi)).all()


@pytest.mark.gpu
def test_compiled(tmp_path: Path) -> None:
    on_device = {name: [t.cuda() for t in tensors] for name, tensors in inputs().items()}
    results = run_script(tmp_path, on_device)
    for name in FORMATS:
        for operation in CALLS:
            compare(name, results[name].cpu(), operation)
