"""Steps with `capturable=True` or a GradScaler read nothing from a device.

Shown with fake CUDA tensors, which have no values to read; the launch, which fake tensors do not
reach, runs in Triton's interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

import mcf
from mcf.optim import AdamW, Muon
from tests.optim.helpers import BF16, FP64, assert_same, parameter, stored
from tests.optim.test_capturable import EIGHT_BITS, needs_triton
from tests.optim.variants import RECENT_RULES, VARIANTS, Variant


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
