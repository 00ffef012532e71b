"""`capturable=True`: counts, rates and the decision to skip stay where the parameters are.

Exact: the bits of the optimizer whose host counts, on every executor. That nothing is read from a
device is shown with fake CUDA tensors, which have no values to read; the launch, which fake tensors
do not reach, runs in Triton's interpreter. CUDA graphs themselves: test_gpu.py.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

import mcf
from mcf.optim import SGD, AdamW, Muon, NAdam
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP32, FP64, Case
from tests.optim.helpers import assert_same, parameter, random, refuses, stored
from tests.optim.variants import (
    RECENT_RULES,
    VARIANTS,
    Variant,
    named,
    pairs,
    recent_pairs,
    row_or_column,
)

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the GPU executor needs triton, which is for Linux only",
)
EXECUTORS = ["torch", "numba", pytest.param("triton", marks=needs_triton)]

SHAPES: list[Any] = [(5, 7), (0,), (), (33,)]


def gradients(params: list[Parameter], t: int) -> None:
    for k, p in enumerate(params):
        # The last takes part in every second step, so that counts differ.
        if k == len(params) - 1 and t % 2:
            p.grad = None
        elif p.ndim == 2 and t % 3 == 1:
            p.grad = random(tuple(p.shape[::-1]), p.dtype, 100 * t + k, 0.1).T
        else:
            p.grad = random(p.shape, p.dtype, 100 * t + k, 0.1)


def train(make: Any, case: Case, count: int, rates: list[float], **options: Any) -> Any:
    """Steps with a rate of its own for each; a tensor's is written into it."""
    params = [parameter(s, case.dtype, k) for k, s in enumerate(SHAPES)]
    optimizer = make(params, **options, **case.options())
    (group,) = optimizer.param_groups
    for t in range(count):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rates[t % len(rates)])
        else:
            group["lr"] = rates[t % len(rates)]
        gradients(params, t)
        optimizer.step()
    return optimizer


EIGHT_BITS = "8bit"

RATES = [3e-3, 1e-3, 0.0]


def assert_capturable_is_the_same(make: Any, case: Case, count: int, **options: Any) -> None:
    expected = train(make, case, count, RATES, **options)
    with_tensor = {**options, "lr": torch.tensor(0.0, dtype=FP64), "capturable": True}
    found = train(make, case, count, RATES, **with_tensor)
    assert_same(stored(found), stored(expected))
    if expected._track_metrics:
        assert found.metrics() == expected.metrics()


ALL = everyday(pairs(VARIANTS, "cases", "full"), row_or_column) + recent_pairs(1)


@pytest.mark.sampled(every=24)
@pytest.mark.parametrize(("variant", "case"), ALL, ids=str)
def test_the_bits_of_the_host(variant: Variant, case: Case) -> None:
    with mcf.executor("torch"):
        assert_capturable_is_the_same(variant.make, case, 7, **variant.options)


# Each rule's kernels are compiled; of the others every rule is tested above, on torch.
_SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("nadam", "sgd-momentum")]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS[1:])
@pytest.mark.parametrize("name", ["adamw", "radam-decoupled", *_SLOW])
def test_the_bits_of_the_host_on(executor: str, name: str) -> None:
    variant = named(name)
    case = Case("stochastic", BF16, FP32)
    with mcf.executor(executor):
        assert_capturable_is_the_same(
            variant.make, case, 3, track_metrics=executor == "numba", **variant.options
        )


@pytest.mark.slow
def test_tensors_for_betas() -> None:
    betas = (torch.tensor(0.9, dtype=FP64), torch.tensor([0.99], dtype=FP64))
    with mcf.executor("torch"):
        for case in (Case("plus", BF16, BF16), *(Case(p, BF16, FP32) for p in ("eco", EIGHT_BITS))):
            expected = train(AdamW, case, 4, RATES, betas=(0.9, 0.99), eps=1e-6)
            found = train(AdamW, case, 4, RATES, betas=betas, eps=1e-6, capturable=True)
            assert_same(stored(found), stored(expected))


def test_decay_apart_from_the_rate() -> None:
    options = {"decouple_lr": True, "peak_lr": 3e-3, "weight_decay": 0.1}
    with mcf.executor("torch"):
        assert_capturable_is_the_same(AdamW, Case("plus", BF16, FP32), 4, **options)


