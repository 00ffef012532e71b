"""`benchmarks/four_bits.py`: what it changes of a moment is what it says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mcf.kernels.algorithms.codes import from_4_bits
from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP32
from mcf.kernels.torch.registers import primitives


@pytest.fixture
def four_bits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("filelock", reason="an extra of the examples and benchmarks")
    root = Path(__file__).parents[1]
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(root / folder))
    return importlib.import_module("four_bits")


def moments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    v = torch.rand(64, 64, generator=generator).exp2() * 2.0**-20
    return torch.randn(64, 64, generator=generator) * v.sqrt(), v


def test_the_code_is_the_librarys(four_bits: ModuleType) -> None:
    decode = Binder(lambda f: f, primitives(FP32, FP32, {}), {})(from_4_bits)
    assert torch.equal(four_bits.CODE, decode(torch.arange(8.0)))


def test_a_unit_is_above_the_root(four_bits: ModuleType) -> None:
    v = torch.tensor([2.0**-60, 0.24, 0.25, 0.5, 0.99, 1.0, 3.9, 4.0])
    expected = [2.0**-29, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0]
    assert four_bits.unit(v).tolist() == expected


def test_roundings_keep_the_mean_and_noise_their_variance(four_bits: ModuleType) -> None:
    m, v = moments()
    draw = torch.Generator().manual_seed(2)
    spread = {}
    for change in (four_bits.m_at_random, four_bits.m_noise):
        found = torch.stack([change(m, v, draw)[0] - m for _ in range(400)])
        # All draws are independent of each other.
        assert found.mean().abs() < 6 * found.std() / found.numel() ** 0.5
        spread[change] = float(found.square().mean().sqrt())
    one, other = spread.values()
    assert one == pytest.approx(other, rel=0.01)
    nearest = four_bits.m_to_nearest(m, v, draw)[0]
    assert torch.equal(nearest, four_bits.m_to_nearest(nearest, v, draw)[0])
    assert torch.equal(nearest, four_bits.m_at_random(nearest, v, draw)[0])


def test_without_a_change_it_is_adamw(four_bits: ModuleType) -> None:
    start = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    group = {"params": [ours], "weight_decay": 0.1}
    one = four_bits.Changed([group], 1e-3, 0.999, 0, (), range(0))
    other = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.1)
    for k in range(5):
        ours.grad = theirs.grad = start.roll(k)
        one.step()
        other.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-7)
