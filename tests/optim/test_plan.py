"""Steps that repeat: which a plan takes, that it holds nothing, changes no bit, hides no error.

The reference forgets before every step what could be repeated, and has its kernels called as
opaque operators (`in_full`). Whatever happens between two steps, both must end with the same bits,
or raise the same error with nothing changed.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
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
from tests.helpers.draws import bell
from tests.optim.arithmetics import BF16, FP32
from tests.optim.helpers import assert_same, give_gradients, in_full, parameter, random, stored

SHAPES = [(300,), (), (0,), (7, 5), (3, 4, 2), (11,)]
# Tall, wide, square, empty matrices.
MATRICES = [(6, 4), (4, 6), (5, 5), (0, 3), (12, 2), (1, 1), (3, 7)]


def make(kind: Any = AdamW, shapes: Any = SHAPES, **options: Any) -> Any:
    """Return an optimizer of two groups, the last parameter in float32."""
    params = [parameter(s, BF16, k) for k, s in enumerate(shapes[:-1])]
    params.append(parameter(shapes[-1], FP32, 9))
    return kind([{"params": params[:3]}, {"params": params[3:], "lr": 0.01}], **options)


def first(optimizer: Any) -> Parameter:
    p: Parameter = optimizer.param_groups[0]["params"][0]
    return p


def matrix(optimizer: Any) -> Any:
    return optimizer.param_groups[1]["params"][0]


Change = Callable[[Any, int], Any]


def trained(change: Change, keep: bool, count: int = 6, **options: Any) -> Any:
    """An optimizer after steps, before each of which `change` is called with the step's number."""
    optimizer = make(**options)
    if not keep:
        in_full(optimizer)
    for t in range(count):
        give_gradients(optimizer, t)
        change(optimizer, t)
        optimizer.step()
    return optimizer


def assert_plan_changes_nothing(change: Change, count: int = 6, **options: Any) -> Any:
    kept, reference = (trained(change, keep, count, **options) for keep in (True, False))
    assert_same(stored(kept), stored(reference))
    if kept._track_metrics:
        assert kept.metrics() == reference.metrics()
    return kept


# -- which steps a plan takes --------------------------------------------------------------------


def full_checks_fail(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("the full checks")

    monkeypatch.setattr(optimizer, "_collect", fail)
    prepared = run.prepared

    def others(bucket: Any, request: Any, *rest: Any) -> Any:
        return fail() if request.state is optimizer.state else prepared(bucket, request, *rest)

    monkeypatch.setattr(run, "prepared", others)


KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw-clipped": {"max_grad_value": 0.01},
    "adamw-split16": {"precision": "split16"},
    "adamw-stochastic": {"precision": "stochastic", "track_metrics": True},
    "adamw-low": {"low": "stochastic"},
    "adamw-eco-stochastic": {"precision": "eco_stochastic", "seed": -5},
    "adam": {"kind": Adam, "amsgrad": True},
    "nadam": {"kind": NAdam, "track_metrics": True},
    "nadam-stochastic": {"kind": NAdam, "precision": "stochastic"},
    "radam": {"kind": RAdam},
    "adamax": {"kind": Adamax},
    "lion": {"kind": Lion},
    "sgd": {"kind": SGD, "momentum": 0.9},
    "muon": {"kind": Muon, "shapes": MATRICES, "track_metrics": True},
    "muon-stochastic": {
        "kind": Muon, "shapes": MATRICES, "precision": "stochastic", "nesterov": False,
    },
    "muon-split16": {
        "kind": Muon, "shapes": MATRICES, "precision": "split16", "max_grad_norm": 0.01,
    },
}  # fmt: skip


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("kind", KINDS)
def test_repeated_step_takes_the_plan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(optimizer: Any, t: int) -> None:
        if t == 1 and "_take" not in vars(optimizer):
            full_checks_fail(optimizer, monkeypatch)

    kept = assert_plan_changes_nothing(change, 4, **KINDS[kind])
    assert int(kept.state[first(kept)]["step"]) == 4


def test_repeated_step_calls_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is as docs/architecture.md draws it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("call_paths")
    with mcf.executor("numba"):
        found = script.passed(script.step(AdamW, precision="plus"))
    assert len(found.functions) < 80
    assert len(found.files) < 10


def test_schedules_of_rates_cost_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, check = [], AdamW._check_group
    monkeypatch.setattr(AdamW, "_check_group", lambda o, g: (checked.append(g), check(o, g)))
    with mcf.executor("numba"):
        optimizer = make(precision="plus")
        group = optimizer.param_groups[0]
        for t in range(6):
            if t == 2:
                checked.clear()
            group["lr"], group["weight_decay"] = 1e-2 / (1 + t), 1e-2 * t
            set_grad(first(optimizer), random((300,), BF16, t))
            optimizer.step()
        assert not checked
        group["eps"] = 1e-6
        optimizer.step()
    assert len(checked) == 1


