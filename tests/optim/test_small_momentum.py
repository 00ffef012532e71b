"""Momenta of 8 bits where there is no second moment: those of SGD, Lion and Muon."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, Lion, Muon, Precision, convert
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, assert_same, parameter, random, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")

SHAPE = (3, 41)
MAKERS: dict[str, Any] = {
    "sgd": lambda p: SGD(p, 1e-2, 0.9, precision="8bit"),
    "nesterov": lambda p: SGD(p, 1e-2, 0.9, nesterov=True, precision="8bit"),
    "lion": lambda p: Lion(p, 1e-3, (0.9, 0.99), precision="8bit"),
    "muon": lambda p: Muon(p, 1e-2, precision="8bit"),
}
each = pytest.mark.parametrize("name", MAKERS)


@each
def test_what_is_stored(name: str) -> None:
    """Of 10 steps each the momentum of the one before, within the distance of neighbours."""
    p = parameter(SHAPE, BF16)
    optimizer = MAKERS[name]([p])
    kept = "exp_avg" if name == "lion" else "momentum_buffer"
    share = {"muon": 0.05, "lion": 0.01}.get(name, 1.0)
    decay = {"muon": 0.95, "lion": 0.99}.get(name, 0.9)
    b = torch.zeros(SHAPE, dtype=torch.float64)
    for t in range(10):
        p.grad = random(SHAPE, BF16, t, 0.1)
        optimizer.step()
        state = optimizer.state[p]
        assert state[kept].dtype == torch.uint8
        # SGD's first buffer is the whole gradient, and so are shares of later ones.
        b = decay * b + share * p.grad.double()
        found = codes.read(kept, state).double()
        assert ((found - b).abs() <= b.abs() / 4 * (1 + 1e-6) + 2.0**-28).all(), t
        b = found
    tensors = [p, p.grad, state[kept]]
    assert sum(t.nbytes for t in tensors) == 5 * p.numel()


@pytest.mark.parametrize("name", ["sgd", "lion", "muon"])
@pytest.mark.parametrize("executor", ["triton", pytest.param("numba", marks=pytest.mark.slow)])
def test_executors_agree(executor: str, name: str) -> None:
    """The buffers; what Muon makes of one has the bits of a matrix product."""
    results = []
    for each in ("torch", executor):
        with mcf.executor(each):
            p = parameter(SHAPE, BF16)
            optimizer = MAKERS[name]([p])
            for t in range(3):
                p.grad = random(SHAPE, BF16, t, 0.1)
                optimizer.step()
            results.append(stored(optimizer))
    assert_same(*results)


@pytest.mark.parametrize("name", ["sgd", "lion", "muon"])
def test_checkpoints_and_conversion(name: str) -> None:
    p = parameter(SHAPE, BF16)
    optimizer = MAKERS[name]([p])
    steps(optimizer, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = MAKERS[name]([Parameter(p.detach().clone())])
    other.load_state_dict(torch.load(file, weights_only=True))
    kept = "exp_avg" if name == "lion" else "momentum_buffer"
    before = optimizer.state[p][kept].clone()
    for target in ("master", "bf16_sr", "plain"):
        there, report = convert(optimizer, target, params=[Parameter(p.detach().clone())])
        assert report.exact, (target, str(report))
        (q,) = there.param_groups[0]["params"]
        back, report = convert(there, "8bit", params=[Parameter(q.detach().clone())])
        assert report.exact, (target, str(report))
        (r,) = back.param_groups[0]["params"]
        assert_same_bits(back.state[r][kept], before, target)
    for o in (optimizer, other):
        steps(o, 2, seed=9)
    assert_same(stored(other), stored(optimizer))


def test_damage_vectors_and_no_momentum() -> None:
    p = parameter(SHAPE, BF16)
    optimizer = SGD([p], 1e-2, 0.9, precision="8bit")
    for t in range(3):
        p.grad = random(SHAPE, BF16, t, 0.1)
        if t == 1:
            p.grad[0, :2] = torch.tensor([torch.nan, torch.inf])
        optimizer.step()
    found = codes.read("momentum_buffer", optimizer.state[p])
    assert found[0, :2].isnan().all()
    assert found.isnan().sum() == p.isnan().sum() == 2
    for momentum, shape, dtype in ((0.9, (41,), BF16), (0.0, SHAPE, None)):
        q = parameter(shape, BF16)
        optimizer = SGD([q], 1e-2, momentum, precision="8bit")
        steps(optimizer, 1)
        state = optimizer.state[q]
        assert (state["momentum_buffer"].dtype if momentum else None) == dtype


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("momentum", "share"), [(0.9, 0.03), pytest.param(0.99, 0.4, marks=pytest.mark.slow)]
)
def test_what_rounding_adds(momentum: float, share: float) -> None:
    """A slow momentum moves by little beside its size, so that each step's rounding is felt long.

    Of the buffer's own variance: a few hundredths at .9, four tenths at Lion's .99.
    """
    shape = (10, 200)
    p = Parameter(torch.zeros(shape, dtype=BF16))
    optimizer = SGD([p], 0.0, momentum, precision="8bit")
    b = torch.zeros(shape, dtype=torch.float64)
    for t in range(round(4 / (1 - momentum))):
        p.grad = random(shape, BF16, t, 0.1)
        optimizer.step()
        b = momentum * b + p.grad.double()
    found = codes.read("momentum_buffer", optimizer.state[p]).double()
    measured = ((found - b).var() / b.var()).item()
    print(f"momentum {momentum}: {measured:.3f} of the buffer's variance")
    assert 0.7 * share < measured < 1.5 * share
    assert abs((found - b).mean().item()) < 4 * (found - b).std().item() / p.numel() ** 0.5


REFUSED: list[tuple[Any, str]] = [
    (
        lambda p: SGD(p, momentum=0.9, precision="4bit"),
        "precision='4bit' keeps a first moment in 4",
    ),
    (lambda p: SGD(p, precision=Precision(exp_avg="ratio8")), "which SGD has not.*'se5m2'"),
    (lambda p: AdamW(p, precision=Precision(exp_avg="se5m2")), "allowed are 'ratio8'"),
    (lambda p: Lion(p, precision="4bit"), "precision='4bit' keeps a first moment in 4 bits"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_refusals(k: int) -> None:
    make, message = REFUSED[k]
    with pytest.raises(ValueError, match=message):
        make([parameter(SHAPE, BF16)])
