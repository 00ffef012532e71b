"""Parameter groups by name and module, and weight decay decoupled from the learning rate."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from mcf.optim import SGD, Adam, Adamax, AdamW, Lion, NAdam, RAdam, param_groups
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import assert_same, parameter, steps, stored
from tests.optim.variants import RECENT_RULES, Variant

pytestmark = pytest.mark.usefixtures("on_torch")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.head(self.norm(self.inner(self.embedding(x))).to(BF16))
        return h


def names(groups: list[dict[str, Any]]) -> list[list[str]]:
    return [[name for name, _ in g["params"]] for g in groups]


def test_first_rule_wins() -> None:
    model = Block().to(BF16)
    groups = param_groups(
        model,
        (nn.LayerNorm, {"dtype": FP32, "weight_decay": 0.0}),
        ("*.bias", {"weight_decay": 0.0}),
        (
            lambda name, p, owner: p.ndim == 2 and isinstance(owner, nn.Embedding),
            {"precision": "master"},
        ),
    )
    assert names(groups) == [
        ["inner.1.weight", "inner.1.bias", "norm.weight", "norm.bias"],
        ["inner.0.bias", "inner.2.bias"],
        ["embedding.weight"],
        ["inner.0.weight", "inner.2.weight"],
    ]
    assert [set(g) - {"params"} for g in groups] == [
        {"weight_decay"}, {"weight_decay"}, {"precision"}, set(),
    ]  # fmt: skip
    assert {p.dtype for _, p in groups[0]["params"]} == {FP32}
    assert {p.dtype for g in groups[1:] for _, p in g["params"]} == {BF16}


def test_rules_that_are_wrong() -> None:
    model = Block().to(BF16)
    before = copy.deepcopy(model.state_dict())
    for rule, error, words in (
        (("norms.*", {}), ValueError, "no parameter of the module matches 'norms"),
        ((nn.Conv2d, {}), ValueError, "matches <class .*Conv2d"),
        (("*", {"dtype": torch.int8}), ValueError, "torch.int8; allowed are floating"),
        ((3, {}), TypeError, r"rules\[1\] matches 3; allowed are classes"),
        ("*.bias", TypeError, r"rules\[1\] is '\*.bias'; allowed is a pair"),
    ):
        with pytest.raises(error, match=words):
            param_groups(model, ("norm.*", {"dtype": FP32}), rule)
        assert {k: t.dtype for k, t in model.state_dict().items()} == dict.fromkeys(before, BF16)
    model.norm.weight.grad = torch.zeros(8, dtype=BF16)
    with pytest.raises(ValueError, match=r"norm.weight has a gradient of torch.bfloat16"):
        param_groups(model, ("norm.*", {"dtype": FP32}))


def test_everything_in_one_rule() -> None:
    assert len(param_groups(nn.Linear(2, 2), ("*", {"lr": 1.0}))) == 1


# --- decouple_lr ----------------------------------------------------------------------------


def test_it_is_the_weight_decay_divided_by_the_largest_rate() -> None:
    results = []
    for options in (
        {"weight_decay": 1e-3, "decouple_lr": True, "peak_lr": 2.0**-7},
        {"weight_decay": 1e-3 * 2.0**7},
    ):
        optimizer = AdamW([parameter(20, BF16), parameter(9, FP16)], 1e-3, **options)
        steps(optimizer, 3)
        results.append(stored(optimizer))
    assert_same(*results)


def test_each_group_has_its_own_and_checkpoints_keep_it() -> None:
    p, q = parameter(3, BF16), parameter(3, BF16)
    groups = [{"params": [p], "lr": 0.5}, {"params": [q], "decouple_lr": False}]
    optimizer = AdamW(groups, 0.25, decouple_lr=True, weight_decay=1e-5)
    assert [g["peak_lr"] for g in optimizer.param_groups] == [0.5, None]
    optimizer.param_groups[0]["lr"] = 1e-6
    other = AdamW([{"params": [parameter(3, BF16)]}, {"params": [parameter(3, BF16)]}])
    other.load_state_dict(optimizer.state_dict())
    assert [g["peak_lr"] for g in other.param_groups] == [0.5, None]
    assert [g["decouple_lr"] for g in other.param_groups] == [True, False]


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (
        SGD,
        {"decouple_lr": True},
        ValueError,
        "weight decay of SGD.*decoupled_weight_decay=True as well",
    ),
    (Adam, {"decouple_lr": True}, ValueError, "weight decay of Adam is not decoupled"),
    (AdamW, {"peak_lr": 1.0}, ValueError, r"peak_lr is 1\.0 and decouple_lr is False"),
    (AdamW, {"peak_lr": 0.0, "decouple_lr": True}, ValueError, r"peak_lr: 0\.0; allowed"),
    (AdamW, {"peak_lr": "1", "decouple_lr": True}, TypeError, "peak_lr must be a number or None"),
    (AdamW, {"decouple_lr": None}, TypeError, "decouple_lr must be True or False, got None"),
]


@pytest.mark.parametrize(("make", "options", "error", "words"), REFUSED)
def test_refused(make: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make([parameter(3, BF16)], **options)


# -- decay -----------------------------------------------------------------------------------------


MAKES = (Adam, NAdam, RAdam, Adamax, SGD)


@pytest.mark.parametrize("make", [*MAKES, AdamW, Lion])
def test_apart_from_the_rate(make: Any) -> None:
    """p <- p (1 - lr / peak_lr weight_decay) where all gradients are 0, whatever the rate."""
    options = {"weight_decay": 0.25, "decouple_lr": True}
    if make in MAKES:
        options["decoupled_weight_decay"] = True
    for rate in (2.0**-10, 0.5):
        p = Parameter(torch.ones(3, dtype=FP64))
        optimizer = make([p], rate, **options)
        for t in range(3):
            optimizer.param_groups[0]["lr"] = rate * 0.5**t
            p.grad = torch.zeros_like(p)
            optimizer.step()
        # Powers of two: every operation is exact.
        right = (1 - 2.0**-2) * (1 - 2.0**-3) * (1 - 2.0**-4)
        assert_same_bits(p.detach(), torch.full((3,), right, dtype=FP64))


@pytest.mark.parametrize("variant", RECENT_RULES, ids=str)
def test_decay_at_the_peak_rate_is_larger_by_its_inverse(variant: Variant) -> None:
    found = []
    for options in ({"weight_decay": 0.5}, {"weight_decay": 0.005, "decouple_lr": True}):
        p = parameter(6, FP64)
        steps(variant.make([p], **{**variant.options, "lr": 0.01, **options}), 1)
        found.append(p.detach())
    assert (found[0] - found[1]).abs().max() < 1e-15


@pytest.mark.parametrize("make", MAKES)
def test_a_penalty_in_the_gradient_is_refused(make: Any) -> None:
    words = f"weight decay of {make.__name__} is not decoupled.*decoupled_weight_decay=True"
    with pytest.raises(ValueError, match=words):
        make([parameter(3, BF16)], decouple_lr=True)
    with pytest.raises(TypeError, match="decoupled_weight_decay must be True or False, got 1"):
        make([parameter(3, BF16)], decoupled_weight_decay=1)


@pytest.mark.parametrize("make", [Adamax, SGD])
def test_checkpoints_of_before_have_a_penalty(make: Any) -> None:
    runs = []
    for older in (False, True):
        p = parameter(9, BF16)
        optimizer = make([p], 0.1, weight_decay=0.1)
        steps(optimizer, 3)
        if older:
            saved = copy.deepcopy(optimizer.state_dict())
            del saved["param_groups"][0]["decoupled_weight_decay"]
            optimizer = make([p], 0.1, decoupled_weight_decay=True)
            optimizer.load_state_dict(saved)
        steps(optimizer, 3, seed=5)
        runs.append(stored(optimizer))
    assert_same(*runs)
