"""Which steps a plan takes, and that it holds nothing and steps as the general path does."""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mcf.optim import (
    SGD,
    Adam,
    Adamax,
    AdamW,
    GradientAccumulator,
    Lion,
    Muon,
    NAdam,
    RAdam,
    set_index_offset,
)
from mcf.optim.step import run
from mcf.optim.step.gradient_scaling import NonFiniteGradientError
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, assert_same, parameter, random, stored
from tests.optim.plan_cases import first, give_gradients, in_full, make


def matrices(kind: Any, **options: Any) -> Any:
    """Tall, wide, square, empty, and of the two dtypes."""
    shapes = [(6, 4), (4, 6), (5, 5), (0, 3), (12, 2), (1, 1)]
    params = [parameter(s, BF16, k) for k, s in enumerate(shapes)]
    params.append(parameter((3, 7), FP32, 9))
    return kind([{"params": params[:2]}, {"params": params[2:], "lr": 0.01}], **options)


KINDS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: make(AdamW),
    "adamw-clipped": lambda: make(AdamW, max_grad_value=0.01),
    "adamw-split16": lambda: make(AdamW, precision="split16"),
    "adamw-stochastic": lambda: make(AdamW, precision="stochastic", track_metrics=True),
    "adamw-low": lambda: make(AdamW, low="stochastic"),
    "adamw-eco-stochastic": lambda: make(AdamW, precision="eco_stochastic", seed=-5),
    "adam": lambda: make(Adam, amsgrad=True),
    "nadam": lambda: make(NAdam, track_metrics=True),
    "nadam-stochastic": lambda: make(NAdam, precision="stochastic"),
    "radam": lambda: make(RAdam),
    "adamax": lambda: make(Adamax),
    "lion": lambda: make(Lion),
    "sgd": lambda: make(SGD, momentum=0.9),
    "muon": lambda: matrices(Muon, track_metrics=True),
    "muon-stochastic": lambda: matrices(Muon, precision="stochastic", nesterov=False),
    "muon-split16": lambda: matrices(Muon, precision="split16", max_grad_norm=0.01),
}


