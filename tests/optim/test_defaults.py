"""Steps do not depend on torch's default device or dtype: the same bits, and nothing is lost.

Under a default device of "meta", where factories make tensors without values, a host table that
does not name its device takes a step's numbers away without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.optim import SGD, AdamW, Lion, Muon, NAdam, Precision
from tests.helpers.defaults import DEFAULTS, default
from tests.helpers.everyday import everyday
from tests.optim.helpers import assert_same, random, steps, stored

FP32 = torch.float32
BF16 = torch.bfloat16

MADE: dict[str, Callable[[Any], Any]] = {
    "plus": lambda p: AdamW(p, track_metrics=True, max_grad_norm=0.1),
    "strict plus": lambda p: AdamW(p, compute_dtype=BF16),
    "master": lambda p: AdamW(p, precision="master", amsgrad=True, nonfinite="skip"),
    "stochastic": lambda p: AdamW(p, precision="stochastic"),
    "capturable": lambda p: AdamW(p, capturable=True, low="stochastic"),
    "tensor lr": lambda p: NAdam(p, lr=torch.tensor(0.01, device="cpu", dtype=FP32)),
    "codes": lambda p: AdamW(p, precision=Precision("pair", "ratio8", "ue6m2"), low="stochastic"),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "lion": lambda p: Lion(p, lr=0.1),
    "muon": lambda p: Muon(p[-2:], lr=0.1),
}


def given() -> list[Any]:
    """Parameters of several layouts; the last two are matrices."""
    made = [random(300, BF16, 1), random((), BF16, 2), random(0, BF16, 3), random(40, FP32, 4)]
    made += [random((7, 40), BF16, 5)[:, ::2], random((30, 9), BF16, 6)]
    return [torch.nn.Parameter(t) for t in made]


def train(name: str, executor: str) -> Any:
    # Seeded numbers are drawn with torch's own defaults.
    with default(torch.device("cpu"), FP32):
        params = given()
    optimizer = MADE[name](params)
    with mcf.executor(executor):
        for t in range(3):
            with default(torch.device("cpu"), FP32):
                for k, p in enumerate(params):
                    p.grad = random(p.shape, p.dtype, 10 * t + k, 0.1)
            optimizer.step()
        if name == "plus":
            assert optimizer.metrics()["update_norm"] > 0
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer


# Each on torch, which compiles nothing; what Numba is called with is the same but for metrics,
# clipping, random numbers, and scalars that stay on the device.
EVERYDAY = {("plus", "numba"), ("capturable", "numba"), *((name, "torch") for name in MADE)}
EXECUTED = everyday(
    [((name, executor),) for name in MADE for executor in ("numba", "torch")],
    lambda each: each in EVERYDAY,
    id="-".join,
)


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize(("device", "dtype"), DEFAULTS, ids=str)
@pytest.mark.parametrize("made", EXECUTED)
def test_steps(made: tuple[str, str], device: str, dtype: torch.dtype) -> None:
    expected = stored(train(*made))
    with default(torch.device(device), dtype):
        found = train(*made)
    assert_same(stored(found), expected)


@pytest.mark.usefixtures("on_torch")
def test_accumulated_gradients() -> None:
    def run() -> Any:
        p = torch.nn.Parameter(torch.ones(5, 10, dtype=BF16, device="cpu"))
        optimizer = AdamW([p])
        mcf.optim.GradientAccumulator(optimizer)
        for k in (1, 256, 1):
            (p * k).sum().backward()
        optimizer.step()
        return optimizer

    expected = stored(run())
    with default(torch.device("meta"), torch.float64):
        found = run()
    assert_same(stored(found), expected)


@pytest.mark.usefixtures("on_torch")
def test_conversion() -> None:
    def run() -> Any:
        p = torch.nn.Parameter(torch.ones(5, 10, dtype=BF16, device="cpu"))
        optimizer = torch.optim.AdamW([p], foreach=False)
        with default(torch.device("cpu"), FP32):
            steps(optimizer, 2)
        made, _ = mcf.optim.convert(optimizer, precision=Precision("pair", "ratio8", "ue6m2"))
        return made

    expected = stored(run())
    with default(torch.device("meta"), torch.float64):
        found = run()
    assert_same(stored(found), expected)
