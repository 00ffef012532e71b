"""On a GPU: the bits of the CPU's reference, states on the device, checkpoints between devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW, Muon
from tests.helpers import assert_same_bits
from tests.helpers.gpu_waits import no_waiting
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases
from tests.optim.helpers import assert_same, random, stored
from tests.optim.variants import RECENT_RULES, VARIANTS, Variant, named, pairs

pytestmark = pytest.mark.gpu


ADAMW = named("adamw")
SHAPES = [(), (0,), (1,), (7, 13), (1024 + 5,), (8, 1024)]


def gradient(p: Tensor, t: int, k: int) -> Tensor:
    """One in three transposed, one in three expanded where the shape allows it."""
    if p.ndim == 2 and t % 3 == 1:
        return random(tuple(p.shape[::-1]), p.dtype, 100 * t + k, 0.1).to(p.device).T
    if p.ndim == 2 and t % 3 == 2:
        return random(tuple(p.shape[1:]), p.dtype, 100 * t + k, 0.1).to(p.device).expand_as(p)
    return random(tuple(p.shape), p.dtype, 100 * t + k, 0.1).to(p.device)


def train(device: str, executor: str, make: Any, case: Case, count: int, **options: Any) -> Any:
    params = [Parameter(random(s, case.dtype, k).to(device)) for k, s in enumerate(SHAPES)]
    optimizer = make(params, **options, **case.options())
    with mcf.executor(executor):
        for t in range(count):
            for k, p in enumerate(params):
                p.grad = gradient(p, t, k)
            optimizer.step()
    return optimizer


def on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.cpu() for name, t in tensors.items()}


@pytest.mark.parametrize(
    ("executor", "variant", "case"),
    [
        *(("torch", *pair) for pair in pairs([ADAMW], "cases", "full")),
        *(("auto", *pair) for pair in pairs([*VARIANTS, *RECENT_RULES], "cases", "full")),
    ],
    ids=str,
)
def test_rules_have_the_bits_of_the_cpu(executor: str, variant: Variant, case: Case) -> None:
    expected = train("cpu", "torch", variant.make, case, 20, **variant.options)
    found = train("cuda", executor, variant.make, case, 20, **variant.options)
    assert_same(on_cpu(stored(found)), stored(expected))


def test_muon_has_its_states_on_the_device() -> None:
    # Its matrix products have the device's bits; what is stored around them is exact elsewhere.
    p = Parameter(random((64, 48), BF16, 1).cuda())
    optimizer = Muon([p], track_metrics=True)
    for t in range(3):
        p.grad = random((64, 48), BF16, 10 + t, 0.1).cuda()
        optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].device == p.device
    assert optimizer.metrics()["update_norm"] > 0
    assert torch.isfinite(p).all()


def test_states_are_on_the_device() -> None:
    optimizer = train("cuda", "auto", AdamW, Case("plus", BF16, FP32), 1, **ADAMW.options)
    for p, state in optimizer.state.items():
        # The count is read by the host at each step.
        assert state["step"].device.type == "cpu"
        assert all(t.device == p.device for name, t in state.items() if name != "step")


def test_checkpoints_move_between_devices() -> None:
    case = Case("plus", BF16, FP32)
    gpu = train("cuda", "auto", AdamW, case, 3, **ADAMW.options)
    cpu = train("cpu", "torch", AdamW, case, 1, **ADAMW.options)
    cpu.load_state_dict(gpu.state_dict())
    for p, q in zip(cpu.param_groups[0]["params"], gpu.param_groups[0]["params"], strict=True):
        for name, tensor in cpu.state[p].items():
            assert_same_bits(tensor, gpu.state[q][name].cpu(), name)
            assert tensor.device.type == "cpu"


def test_learning_rate_on_the_device() -> None:
    case = Case("plus", BF16, FP32)
    rate = torch.tensor(ADAMW.options["lr"], device="cuda", dtype=torch.float64)
    found = train("cuda", "auto", AdamW, case, 3, **{**ADAMW.options, "lr": rate})
    expected = train("cpu", "torch", AdamW, case, 3, **ADAMW.options)
    assert_same(on_cpu(stored(found)), stored(expected))


def test_metrics() -> None:
    case = Case("plain", BF16, FP32)
    options = {**ADAMW.options, "track_metrics": True}
    expected = train("cpu", "torch", AdamW, case, 3, **options).metrics()
    found = train("cuda", "auto", AdamW, case, 3, **options).metrics()
    for name in ("edq", "update_norm", "edq_ratio", "lost_param", "lost_exp_avg_sq"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name


def test_parameters_on_both_devices() -> None:
    here, there = Parameter(random(5, BF16, 1)), Parameter(random(5, BF16, 2).cuda())
    optimizer = AdamW([here, there], track_metrics=True)
    for p in (here, there):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.metrics()["update_norm"] > 0
    # Its states stay where they were made; a step after a move says so.
    here.grad = None
    moved = Parameter(there.detach().cpu())
    optimizer.param_groups[0]["params"][1] = moved
    optimizer.state[moved] = optimizer.state.pop(there)
    moved.grad = torch.ones_like(moved)
    with pytest.raises(ValueError, match=r"is on cuda:0; its parameter is on cpu"):
        optimizer.step()


@pytest.mark.parametrize("case", cases(("plus", "master")) + FULL, ids=str)
def test_clipping_has_the_bits_of_the_cpu(case: Case) -> None:
    # The norm is summed in integers on either, and the coefficient rounded once.
    results = []
    for device in ("cpu", "cuda"):
        params = [Parameter(random(s, case.dtype, k).to(device)) for k, s in enumerate(SHAPES)]
        optimizer = AdamW(params, max_grad_norm=0.5, **ADAMW.options, **case.options())
        for t in range(3):
            for k, p in enumerate(params):
                p.grad = gradient(p, t, k)
            optimizer.step()
        assert optimizer.grad_norm is not None
        assert optimizer.grad_norm.device.type == device
        results.append({"norm": optimizer.grad_norm.cpu(), **on_cpu(stored(optimizer))})
    assert_same(results[1], results[0])


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_grad_scaler(dtype: torch.dtype) -> None:
    results = []
    for device in ("cpu", "cuda"):
        p = Parameter(random(1000, dtype, 1).to(device))
        optimizer = AdamW([p], max_grad_norm=0.5, fused=True, **ADAMW.options)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
        scaler.scale(torch.zeros(1, device=device))
        for t in range(4):
            p.grad = (random(1000, FP32, 2 + t) * 2.0**8).to(device, dtype)
            if t == 1:
                p.grad[5] = torch.inf
            before = stored(optimizer)
            scaler.step(optimizer)
            if t == 1:
                assert_same(stored(optimizer), before)
            scaler.update(2.0**8)
        results.append(on_cpu(stored(optimizer)))
    assert_same(results[1], results[0])


# -- graphs ----------------------------------------------------------------------------------------


GRAPHS_SHAPES: list[Any] = [(5, 7), (1024 + 5,), (), (8, 1024)]


def params_of(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter(random(s, dtype, k).cuda()) for k, s in enumerate(GRAPHS_SHAPES)]


def give_gradients(params: list[Parameter], inputs: list[Tensor]) -> None:
    """A backward pass of elementwise operations, which have the same bits in and out of a graph."""
    for p in params:
        p.grad = None
    loss = sum((p.float() * x).sin().sum() for p, x in zip(params, inputs, strict=True))
    assert isinstance(loss, Tensor)
    loss.backward()


def inputs_of(t: int) -> list[Tensor]:
    return [random(s, FP32, 100 * t + k).cuda() for k, s in enumerate(GRAPHS_SHAPES)]


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
