"""Exact: training goes on with the same bits after a checkpoint, a copy or a pickle."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    FP32,
    FULL,
    Case,
    assert_same,
    cases,
    parameter,
    parameters,
    steps,
    stored,
)
from tests.optim.state_dict_cases import SHAPES, Transfer, adamw, through_file, twin
from tests.optim.variants import NEW, Variant, named, pairs, recent_pairs

pytestmark = pytest.mark.usefixtures("on_torch")


def mapped_file(state: dict[str, Any], path: Any) -> dict[str, Any]:
    torch.save(state, path)
    loaded: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
    return loaded


def in_process(state: dict[str, Any]) -> dict[str, Any]:
    return state


def assert_round_trip(make: Callable[[], Any], transfer: Transfer) -> None:
    """N + M steps without a break have the bits of N steps, a checkpoint and M steps."""
    optimizer = make()
    steps(optimizer, 3)
    other = twin(optimizer, make)
    other.load_state_dict(transfer(optimizer.state_dict()))
    saved, loaded = stored(optimizer), stored(other)
    for name in saved:
        if not name.endswith("grad"):
            assert_same_bits(loaded[name], saved[name], name)
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for each in (optimizer, other):
        steps(each, 5, seed=7)
    assert_same(stored(other), stored(optimizer), "after 5 more steps")


# Moments of float32 parameters in fewer bytes.
NARROW = [Case(precision, FP32, FP32) for precision in ("bf16_sr", "8bit", "4bit")]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=15)
@pytest.mark.parametrize("transfer", [in_process, through_file])
@pytest.mark.parametrize("case", cases() + FULL + NARROW, ids=str)
def test_adamw_goes_on_with_the_same_bits(case: Case, transfer: Transfer) -> None:
    assert_round_trip(lambda: adamw(case), transfer)


SGDS = pairs([named("sgd"), named("sgd-momentum")], "cases")
OTHERS = pairs(NEW, "few") + [pair for pair in SGDS if pair[1].dtype == BF16] + recent_pairs(1)


@pytest.mark.sampled(every=45)
@pytest.mark.parametrize("transfer", [in_process, through_file])
@pytest.mark.parametrize(("variant", "case"), OTHERS, ids=str)
def test_other_rules_go_on_with_the_same_bits(
    variant: Variant, case: Case, transfer: Transfer
) -> None:
    def make() -> Any:
        params = [parameter(s, case.dtype, k) for k, s in enumerate(SHAPES)]
        return variant.make(params, **variant.options, **case.options())

    assert_round_trip(make, transfer)


def test_mapped_file(tmp_path: Any) -> None:
    case = Case("plus", BF16, FP32)
    assert_round_trip(lambda: adamw(case), lambda s: mapped_file(s, tmp_path / "state.pt"))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_with_the_same_bits(how: str) -> None:
    optimizer = adamw(Case("plus", BF16, FP32), track_metrics=True)
    steps(optimizer, 3)
    # Neither way of copying takes gradients along.
    optimizer.zero_grad()
    other = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    assert_same(stored(other), stored(optimizer))
    assert not any(p is q for p in parameters(optimizer) for q in parameters(other))
    for each in (optimizer, other):
        steps(each, 3, seed=7)
    assert_same(stored(other), stored(optimizer))
    assert other.metrics() == optimizer.metrics()
