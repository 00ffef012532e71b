"""Steps that repeat: what an optimizer keeps from the step before changes no bit, hides no error.

The reference forgets its plan before every step, and so takes the general path. Whatever happens
between two steps, both must end with the same bits, or raise the same error with nothing changed.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, Lion, NAdam
from mcf.optim.gradients import NonFiniteGradientError
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, assert_same, parameter, random, stored

SHAPES = [(300,), (), (0,), (7, 5), (3, 4, 2)]


def make(kind: Any = AdamW, **options: Any) -> Any:
    params = [parameter(s, BF16, k) for k, s in enumerate(SHAPES)]
    params.append(parameter(11, FP32, 9))
    return kind([{"params": params[:3]}, {"params": params[3:], "lr": 0.01}], **options)


def give_gradients(optimizer: Any, t: int) -> None:
    for k, p in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        p.grad = random(p.shape, p.dtype, 100 * t + k, 0.1)


def first(optimizer: Any) -> Parameter:
    p: Parameter = optimizer.param_groups[0]["params"][0]
    return p


def replace_data(o: Any) -> None:
    first(o).data = first(o).data.clone()


def no_gradient(o: Any) -> None:
    first(o).grad = None


def new_gradient_layout(o: Any) -> None:
    p = o.param_groups[1]["params"][0]
    p.grad = random((5, 7), BF16, 5).T


def negated_gradient(o: Any) -> None:
    g = torch.view_as_complex(torch.randn(300, 2, generator=torch.Generator().manual_seed(1)))
    p = o.param_groups[1]["params"][-1]
    p.grad = g.conj().imag[:11]
    assert p.grad.is_neg()


def wide_gradient(o: Any) -> None:
    p: Any = first(o)
    if hasattr(p, "grad_dtype"):
        p.grad = None
        p.grad_dtype = None
    p.grad = random((300,), FP32, 6)


def replace_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = random((300,), BF16, 8)


def write_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"].fill_(0.5)


def replace_step(o: Any) -> None:
    o.state[first(o)]["step"] = torch.tensor(70)


def write_step(o: Any) -> None:
    o.state[first(o)]["step"].fill_(70)


def forget_state(o: Any) -> None:
    del o.state[first(o)]


def forget_all(o: Any) -> None:
    o.state.clear()


def reload(o: Any) -> None:
    o.load_state_dict(copy.deepcopy(o.state_dict()))


def hyperparameters(o: Any) -> None:
    o.param_groups[0].update(lr=0.5, betas=(0.5, 0.6), eps=0.1, weight_decay=0.3, maximize=True)


def clip(o: Any) -> None:
    o.max_grad_value = 0.01


def clip_norm(o: Any) -> None:
    o.max_grad_norm = 0.01


def other_precision(o: Any) -> None:
    o.param_groups[0]["precision"] = "plain"
    for p in o.param_groups[0]["params"]:
        del o.state[p]["param_lo"], o.state[p]["exp_avg_sq_lo"]


def add_group(o: Any) -> None:
    p = parameter(40, BF16, 77)
    p.grad = random((40,), BF16, 78)
    o.add_param_group({"params": [p]})


def swap_parameter(o: Any) -> None:
    p = parameter(300, BF16, 79)
    p.grad = random((300,), BF16, 80)
    o.param_groups[0]["params"][0] = p


CHANGES = [
    replace_data, no_gradient, new_gradient_layout, negated_gradient, wide_gradient, replace_state,
    write_state, replace_step, write_step, forget_state, forget_all, reload, hyperparameters, clip,
    clip_norm, other_precision, add_group, swap_parameter,
]  # fmt: skip


def run(change: Callable[[Any], None], keep: bool, **options: Any) -> Any:
    optimizer = make(**options)
    for t in range(6):
        give_gradients(optimizer, t)
        if t == 3:
            change(optimizer)
        if not keep:
            optimizer._plan = None
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_between_steps(change: Callable[[Any], None]) -> None:
    kept, reference = run(change, True), run(change, False)
    assert_same(stored(kept), stored(reference))


def test_metrics() -> None:
    kept = run(no_gradient, True, track_metrics=True)
    assert kept.metrics() == run(no_gradient, False, track_metrics=True).metrics()


def short_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = torch.zeros(299, dtype=BF16)


def narrow_in_place(o: Any) -> None:
    # The same object at the same address.
    t = o.state[first(o)]["exp_avg"]
    t.data = t.data[:299]


def strided_in_place(o: Any) -> None:
    p = o.param_groups[1]["params"][0]
    p.data = p.data.as_strided((7, 5), (1, 1))


def state_of_another_dtype(o: Any) -> None:
    t = o.state[first(o)]["exp_avg"]
    t.data = t.data.view(torch.int16)


def missing_state(o: Any) -> None:
    del o.state[first(o)]["exp_avg"]


def state_no_tensor(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = [0.0]


def foreign_state(o: Any) -> None:
    o.state[first(o)]["other"] = torch.zeros(1)


def sparse_gradient(o: Any) -> None:
    first(o).grad = torch.zeros(300, dtype=BF16).to_sparse()


def unknown_precision(o: Any) -> None:
    o.param_groups[1]["precision"] = "best"


def wrong_arithmetic(o: Any) -> None:
    o.param_groups[0]["compute_dtype"] = torch.float16


ERRORS = [
    short_state, narrow_in_place, strided_in_place, state_of_another_dtype, missing_state,
    state_no_tensor, foreign_state, sparse_gradient, unknown_precision, wrong_arithmetic,
]  # fmt: skip


@pytest.mark.parametrize("change", ERRORS, ids=lambda f: f.__name__)
def test_errors_between_steps(change: Callable[[Any], None]) -> None:
    optimizer = make()
    for t in range(3):
        give_gradients(optimizer, t)
        optimizer.step()
    assert optimizer._plan.holds(optimizer)
    change(optimizer)
    last = optimizer.param_groups[1]["params"][-1]
    before = last.detach().clone()
    with pytest.raises((TypeError, ValueError)) as kept:
        optimizer.step()
    assert_same_bits(last.detach(), before)
    optimizer._plan = None
    with pytest.raises((TypeError, ValueError)) as reference:
        optimizer.step()
    assert str(kept.value) == str(reference.value)


@pytest.mark.parametrize("executor", ["numba", "triton"])
def test_a_scale_on_the_device(executor: str) -> None:
    # As on a GPU, where the factor of clipping stays there.
    if executor == "triton":
        pytest.importorskip("triton", reason="the GPU executor: triton is for Linux only")
    kept, reference = make(), make()
    with mcf.executor(executor):
        for optimizer in (kept, reference):
            for t in range(2):
                give_gradients(optimizer, t)
                optimizer.step()
            give_gradients(optimizer, 2)
        assert kept._plan.holds(kept)
        scale = torch.tensor(0.3, dtype=torch.float64)
        assert kept._plan.run(kept, scale, None) == []
        reference._general(reference._collect(), 0.3)
    assert_same(stored(kept), stored(reference))


def irregular(optimizer: Any, t: int) -> Any:
    """A gradient that no plan takes; the others are as always."""
    give_gradients(optimizer, t)
    p = optimizer.param_groups[1]["params"][0]
    p.grad = random((5, 7), BF16, t).T
    return p


def test_parameters_beside_the_plan() -> None:
    kept, reference = make(track_metrics=True), make(track_metrics=True)
    for t in range(5):
        for optimizer in (kept, reference):
            p = irregular(optimizer, t)
            if t == 3:
                p.grad = None
            reference._plan = None
            optimizer.step()
    assert_same(stored(kept), stored(reference))
    assert kept.metrics() == reference.metrics()
    assert not kept._plan.whole
    last = first(kept).detach().clone()
    irregular(kept, 6).grad = torch.zeros(7, 5, dtype=BF16).to_sparse()
    with pytest.raises(TypeError, match="sparse"):
        kept.step()
    assert_same_bits(first(kept).detach(), last)


def test_executors_between_steps() -> None:
    kept, reference = make(), make()
    for t, name in enumerate(["numba", "numba", "torch", "numba", "numba"]):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            with mcf.executor(name if optimizer is kept else "torch"):
                optimizer.step()
    assert_same(stored(kept), stored(reference))


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_a_repeated_step_takes_the_plan(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = make(kind)
    give_gradients(optimizer, 0)
    optimizer.step()

    def fail(self: Any) -> Any:
        raise AssertionError("the general path")

    monkeypatch.setattr(kind, "_collect", fail)
    monkeypatch.setattr(
        kind, "_general", lambda self, work, scale: None if not work else fail(self)
    )
    for t in range(1, 4):
        give_gradients(optimizer, t)
        optimizer.step()
    assert int(optimizer.state[first(optimizer)]["step"]) == 4


@pytest.mark.parametrize("made", [AdamW, NAdam, SGD, Lion])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    "change", [{"lr": None}, {"lr": torch.ones(2)}, {"weight_decay": None}, {"low": "up"}], ids=str
)
def test_hyperparameters_that_are_none(made: Any, steps: int, change: dict[str, Any]) -> None:
    # In the last group, when the others could have stepped.
    optimizer = make(made, precision="light")
    for t in range(steps):
        give_gradients(optimizer, t)
        optimizer.step()
    give_gradients(optimizer, 9)
    before = stored(optimizer)
    optimizer.param_groups[1].update(change)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        optimizer.step()
    assert_same(stored(optimizer), before)


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


def test_written_tensors_are_marked_for_autograd() -> None:
    optimizer = make()
    for t in range(3):
        give_gradients(optimizer, t)
        versions = [p._version for g in optimizer.param_groups for p in g["params"]]
        optimizer.step()
        now = [p._version for g in optimizer.param_groups for p in g["params"]]
        assert all(b > a for a, b in zip(versions, now, strict=True))


def test_without_comparing_layouts_an_error_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    # The mutant: only addresses are compared.
    monkeypatch.setattr("mcf.optim.plan._Layouts.fit", lambda self, tensors: True)
    optimizer = make()
    for t in range(2):
        give_gradients(optimizer, t)
        optimizer.step()
    narrow_in_place(optimizer)
    optimizer.step()