def full_checks_fail(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("the full checks")

    monkeypatch.setattr(optimizer, "_collect", fail)
    prepared = run.prepared

    def others(bucket: Any, request: Any, *rest: Any) -> Any:
        return fail() if request.state is optimizer.state else prepared(bucket, request, *rest)

    monkeypatch.setattr(run, "prepared", others)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_step_takes_the_plan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, reference = KINDS[kind](), in_full(KINDS[kind]())
    for t in range(4):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            optimizer.step()
        if t == 0:
            full_checks_fail(kept, monkeypatch)
    assert int(kept.state[first(kept)]["step"]) == 4
    assert_same(stored(kept), stored(reference))
    if kept._track_metrics:
        assert kept.metrics() == reference.metrics()


@pytest.mark.parametrize("precision", ["plus", "light"])
def test_accumulated_gradients(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients in two components, of some parameters."""

    def step(optimizer: Any, t: int) -> None:
        a, b, _ = optimizer.param_groups[0]["params"]
        for k in range(2):
            scale = random((300,), BF16, 10 * t + k)
            ((a * scale).sum() * 1e-3 + (b * 3 if k else 0.0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    kept, reference = make(precision=precision), in_full(make(precision=precision))
    for optimizer in (kept, reference):
        GradientAccumulator(optimizer)
    for t in range(4):
        step(kept, t)
        step(reference, t)
        if t == 0:
            assert kept._steps._repeat.whole
            full_checks_fail(kept, monkeypatch)
    assert_same(stored(kept), stored(reference))


def test_a_second_component_that_comes_or_goes() -> None:
    kept, reference = make(), in_full(make())
    for t, low in enumerate([False, True, True, False]):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            p = first(optimizer)
            optimizer._grad_low = {p: random((300,), BF16, 50 + t, 1e-3)} if low else {}
            optimizer.step()
    assert_same(stored(kept), stored(reference))


def test_streams_that_change() -> None:
    """What random bits depend on: the seed, the step, the place and the offset."""

    def changed(keep: bool) -> Any:
        optimizer = make(precision="stochastic")
        if not keep:
            in_full(optimizer)
        for t in range(7):
            give_gradients(optimizer, t)
            p = first(optimizer)
            if t == 2:
                set_index_offset(p, 70000)
            if t == 3:
                optimizer.param_groups[0]["seed"] = 9
            if t == 4:
                optimizer.state[p]["step"].fill_(70)
            if t == 5:
                # The upper word of the index changes inside this tensor.
                set_index_offset(p, 2**32 - 100)
            optimizer.step()
        return optimizer

    assert_same(stored(changed(True)), stored(changed(False)))


def test_numbers_that_change() -> None:
    def changed(keep: bool) -> Any:
        optimizer = make(NAdam)
        if not keep:
            in_full(optimizer)
        for t in range(6):
            give_gradients(optimizer, t)
            state = optimizer.state[first(optimizer)]
            if t == 2:
                state["mu_product"].fill_(0.5)
            if t == 4:
                state["mu_product"] = state["mu_product"] * 0.5
            optimizer.step()
        return optimizer

    assert_same(stored(changed(True)), stored(changed(False)))


@pytest.mark.slow
def test_muon_changes_its_kernel() -> None:
    kept, reference = matrices(Muon), in_full(matrices(Muon))
    for t in range(4):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            optimizer.param_groups[0]["nesterov"] = t < 2
            optimizer.param_groups[1]["adjust_lr_fn"] = "match_rms_adamw" if t > 1 else None
            optimizer.step()
    assert_same(stored(kept), stored(reference))


def test_hooks_and_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, reference = make(), in_full(make())
    seen: list[int] = []

    def double(optimizer: Any, args: Any, kwargs: Any) -> None:
        first(optimizer).grad.mul_(2)

    kept.register_step_pre_hook(double)
    kept.register_step_post_hook(lambda o, a, k: seen.append(int(o.state[first(o)]["step"])))
    step = torch.compile(kept.step, backend="eager")
    for t in range(4):
        kept.zero_grad()
        give_gradients(kept, t)
        step()
        give_gradients(reference, t)
        first(reference).grad.mul_(2)
        reference.step()
        if t == 1:
            full_checks_fail(kept, monkeypatch)
    assert seen == [1, 2, 3, 4]
    assert_same(stored(kept), stored(reference))


def irregular(optimizer: Any, t: int) -> Any:
    """A gradient that no plan takes; the others are as always."""
    give_gradients(optimizer, t)
    p = optimizer.param_groups[1]["params"][0]
    p.grad = random((5, 7), BF16, t).T
    return p


def test_parameters_beside_the_plan() -> None:
    kept, reference = make(track_metrics=True), in_full(make(track_metrics=True))
    for t in range(5):
        for optimizer in (kept, reference):
            p = irregular(optimizer, t)
            if t == 3:
                p.grad = None
            optimizer.step()
    assert_same(stored(kept), stored(reference))
    assert kept.metrics() == reference.metrics()
    assert not kept._steps._repeat.whole
    last = first(kept).detach().clone()
    irregular(kept, 6).grad = torch.zeros(7, 5, dtype=BF16).to_sparse()
    with pytest.raises(TypeError, match="sparse"):
        kept.step()
    assert_same_bits(first(kept).detach(), last)


@pytest.mark.parametrize("skipped", ["", "skip", "raise"])
def test_a_plan_holds_no_gradient_and_no_state(skipped: str) -> None:
    # Otherwise memory would stay taken after zero_grad and load_state_dict.
    optimizer = make()
    for t in range(2):
        give_gradients(optimizer, t)
        optimizer.step()
    gradient, state = first(optimizer).grad, optimizer.state[first(optimizer)]["exp_avg"]
    held = [weakref.ref(gradient), weakref.ref(state)]
    del gradient, state
    if skipped:
        give_gradients(optimizer, 2)
        optimizer.nonfinite = skipped
        first(optimizer).grad.fill_(math.nan)
        gradient = first(optimizer).grad
        held[0] = weakref.ref(gradient)
        with contextlib.suppress(NonFiniteGradientError):
            optimizer.step()
        del gradient
    optimizer.zero_grad()
    optimizer.state.clear()
    gc.collect()
    assert [r() for r in held] == [None, None]