MADE = ((AdamW, "master"), (NAdam, "master"), (AdamW, EIGHT_BITS))
# On torch all, on Numba AdamW; Triton's interpreter takes nine seconds.
SKIPPED = everyday(
    [(executor, make, precision) for executor in EXECUTORS for make, precision in MADE],
    lambda executor, make, precision: executor == "torch",
)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("executor", "make", "precision"), SKIPPED)
def test_a_skipped_step_changes_no_bit(executor: str, make: Any, precision: str) -> None:
    with mcf.executor(executor):
        params = [parameter((6, 5), BF16, 1), parameter(40, BF16, 2)]
        optimizer = make(params, 1e-2, precision=precision, capturable=True, track_metrics=True)
        for t in range(3):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.found_inf = torch.tensor([1.0 if t == 1 else 0.0])
            before = stored(optimizer)
            optimizer.step()
            if t == 1:
                assert_same(stored(optimizer), before)
                assert optimizer.metrics()["update_norm"] == 0
        assert [optimizer.state[p]["step"].item() for p in params] == [2, 2]
        other = make([parameter((6, 5), BF16, 1)], 1e-2, precision=precision)
        (q,) = other.param_groups[0]["params"]
        for _ in range(2):
            q.grad = torch.ones_like(q)
            other.step()
        assert_same_bits(params[0], q)


@pytest.mark.parametrize("options", [{"max_grad_norm": 0.5}, {"nonfinite": "skip"}], ids=str)
@pytest.mark.parametrize("scale", [None, 768.1])
def test_gradients_before_the_rule(options: dict[str, Any], scale: float | None) -> None:
    results = []
    for capturable in (False, True):
        p = parameter(100, BF16)
        optimizer = AdamW([p], 1e-2, capturable=capturable, **options)
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale)
        for t in range(4):
            p.grad = random(100, BF16, t)
            if t == 2 and "nonfinite" in options:
                p.grad[3] = torch.inf
            optimizer.step()
        norm = {} if optimizer.grad_norm is None else {"norm": optimizer.grad_norm}
        results.append({**stored(optimizer), **norm})
    assert_same(*results)


@pytest.mark.slow
@pytest.mark.parametrize("make", [AdamW, NAdam])
def test_checkpoints(make: Any) -> None:
    case = Case("plus", BF16, FP32)
    with mcf.executor("torch"):
        whole = train(make, case, 8, RATES)
        for first, second in ((False, True), (True, False), (True, True)):
            before = train(make, case, 4, RATES, capturable=first)
            after = train(make, case, 1, RATES, capturable=second)
            after.load_state_dict(copy.deepcopy(before.state_dict()))
            # It says where steps are counted, and not what was trained.
            assert after.param_groups[0]["capturable"] is second
            params = after.param_groups[0]["params"]
            for p, q in zip(params, before.param_groups[0]["params"], strict=True):
                p.data.copy_(q.data)
            for t in range(4, 8):
                after.param_groups[0]["lr"] = RATES[t % 3]
                gradients(params, t)
                after.step()
            assert_same(stored(after), stored(whole))


def test_copies_and_changes_of_mind() -> None:
    case = Case("light", BF16, FP32)
    with mcf.executor("torch"):
        whole = train(AdamW, case, 6, RATES)
        optimizer: Any = train(AdamW, case, 2, RATES, capturable=True)
        for t in range(2, 6):
            optimizer = pickle.loads(pickle.dumps(optimizer)) if t % 2 else copy.deepcopy(optimizer)
            (group,) = optimizer.param_groups
            # torch's users change it in the groups.
            group["capturable"] = t % 2 == 0
            group["lr"] = RATES[t % 3]
            gradients(group["params"], t)
            optimizer.step()
        assert_same(stored(optimizer), stored(whole))


def test_refused() -> None:
    p = parameter(5, BF16)
    with pytest.raises(ValueError, match=r"nonfinite='raise' with capturable=True.*'torch' and"):
        AdamW([p], capturable=True, nonfinite="raise")
    with pytest.raises(ValueError, match=r"weight_decay is a Tensor with capturable=True"):
        SGD([p], capturable=True, weight_decay=torch.tensor(0.1))
    optimizer = AdamW([p], capturable=True)
    optimizer.nonfinite = "raise"
    p.grad = torch.ones_like(p)
    refuses(optimizer, ValueError, "nonfinite='raise'")


