"""Metrics against their definitions, computed in float64 from what is stored before and after.

d is the update that the arithmetic intended, taken from the models of the rounding tests, which
record it; e what the stored value moved by. edq = <e, d> / |d| and |d| within 1e-4 (float32 lanes),
shares of lost additions exactly: they are counts.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.kernels.formats import format_of
from mcf.optim import SGD, AdamW
from tests.helpers import assert_same_bits, numbers
from tests.optim.arithmetics import BF16, FP32, FP64, FULL, Case, cases
from tests.optim.helpers import (
    assert_same,
    parameter,
    parameters,
    random,
    second_moment,
    steps,
    stored,
    value,
)
from tests.optim.models import Registers, Strict
from tests.optim.variants import NEW, Variant, named, pairs

ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 0.1}


class RecordingRegisters(Registers):
    def accumulate(self, s: Any, u: Any) -> Any:
        object.__setattr__(self, "update", torch.from_numpy(u).double())
        return super().accumulate(s, u)


class RecordingStrict(Strict):
    def accumulate(self, s: Any, u: Fraction) -> Any:
        self.update = float(u)
        return super().accumulate(s, u)


def intended(
    make: Any, case: Case, before: dict[str, Tensor], g: Tensor, t: int, **options: Any
) -> Tensor:
    """The update d of one step, in float64."""
    rule = make.__name__.lower()
    if case.strict:
        strict = RecordingStrict(format_of(case.dtype), case.precision)
        columns = {n: numbers(x) for n, x in before.items() if x.shape == g.shape}
        found = []
        for k, gradient in enumerate(numbers(g)):
            strict.after(rule, {n: c[k] for n, c in columns.items()}, gradient, t=t, **options)
            found.append(strict.update)
        return torch.tensor(found, dtype=FP64)
    full = case.dtype in (FP32, FP64)
    wide = RecordingRegisters("plain" if full else case.precision, case.dtype)
    state = {n: wide.register(x) for n, x in before.items()}
    wide.after(rule, state, wide.register(g), t=t, **options)
    update: Tensor = wide.update  # type: ignore[attr-defined]
    return update


def read(d: Tensor, e: Tensor) -> dict[str, float]:
    """The metrics of the parameter, from the definitions."""
    along, squared = float((e * d).sum()), float((d * d).sum())
    return {
        "edq": along / math.sqrt(squared),
        "update_norm": math.sqrt(squared),
        "edq_ratio": along / squared,
        "lost_param": float(((e == 0) & (d != 0)).double().mean()),
    }


def one_more_step(
    make: Any, case: Case, n: int, **options: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """The metrics of a sixth step: the optimizer's and the definitions'."""
    p = parameter(n, case.dtype, 1)
    optimizer = make([p], **options, **case.options(), track_metrics=True)
    steps(optimizer, 5)
    # Its own copy of every tensor, without which `master_weight` would show the new value.
    state = {name: x.clone() for name, x in optimizer.state[p].items()}
    before = {"param": p.detach().clone(), **state}
    old = value(optimizer, p)
    old_v = second_moment(optimizer, p) if "exp_avg_sq" in before else None
    p.grad = random(n, case.dtype, 99, 0.1)
    optimizer.step()
    d = intended(make, case, before, p.grad, 6, **options)
    expected = read(d, value(optimizer, p) - old)
    if old_v is not None:
        same = torch.ones(n, dtype=torch.bool)
        for name in ("exp_avg_sq", "exp_avg_sq_lo"):
            if name in state:
                same &= state[name] == optimizer.state[p][name]
        expected["lost_exp_avg_sq"] = float(
            (same & (p.grad.double() ** 2 != old_v)).double().mean()
        )
    return optimizer.metrics(), expected


def assert_close(measured: dict[str, Any], expected: dict[str, float]) -> None:
    for name, wanted in expected.items():
        if name.startswith("lost"):
            assert measured[name] == pytest.approx(wanted, abs=1e-12), name
        else:
            assert measured[name] == pytest.approx(wanted, rel=1e-4), name


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", cases(dtypes=(BF16,)) + FULL, ids=str)
def test_adamw(case: Case) -> None:
    with mcf.executor("torch"):
        measured, expected = one_more_step(AdamW, case, 400, **ADAMW)
    assert set(measured) == {*expected, "groups"}
    assert_close(measured, expected)
    assert_close(measured["groups"][0], expected)
    # Not trivially: one component loses some of its additions and the rest do not lose all.
    if case.precision in ("plain", "fp32_states") and case not in FULL:
        assert 0.05 < measured["lost_param"] < 0.95
        assert 0.1 < measured["edq_ratio"] < 2
    if case.precision == "plain":
        assert 0 < measured["lost_exp_avg_sq"] < 1
    if case.precision in ("plus", "master"):
        assert measured["lost_param"] < 0.05
        assert measured["edq_ratio"] == pytest.approx(1, abs=0.01)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("variant", "case"), pairs([*NEW, named("sgd")], "few"), ids=str)
def test_other_rules(variant: Variant, case: Case) -> None:
    with mcf.executor("torch"):
        measured, expected = one_more_step(variant.make, case, 200, **variant.options)
    assert set(measured) == {*expected, "groups"}
    assert ("lost_exp_avg_sq" in measured) == (variant.rule not in ("adamax", "lion", "sgd"))
    assert_close(measured, expected)


@pytest.mark.parametrize("executor", ["torch", pytest.param("numba", marks=pytest.mark.slow)])
def test_accuracy_on_a_large_tensor(executor: str) -> None:
    with mcf.executor(executor):
        measured, expected = one_more_step(AdamW, Case("plain", BF16, FP32), 300_000, **ADAMW)
    assert_close(measured, expected)


def tracked(executor: str, track: bool, case: Case) -> AdamW:
    shapes = [(1029,), (), (0,), (7, 5)]
    params = [parameter(s, case.dtype, k) for k, s in enumerate(shapes)]
    # One with a gradient of other strides, which takes the path of slabs.
    optimizer = AdamW(params, **ADAMW, **case.options(), track_metrics=track)
    with mcf.executor(executor):
        for t in range(3):
            for k, p in enumerate(params):
                p.grad = random(p.shape[::-1], case.dtype, 10 * t + k, 0.1).T if p.ndim == 2 else (
                    random(p.shape, case.dtype, 10 * t + k, 0.1)
                )  # fmt: skip
            optimizer.step()
    return optimizer


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("executor", ["torch", "numba", "triton"])
@pytest.mark.parametrize(
    "case", [Case("plus", BF16, FP32), Case("plus", BF16, BF16), Case("plain", FP64, FP32)], ids=str
)
def test_tracking_changes_no_bit(executor: str, case: Case) -> None:
    if executor == "triton":
        pytest.importorskip("triton", reason="the GPU executor: triton is for Linux only")
    watched, reference = tracked(executor, True, case), tracked("torch", False, case)
    assert_same(stored(watched), stored(reference))
    expected = tracked("torch", True, case).metrics()
    measured = watched.metrics()
    assert_close(measured, {k: v for k, v in expected.items() if k != "groups"})


def test_groups_and_total() -> None:
    small, large, idle = parameter(50, BF16, 1), parameter(300, BF16, 2), parameter(3, BF16, 3)
    optimizer = AdamW(
        [
            {"params": [small], "precision": "plain"},
            {"params": [large, parameter(7, FP32, 4)], "lr": 0.1},
            {"params": [idle]},
        ],
        **ADAMW, track_metrics=True,
    )  # fmt: skip
    with mcf.executor("torch"):
        for p in parameters(optimizer):
            p.grad = None if p is idle else random(p.shape, p.dtype, p.numel(), 0.1)
        optimizer.step()
    total = optimizer.metrics()
    first, second, third = total["groups"]
    norms = [g["update_norm"] for g in (first, second)]
    assert total["update_norm"] == pytest.approx(math.hypot(*norms))
    along = sum(g["edq"] * g["update_norm"] for g in (first, second))
    assert total["edq"] == pytest.approx(along / math.hypot(*norms))
    for name in ("lost_param", "lost_exp_avg_sq"):
        assert total[name] == pytest.approx((50 * first[name] + 307 * second[name]) / 357)
    assert first["lost_param"] > second["lost_param"]
    # No gradient, no update, and no share of anything; but the same names.
    assert third["edq"] == third["update_norm"] == 0
    assert set(third) == set(first)
    assert all(math.isnan(third[n]) for n in ("edq_ratio", "lost_param", "lost_exp_avg_sq"))


def test_flat_for_loggers() -> None:
    groups = [{"params": [parameter(5, BF16, 1)]}, {"params": [parameter(3, FP32, 2)]}]
    optimizer = AdamW(groups, **ADAMW, track_metrics=True)
    with mcf.executor("torch"):
        steps(optimizer, 2)
    nested, flat = optimizer.metrics(), optimizer.metrics(flat=True)
    # What every logger takes: strings and numbers.
    assert {(type(k), type(v)) for k, v in flat.items()} == {(str, float)}
    per_group = nested.pop("groups")
    assert flat == nested | {
        f"groups/{k}/{name}": value for k, g in enumerate(per_group) for name, value in g.items()
    }
    assert flat["groups/1/update_norm"] > 0


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_a_tensor_in_pieces(executor: str) -> None:
    whole = random(60, BF16, 1)
    gradient = random(60, BF16, 2, 0.1)
    found = []
    for sizes in ([60], [7, 30, 0, 23]):
        params = [Parameter(x.clone()) for x in whole.split(sizes)]
        optimizer = AdamW(params, **ADAMW, precision="plain", track_metrics=True)
        for p, g in zip(params, gradient.split(sizes), strict=True):
            p.grad = g
        with mcf.executor(executor):
            optimizer.step()
        found.append(optimizer.metrics())
    assert_close(found[1], {k: v for k, v in found[0].items() if k != "groups"})
    assert 0 < found[0]["lost_param"] < 1


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("make", [AdamW, SGD])
def test_nothing_to_measure(make: Any) -> None:
    with pytest.raises(RuntimeError, match="track_metrics=True"):
        make([parameter(3, BF16)]).metrics()
    empty, unused = Parameter(torch.zeros(0, dtype=BF16)), parameter(3, BF16)
    empty.grad = torch.zeros_like(empty)
    still = make([p := parameter(20, BF16)], 0.5, track_metrics=True)
    steps(still, 1)
    still.param_groups[0]["lr"] = 0.0
    p.grad = torch.zeros_like(p)
    for optimizer in (*(make([x], track_metrics=True) for x in (empty, unused)), still):
        if optimizer is not still:
            with pytest.raises(RuntimeError, match="needs a step first"):
                optimizer.metrics()
        optimizer.step()
        found = optimizer.metrics()
        assert found["update_norm"] == found["edq"] == 0
        lost = found["lost_param"]
        assert lost == 0 if optimizer is still else math.isnan(lost)
        assert ("lost_exp_avg_sq" in found) == (make is AdamW)


@pytest.mark.usefixtures("on_torch")
def test_lost_additions_by_hand() -> None:
    # 1 + 2^-10 is lost in bf16, 2^-5 + 2^-10 is not; a zero update is not an addition.
    p = Parameter(torch.tensor([1.0, 2.0**-5, 1.0, 2.0**-10], dtype=BF16))
    p.grad = torch.tensor([-1.0, -1.0, 0.0, 1.0], dtype=BF16)
    optimizer = SGD([p], 2.0**-10, precision="plain", track_metrics=True)
    optimizer.step()
    found = optimizer.metrics()
    assert found["lost_param"] == 0.25
    assert found["update_norm"] == pytest.approx(3**0.5 * 2.0**-10)
    assert found["edq_ratio"] == pytest.approx(2 / 3)
    assert_same_bits(p.detach(), torch.tensor([1, 2.0**-5 + 2.0**-10, 1, 0], dtype=BF16))
