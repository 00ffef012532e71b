"""On a GPU: steps without a wait, and CUDA graphs whose replays are eager steps, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from mcf.optim import AdamW, Muon
from tests.helpers import assert_same_bits
from tests.helpers.gpu_waits import no_waiting
from tests.optim.helpers import BF16, FP32, FP64, assert_same, cases, random, stored
from tests.optim.variants import RECENT_RULES, VARIANTS

pytestmark = pytest.mark.gpu

SHAPES: list[Any] = [(5, 7), (1024 + 5,), (), (8, 1024)]


def params_of(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter(random(s, dtype, k).cuda()) for k, s in enumerate(SHAPES)]


def give_gradients(params: list[Parameter], inputs: list[Tensor]) -> None:
    """A backward pass of elementwise operations, which have the same bits in and out of a graph."""
    for p in params:
        p.grad = None
    loss = sum((p.float() * x).sin().sum() for p, x in zip(params, inputs, strict=True))
    assert isinstance(loss, Tensor)
    loss.backward()


def inputs_of(t: int) -> list[Tensor]:
    return [random(s, FP32, 100 * t + k).cuda() for k, s in enumerate(SHAPES)]


def eager(make: Any, dtype: torch.dtype, count: int, **options: Any) -> Any:
    params = params_of(dtype)
    optimizer = make(params, **options)
    for t in range(count):
        give_gradients(params, inputs_of(t))
        optimizer.step()
    return optimizer


WARM = 3


def replayed(make: Any, dtype: torch.dtype, count: int, **options: Any) -> tuple[Any, Any, Any]:
    """Steps before, in and after the capture of forward, backward and step."""
    params = params_of(dtype)
    optimizer = make(params, capturable=True, **options)
    static = inputs_of(0)

    def step() -> None:
        give_gradients(params, static)
        optimizer.step()

    def load(t: int) -> None:
        for x, new in zip(static, inputs_of(t), strict=True):
            x.copy_(new)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for t in range(WARM):
            load(t)
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # What is captured is not run.
    with torch.cuda.graph(graph):
        step()
    for t in range(WARM, count):
        load(t)
        graph.replay()
    return optimizer, graph, load


def counted_on_device(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Counts and numbers are compared where the device has them."""
    return {name: t.cuda() for name, t in found.items()}


OPTIONS: list[dict[str, Any]] = [
    {"max_grad_norm": 0.5},
    {"nonfinite": "skip"},
    {"max_grad_value": 0.1},
    {"track_metrics": True},
    {"precision": "plus", "low": "stochastic"},
    {"precision": "8bit", "track_metrics": True},
]
REPLAYED = [
    *((v.make, BF16, v.options) for v in [*VARIANTS, *RECENT_RULES]),
    *((AdamW, c.dtype, {"lr": 1e-2, "eps": 1e-6, **c.options()}) for c in cases()),
    *((AdamW, BF16, options) for options in OPTIONS),
]


@pytest.mark.parametrize(("make", "dtype", "options"), REPLAYED, ids=str)
def test_replays_are_eager_steps(make: Any, dtype: torch.dtype, options: dict[str, Any]) -> None:
    expected = eager(make, dtype, 8, **options)
    found, _, _ = replayed(make, dtype, 8, **options)
    assert_same(stored(found), counted_on_device(stored(expected)))
    if "max_grad_norm" in options:
        assert_same_bits(found.grad_norm, expected.grad_norm)
    if "track_metrics" in options:
        assert found.metrics() == expected.metrics()


def test_a_rate_written_between_replays() -> None:
    rate = torch.tensor(1e-2, device="cuda", dtype=FP64)
    found, graph, load = replayed(AdamW, BF16, 5, lr=rate)
    rate.fill_(1e-3)
    load(5)
    graph.replay()
    params = params_of(BF16)
    expected = AdamW(params, 1e-2)
    for t in range(6):
        expected.param_groups[0]["lr"] = 1e-2 if t < 5 else 1e-3
        give_gradients(params, inputs_of(t))
        expected.step()
    assert_same(stored(found), counted_on_device(stored(expected)))


def test_a_flag_written_between_replays() -> None:
    params = params_of(BF16)
    optimizer = AdamW(params, 1e-2, capturable=True)
    flag = torch.zeros(1, device="cuda")
    optimizer.found_inf = flag
    static = inputs_of(0)
    give_gradients(params, static)
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        give_gradients(params, static)
        optimizer.step()
    graph.replay()
    flag.fill_(1)
    before = {n: t for n, t in stored(optimizer).items() if not n.endswith("grad")}
    graph.replay()
    after = {n: t for n, t in stored(optimizer).items() if not n.endswith("grad")}
    assert_same(after, before)
    flag.fill_(0)
    graph.replay()
    assert optimizer.state[params[0]]["step"].item() == 3


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 1.0},
        {"nonfinite": "skip"},
        {"precision": "stochastic"},
        {"precision": "8bit"},
    ],
    ids=str,
)
def test_steps_do_not_wait(options: dict[str, Any], capturable: bool) -> None:
    params = params_of(BF16)
    optimizer = AdamW(params, 1e-2, capturable=capturable, **options)
    give_gradients(params, inputs_of(0))
    with no_waiting():
        for _ in range(3):
            optimizer.step()


def test_a_scaler_does_not_wait() -> None:
    params = params_of(BF16)
    optimizer = AdamW(params, 1e-2)
    give_gradients(params, inputs_of(0))
    optimizer.found_inf = torch.zeros(1, device="cuda")
    optimizer.grad_scale = torch.ones((), device="cuda")
    with no_waiting():
        for _ in range(3):
            optimizer.step()
    assert optimizer.state[params[0]]["step"].item() == 3


def test_waiting_would_be_found() -> None:
    params = params_of(BF16)
    optimizer = AdamW(params, 1e-2, nonfinite="raise")
    give_gradients(params, inputs_of(0))
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        optimizer.step()


def test_capture_needs_capturable() -> None:
    params = params_of(BF16)
    optimizer = AdamW(params, 1e-2)
    inputs = inputs_of(0)
    give_gradients(params, inputs)
    optimizer.step()
    # The gradients are captured before the step is refused: torch warns of an empty capture.
    graph, refused = torch.cuda.CUDAGraph(), r"param_groups\[0\] has capturable=False"
    with torch.cuda.graph(graph):
        give_gradients(params, inputs)
        with pytest.raises(RuntimeError, match=refused):
            optimizer.step()


def test_muon() -> None:
    # Its matrix products have the device's bits: only that it can be captured and moves.
    p = Parameter(random((64, 48), BF16, 1).cuda())
    optimizer = Muon([p], capturable=True)
    p.grad = random((64, 48), BF16, 2, 0.1).cuda()
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    before = p.detach().clone()
    graph.replay()
    assert not torch.equal(p, before)
    assert optimizer.state[p]["step"].item() == 2