def test_capture_needs_capturable(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = parameter(5, BF16), parameter(5, BF16)
    optimizer = AdamW([{"params": [p], "capturable": True}, {"params": [q]}])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"param_groups\[1\] has capturable=False"):
        optimizer.step()
    optimizer.param_groups[1]["capturable"] = True
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match=r"params\[0\] of param_groups\[0\] has no state on cpu"):
        optimizer.step()
    assert not optimizer.state


# -- reads -----------------------------------------------------------------------------------------


class Without(TorchDispatchMode):
    """No operator whose answer the host waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert name not in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"), name
        return func(*args, **(kwargs or {}))


@needs_triton
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("precision", ["plus", "stochastic", EIGHT_BITS])
def test_the_launch_reads_nothing(precision: str) -> None:
    with mcf.executor("triton"):
        p = parameter(1500, BF16)
        optimizer = AdamW([p], torch.tensor(1e-3), precision=precision, capturable=True)
        optimizer.found_inf = torch.zeros(1)
        optimizer.grad_scale = torch.tensor(2.0)
        p.grad = torch.ones_like(p)
        with Without():
            optimizer.step()
            before = stored(optimizer)
            optimizer.found_inf = torch.ones(1)
            optimizer.step()
        assert_same(stored(optimizer), before)
        assert optimizer.state[p]["step"].item() == 1
        optimizer.param_groups[0]["capturable"] = False
        with Without(), pytest.raises(AssertionError, match="_local_scalar_dense"):
            optimizer.step()


@contextlib.contextmanager
def fake_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA tensors without values: whoever asks for one raises."""
    for module in ("table",):
        monkeypatch.setattr(f"mcf.optim.step.{module}.to_device", lambda t, device: t.to(device))
    with FakeTensorMode(), mcf.executor("torch"):
        yield


def on_fake_device(
    monkeypatch: pytest.MonkeyPatch, make: Any, given: tuple[str, ...], **options: Any
) -> None:
    with fake_device(monkeypatch):
        params = [Parameter(torch.zeros(s, dtype=BF16, device="cuda")) for s in ((5, 7), (4, 4))]
        rate = torch.zeros((), device="cuda", dtype=FP64)
        optimizer = make(params, capturable=True, **options)
        # What the constructor looks at may change between steps.
        optimizer.param_groups[0]["lr"] = rate
        for name in given:
            setattr(optimizer, name, torch.zeros(1, device="cuda"))
        for _ in range(2):
            for p in params:
                p.grad = torch.zeros_like(p)
            optimizer.step()
        assert optimizer.state[params[0]]["step"].device.type == "cuda"


RULES = [
    (v.make, {k: x for k, x in v.options.items() if k != "lr"})
    for v in [*VARIANTS, *RECENT_RULES, Variant("muon", Muon, {})]
]
OPTIONS: list[dict[str, Any]] = [
    {"max_grad_norm": 1.0},
    {"max_grad_norm": 1.0, "nonfinite": "skip"},
    {"nonfinite": "skip"},
    {"max_grad_value": 1.0},
    {"precision": "stochastic"},
    {"precision": "plus", "low": "stochastic"},
    {"precision": "eco"},
    {"compute_dtype": BF16},
    {"track_metrics": True},
    {"decouple_lr": True, "peak_lr": 1.0},
    {"precision": EIGHT_BITS},
    {"precision": "split8_" + EIGHT_BITS, "track_metrics": True, "nonfinite": "skip"},
]


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("given", [(), ("found_inf",), ("found_inf", "grad_scale")], ids=len)
@pytest.mark.parametrize(("make", "options"), [*RULES, *((AdamW, o) for o in OPTIONS)], ids=str)
def test_nothing_is_read_from_a_device(
    monkeypatch: pytest.MonkeyPatch, make: Any, options: dict[str, Any], given: tuple[str, ...]
) -> None:
    on_fake_device(monkeypatch, make, given, **options)


@pytest.mark.sampled
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("precision", ["light", EIGHT_BITS])
def test_a_scaler_makes_nobody_wait(
    monkeypatch: pytest.MonkeyPatch, precision: str, capturable: bool
) -> None:
    with fake_device(monkeypatch):
        p = Parameter(torch.zeros(5, dtype=BF16, device="cuda"))
        optimizer = AdamW([p], capturable=capturable, precision=precision)
        assert not optimizer.state
        optimizer.found_inf = torch.zeros(1, device="cuda")
        optimizer.grad_scale = torch.ones((), device="cuda")
        for _ in range(2):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale
        optimizer.step()
        # From the first such step on the device counts.
        assert optimizer.state[p]["step"].device.type == "cuda"
