"""float32 and float64 parameters: moments of a precision, and the distance from torch's optimizers.

Contract 1: float64 parameters have the bits and states of `precision="plain"` under every
precision. float32 parameters have them where the precision rounds no moment stochastically;
`test_float32_parameters.py` has the other precisions.

Contract 2: from the same state, one step differs from torch.optim.AdamW(foreach=False) only by
rounding. Ours multiplies moments by the inverse of their bias corrections, adds (1 - beta1) g to
beta1 m and keeps the decay inside of the update; torch divides, interpolates m (`lerp`), and
multiplies p by 1 - lr wd first. With u the unit roundoff, counting one u for each rounding of an
operation or a scalar on either side and two for torch's root, to first order:

    m: 7 u S, with S = beta1 |m| + (1 - beta1) (|g| + |m|)
    v: 8 u v'
    p: u (2 |p| + 2 |p'| + 5 lr wd |p|) + 29 u lr / (1 - beta1^t) S / (sqrt(v^) + eps)

29 is 7 for m, 7 + 5 for the two denominators, 10 for corrections, quotients, lr and the sum. SGD,
where torch's add with alpha is an FMA or not, with G = |g| + wd |p| and B = momentum |b| + G:

    p: u (2 |p'| + 22 lr (G + momentum B)), or B in place of the bracket where it is larger

Terms of second order are below 1e-5 of these. Rejected by the same check: torch.optim.Adam, whose
decay goes through the moments.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim.precision import strategy_of
from mcf.optim.storage.strategies import PLAIN
from tests.optim.helpers import FP32, FP64, assert_same, parameter, random, steps, stored

N = 4000
FULL = [FP32, FP64]


def plain_cases(precisions: Sequence[str]) -> list[tuple[torch.dtype, str]]:
    """Return the dtypes and precisions under which parameters are stored as under "plain"."""
    fewer = {p for p in precisions if strategy_of(p).of_float32() != PLAIN}
    assert {"bf16_sr", "8bit"} <= fewer
    return [(d, p) for d in FULL for p in precisions if d == FP64 or p not in fewer]


@pytest.fixture(autouse=True)
def reference_executor():
    with mcf.executor("torch"):
        yield


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("dtype", "precision"), plain_cases(list(mcf.optim.PRECISIONS)))
@pytest.mark.parametrize("compute_dtype", [FP32, torch.bfloat16, torch.float16])
def test_every_adamw_precision_is_plain(
    dtype: torch.dtype, precision: str, compute_dtype: torch.dtype
) -> None:
    results = []
    for options in (
        {"precision": "plain"},
        {"precision": precision, "compute_dtype": compute_dtype},
    ):
        optimizer = mcf.optim.AdamW([parameter((5, 7), dtype)], 1e-2, **options)  # type: ignore[arg-type]
        steps(optimizer, 5)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])
    assert results[0].keys() == {
        f"0.{n}" for n in ("param", "grad", "step", "exp_avg", "exp_avg_sq")
    }
    assert results[0]["0.exp_avg"].dtype == results[0]["0.exp_avg_sq"].dtype == dtype


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "precision"), plain_cases(mcf.optim.SGD.precisions))
def test_every_sgd_precision_is_plain(dtype: torch.dtype, precision: str) -> None:
    results = []
    for chosen in ("plain", precision):
        optimizer = mcf.optim.SGD([parameter((5, 7), dtype)], 1e-2, 0.9, precision=chosen)
        steps(optimizer, 5)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])


def moment_size(m: Tensor, g: Tensor, beta1: float) -> Tensor:
    """S of the module's docstring."""
    return beta1 * m.abs() + (1 - beta1) * (g.abs() + m.abs())