@pytest.mark.parametrize("precision", ["plus", "light"])
def test_accumulated_gradients_take_the_plan(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients in two components, of some parameters."""
    kept, reference = make(precision=precision), in_full(make(precision=precision))
    for optimizer in (kept, reference):
        GradientAccumulator(optimizer)
        for t in range(4):
            a, b, _ = optimizer.param_groups[0]["params"]
            for k in range(2):
                scale = random((300,), BF16, 10 * t + k)
                ((a * scale).sum() * 1e-3 + (b * 3 if k else 0.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if t == 0 and optimizer is kept:
                assert kept._steps._repeat.whole
                full_checks_fail(kept, monkeypatch)
    assert_same(stored(kept), stored(reference))


def test_hooks_and_a_compiled_step_take_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, reference = make(), in_full(make())
    seen: list[int] = []

    def double(optimizer: Any, *_: Any) -> None:
        first(optimizer).grad.mul_(2)

    kept.register_step_pre_hook(double)
    kept.register_step_post_hook(lambda o, *_: seen.append(int(o.state[first(o)]["step"])))
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


def test_parameters_next_to_the_plan_have_the_same_bits() -> None:
    def irregular(optimizer: Any, t: int) -> None:
        """Give a gradient that no plan takes; the others are as always."""
        p = matrix(optimizer)
        p.grad = None if t == 3 else random((5, 7), BF16, t).T

    kept = assert_plan_changes_nothing(irregular, 5, track_metrics=True)
    assert not kept._steps._repeat.whole
    last = first(kept).detach().clone()
    give_gradients(kept, 6)
    matrix(kept).grad = torch.zeros(7, 5, dtype=BF16).to_sparse()
    with pytest.raises(TypeError, match="sparse"):
        kept.step()
    assert_same_bits(first(kept).detach(), last)


@pytest.mark.parametrize("skipped", ["", "skip", "raise"])
def test_plan_holds_no_gradient_and_no_state(skipped: str) -> None:
    # Otherwise memory would stay taken after zero_grad and load_state_dict.
    optimizer = trained(lambda o, t: None, True, 2)
    held = [
        weakref.ref(first(optimizer).grad),
        weakref.ref(optimizer.state[first(optimizer)]["exp_avg"]),
    ]
    if skipped:
        give_gradients(optimizer, 2)
        optimizer.nonfinite = skipped
        first(optimizer).grad.fill_(math.nan)
        held[0] = weakref.ref(first(optimizer).grad)
        with contextlib.suppress(NonFiniteGradientError):
            optimizer.step()
    optimizer.zero_grad()
    optimizer.state.clear()
    gc.collect()
    assert [r() for r in held] == [None, None]


# -- changes between steps -----------------------------------------------------------------------


def set_data(p: Any, value: Any) -> None:
    p.data = value


def set_grad(p: Any, value: Any) -> None:
    p.grad = value


def state(o: Any) -> dict[str, Any]:
    found: dict[str, Any] = o.state[first(o)]
    return found


def negated_gradient(o: Any) -> None:
    g = torch.view_as_complex(bell((300, 2), 1, FP32))
    p = o.param_groups[1]["params"][-1]
    p.grad = g.conj().imag[:11]
    assert p.grad.is_neg()


def wide_gradient(o: Any) -> None:
    p: Any = first(o)
    if hasattr(p, "grad_dtype"):
        p.grad = None
        p.grad_dtype = None
    p.grad = random((300,), FP32, 6)


def other_precision(o: Any) -> None:
    o.param_groups[0]["precision"] = "plain"
    for p in o.param_groups[0]["params"]:
        del o.state[p]["param_lo"], o.state[p]["exp_avg_sq_lo"]


def with_gradient(size: int, seed: int) -> Parameter:
    p = parameter(size, BF16, seed)
    p.grad = random((size,), BF16, seed + 1)
    return p


CHANGES: dict[str, Callable[[Any], Any]] = {
    "new data": lambda o: set_data(first(o), first(o).data.clone()),
    "no gradient": lambda o: set_grad(first(o), None),
    "new gradient layout": lambda o: set_grad(matrix(o), random((5, 7), BF16, 5).T),
    "negated gradient": negated_gradient,
    "wide gradient": wide_gradient,
    "new state": lambda o: state(o).update(exp_avg=random((300,), BF16, 8)),
    "written state": lambda o: state(o)["exp_avg"].fill_(0.5),
    "new count": lambda o: state(o).update(step=torch.tensor(70)),
    "written count": lambda o: state(o)["step"].fill_(70),
    "no state": lambda o: o.state.pop(first(o)),
    "no states": lambda o: o.state.clear(),
    "loaded": lambda o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "hyperparameters": lambda o: o.param_groups[0].update(
        lr=0.5, betas=(0.5, 0.6), eps=0.1, weight_decay=0.3, maximize=True
    ),
    "clipped": lambda o: setattr(o, "max_grad_value", 0.01),
    "clipped norm": lambda o: setattr(o, "max_grad_norm", 0.01),
    "other precision": other_precision,
    "another group": lambda o: o.add_param_group({"params": [with_gradient(40, 77)]}),
    "another parameter": lambda o: o.param_groups[0]["params"].__setitem__(
        0, with_gradient(300, 79)
    ),
    "entry of others": lambda o: state(o).update(slow_buffer=torch.zeros(1)),
}


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_steps_take_effect(name: str) -> None:
    assert_plan_changes_nothing(lambda o, t: t == 3 and CHANGES[name](o))


def test_metrics_of_a_step_without_a_gradient() -> None:
    assert_plan_changes_nothing(
        lambda o, t: t == 3 and CHANGES["no gradient"](o), track_metrics=True
    )


def streams(o: Any, t: int) -> None:
    """Change what random bits depend on: the seed, the step, the place and the offset."""
    if t == 2:
        set_index_offset(first(o), 70000)
    if t == 3:
        o.param_groups[0]["seed"] = 9
    if t == 4:
        state(o)["step"].fill_(70)
    if t == 5:
        # The upper word of the index changes inside this tensor.
        set_index_offset(first(o), 2**32 - 100)


def numbers(o: Any, t: int) -> None:
    if t == 2:
        state(o)["mu_product"].fill_(0.5)
    if t == 4:
        state(o)["mu_product"] = state(o)["mu_product"] * 0.5


def second_components(o: Any, t: int) -> None:
    low = random((300,), BF16, 50 + t, 1e-3)
    o._grad_low = {first(o): low} if t in (1, 2) else {}


def rules_of_muon(o: Any, t: int) -> None:
    o.param_groups[0]["nesterov"] = t < 2
    o.param_groups[1]["adjust_lr_fn"] = "match_rms_adamw" if t > 1 else None


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (streams, {"precision": "stochastic"}),
        (numbers, {"kind": NAdam}),
        (second_components, {}),
        pytest.param(rules_of_muon, {"kind": Muon, "shapes": MATRICES}, marks=pytest.mark.slow),
    ],
)
def test_changes_of_several_steps_take_effect(change: Change, options: dict[str, Any]) -> None:
    assert_plan_changes_nothing(change, 7, **options)


def test_executors_between_steps_have_the_same_bits() -> None:
    kept, reference = make(), make()
    for t, name in enumerate(["numba", "numba", "torch", "numba", "numba"]):
        for optimizer in (kept, reference):
            give_gradients(optimizer, t)
            with mcf.executor(name if optimizer is kept else "torch"):
                optimizer.step()
    assert_same(stored(kept), stored(reference))


# -- errors between steps ------------------------------------------------------------------------

ERRORS: dict[str, Callable[[Any], Any]] = {
    "short state": lambda o: state(o).update(exp_avg=torch.zeros(299, dtype=BF16)),
    # The same object at the same address.
    "short state in place": lambda o: set_data(state(o)["exp_avg"], state(o)["exp_avg"].data[:299]),
    "strided in place": lambda o: set_data(matrix(o), matrix(o).data.as_strided((7, 5), (1, 1))),
    "another dtype": lambda o: set_data(
        state(o)["exp_avg"], state(o)["exp_avg"].data.view(torch.int16)
    ),
    "missing state": lambda o: state(o).pop("exp_avg"),
    "no tensor": lambda o: state(o).update(exp_avg=[0.0]),
    "sparse state": lambda o: state(o).update(exp_avg=state(o)["exp_avg"].to_sparse()),
    "expansion": lambda o: state(o).update(exp_avg=mcf.tensor(state(o)["exp_avg"], 2)),
    "expanded state": lambda o: state(o).update(exp_avg=state(o)["exp_avg"][:1].expand(300)),
    "state of another rule": lambda o: state(o).update(momentum_buffer=torch.zeros(1)),
    "sparse": lambda o: set_grad(first(o), torch.zeros(300, dtype=BF16).to_sparse()),
    "unknown precision": lambda o: o.param_groups[1].update(precision="best"),
    "wrong arithmetic": lambda o: o.param_groups[0].update(compute_dtype=torch.float16),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", ERRORS)
def test_errors_between_steps_are_those_of_a_full_step(name: str) -> None:
    optimizer = trained(lambda o, t: None, True, 3)
    assert optimizer._steps._repeat.holds(optimizer._request())
    ERRORS[name](optimizer)
    last = optimizer.param_groups[1]["params"][-1]
    before = last.detach().clone()
    with pytest.raises((TypeError, ValueError)) as kept:
        optimizer.step()
    assert_same_bits(last.detach(), before)
    in_full(optimizer)
    with pytest.raises((TypeError, ValueError)) as reference:
        optimizer.step()
    assert str(kept.value) == str(reference.value)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("made", [AdamW, NAdam, SGD, Lion])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    "change", [{"lr": None}, {"lr": torch.ones(2)}, {"weight_decay": None}, {"low": "up"}], ids=str
)
def test_hyperparameters_that_are_none_change_nothing(
    made: Any, steps: int, change: dict[str, Any]
) -> None:
    # In the last group, when the others could have stepped.
    optimizer = trained(lambda o, t: None, True, steps, kind=made, precision="light")
    give_gradients(optimizer, 9)
    before = stored(optimizer)
    optimizer.param_groups[1].update(change)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        optimizer.step()
    assert_same(stored(optimizer), before)