def adamw_excess(theirs: Any, dtype: torch.dtype, count: int) -> tuple[float, float, float]:
    """The largest difference after one step over its bound, of m, v and p, over many steps."""
    beta1, beta2 = betas = (0.9, 0.999)
    lr, eps, decay = 1e-2, 1e-8, 0.1
    u = torch.finfo(dtype).eps / 2
    mine = Parameter(random(N, dtype, 1) * 10 ** (-3 * random(N, dtype, 2).abs()))
    mine.data[::10] = 0
    ours = mcf.optim.AdamW([mine], lr, betas, eps, decay)
    worst = [0.0, 0.0, 0.0]
    for t in range(1, count + 1):
        g = random(N, dtype, 10 + t) * 10 ** (-3 * random(N, dtype, 3).abs())
        # The same state to start from, so that a step's own difference is seen.
        other = Parameter(mine.detach().clone())
        torchs = theirs([other], lr, betas, eps, decay, foreach=False)
        before = {n: s.clone() for n, s in ours.state[mine].items()} if t > 1 else {}
        if before:
            torchs.state[other] = {**copy.deepcopy(before), "step": torch.tensor(float(t - 1))}
        m = before.get("exp_avg", torch.zeros(N, dtype=dtype)).double()
        p = mine.detach().double()
        mine.grad, other.grad = g, g.clone()
        ours.step()
        torchs.step()
        state = ours.state[mine]
        v = state["exp_avg_sq"].double()
        size = moment_size(m, g.double(), beta1)
        root = (v / (1 - beta2**t)).sqrt() + eps
        bounds = (
            7 * u * size,
            8 * u * v,
            u * (2 * p.abs() + 2 * mine.detach().double().abs() + 5 * lr * decay * p.abs())
            + 29 * u * lr / (1 - beta1**t) * size / root,
        )
        pairs = (
            (state["exp_avg"], torchs.state[other]["exp_avg"]),
            (state["exp_avg_sq"], torchs.state[other]["exp_avg_sq"]),
            (mine.detach(), other.detach()),
        )
        for k, ((a, b), bound) in enumerate(zip(pairs, bounds, strict=True)):
            difference = (a.double() - b.double()).abs()
            assert (difference[bound == 0] == 0).all()
            live = bound > 0
            worst[k] = max(worst[k], float((difference[live] / bound[live]).max()))
    return worst[0], worst[1], worst[2]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("dtype", FULL)
def test_distance_to_torch_adamw(dtype: torch.dtype) -> None:
    # Measured: .34, .45 and .5 of the bounds.
    excess = adamw_excess(torch.optim.AdamW, dtype, 20)
    print(excess)
    assert max(excess) <= 1


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
def test_adam_is_rejected() -> None:
    assert max(adamw_excess(torch.optim.Adam, FP32, 2)) > 1000


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize(
    "momenta",
    [
        {},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "maximize": True},
    ],
    ids=["bare", "dampened", "nesterov", "maximize"],
)
def test_distance_to_torch_sgd(dtype: torch.dtype, momenta: dict[str, Any]) -> None:
    lr, decay = 1e-2, 0.1
    u = torch.finfo(dtype).eps / 2
    mine = Parameter(random(N, dtype, 1))
    ours = mcf.optim.SGD([mine], lr, weight_decay=decay, **momenta)
    worst = 0.0
    for t in range(1, 11):
        g = random(N, dtype, 10 + t)
        other = Parameter(mine.detach().clone())
        torchs = torch.optim.SGD([other], lr, weight_decay=decay, foreach=False, **momenta)
        buffer = torch.zeros(N, dtype=dtype)
        if t > 1 and momenta:
            buffer = ours.state[mine]["momentum_buffer"].clone()
            torchs.state[other] = {"momentum_buffer": buffer.clone()}
        p = mine.detach().double()
        mine.grad, other.grad = g, g.clone()
        ours.step()
        torchs.step()
        momentum = momenta.get("momentum", 0.0)
        gradient = g.double().abs() + decay * p.abs()
        moment = momentum * buffer.double().abs() + gradient
        size = torch.maximum(gradient + momentum * moment, moment)
        bound = u * (2 * mine.detach().double().abs() + 22 * lr * size)
        difference = (mine.detach().double() - other.detach().double()).abs()
        worst = max(worst, float((difference / bound).max()))
    print(worst)
    assert worst <= 1


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", FULL)
def test_run_beside_torch_stays_close(dtype: torch.dtype) -> None:
    # 200 steps of both from one start, not synchronised: differences add up like random walks, to
    # at most the sum of the steps' bounds, 200 times some ulps of weights of size 1.
    mine = parameter(N, dtype, 1)
    other = Parameter(mine.detach().clone())
    ours = mcf.optim.AdamW([mine], 1e-2)
    torchs = torch.optim.AdamW([other], 1e-2, foreach=False)
    for t in range(200):
        mine.grad = random(N, dtype, 10 + t)
        other.grad = mine.grad.clone()
        ours.step()
        torchs.step()
    limit = 200 * 4 * torch.finfo(dtype).eps
    assert (mine - other).abs().max() < limit
