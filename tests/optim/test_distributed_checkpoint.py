"""torch.distributed.checkpoint's state dicts, in all their options; groups that are plain data."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import mcf
from mcf.optim import PRECISIONS, SGD, AdamW, Muon
from tests.optim.arithmetics import BF16, FP16, FP32
from tests.optim.helpers import assert_same, parameter, random, steps, stored, through_file
from tests.optim.variants import RECENT_RULES, VARIANTS

if not dist.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)
        self.to(BF16)
        self.first.bias.requires_grad_(False)
        with torch.no_grad():
            for k, p in enumerate(self.parameters()):
                p.copy_(random(p.shape, BF16, k))

    def train_on(self, optimizer: Any, first: int, last: int) -> None:
        for t in range(first, last):
            for k, p in enumerate(self.parameters()):
                p.grad = random(p.shape, BF16, 10 * t + k) if p.requires_grad else None
            optimizer.step()
            optimizer.zero_grad()


def made(make: Any, **options: Any) -> tuple[Model, Any]:
    model = Model()
    groups = [
        {"params": list(model.first.parameters())},
        {"params": list(model.second.parameters()), "lr": 0.125},
    ]
    return model, make(groups, **{"lr": 0.01, **options})


def assert_resumes(make: Any, options: dict[str, Any], *, twice: bool = False, **kept: Any) -> None:
    how = StateDictOptions(**kept)
    model, optimizer = made(make, **options)
    model.train_on(optimizer, 0, 3)
    saved = through_file(get_optimizer_state_dict(model, optimizer, options=how))
    other, again = made(make, **options)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    if twice:
        # One that has states of its own.
        other.train_on(again, 5, 6)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
    set_optimizer_state_dict(other, again, saved, options=how)
    for m, o in ((model, optimizer), (other, again)):
        m.train_on(o, 3, 5)
    assert_same(stored(again), stored(optimizer))
    assert [g["lr"] for g in again.param_groups] == [0.01, 0.125]


FLAGS = ("full_state_dict", "cpu_offload", "flatten_optimizer_state_dict", "ignore_frozen_params")


# All that torch has; `strict`, which is about missing names, with few of the others.
OPTIONS = everyday(
    itertools.product(itertools.product([False, True], repeat=4), (True, False)),
    lambda flags, strict: strict or sum(flags) in (0, 1),
    id=lambda flags, strict: f"{flags}-{strict}",
)


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize(("flags", "strict"), OPTIONS)
def test_all_options(flags: tuple[bool, ...], strict: bool) -> None:
    kept = dict(zip(FLAGS, flags, strict=True))
    if kept["full_state_dict"] and kept["flatten_optimizer_state_dict"]:
        # What torch itself cannot load, of any optimizer: it looks for 'param_groups.0.params.0'.
        model, optimizer = made(AdamW)
        model.train_on(optimizer, 0, 1)
        how = StateDictOptions(**kept, strict=strict)
        found = through_file(get_optimizer_state_dict(model, optimizer, options=how))
        assert found["param_groups.second.bias.lr"] == 0.125
        assert found["param_groups.second.bias.compute_dtype"] == "float32"
        return
    assert_resumes(AdamW, {}, strict=strict, **kept)
    assert_resumes(AdamW, {"capturable": True}, strict=strict, twice=True, **kept)


_RULES = [(v.make, {**v.options, "lr": 0.01}) for v in [*VARIANTS, *RECENT_RULES]]


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("make", "options"), [*((AdamW, {"precision": p}) for p in PRECISIONS), *_RULES], ids=str
)
def test_all_precisions_and_rules_resume(make: Any, options: dict[str, Any]) -> None:
    assert_resumes(make, options, full_state_dict=True, cpu_offload=True)
    assert_resumes(make, options, flatten_optimizer_state_dict=True)


@pytest.mark.parametrize("make", [*dict.fromkeys(v.make for v in [*VARIANTS, *RECENT_RULES]), Muon])
def test_groups_are_plain_data(make: Any) -> None:
    optimizer = make([parameter((4, 4), BF16)], precision="plain")
    groups = optimizer.state_dict()["param_groups"]
    # As JSON has it, tuples are lists.
    assert json.loads(json.dumps(groups)) == [
        {k: list(v) if isinstance(v, tuple) else v for k, v in g.items()} for g in groups
    ]


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_compute_dtype_by_name(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    results = []
    for given in (dtype, name):
        optimizer = AdamW([parameter(5, BF16)], 1e-2, compute_dtype=given)
        assert optimizer.state_dict()["param_groups"][0]["compute_dtype"] == name
        steps(optimizer, 2)
        results.append(stored(optimizer))
    assert_same(*results)
    # Of versions that saved the dtype itself; and of this one.
    for kept in (dtype, name):
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0]["compute_dtype"] = kept
        other = AdamW([parameter(5, BF16)], 1e-2, compute_dtype=dtype)
        other.load_state_dict(state)
        assert other.param_groups[0]["compute_dtype"] == dtype
        steps(other, 1)
    # Groups that somebody has written back from a file.
    other.param_groups[0].update({"compute_dtype": name})
    steps(other, 1)
    other.load_state_dict(other.state_dict())
    state["param_groups"][0]["compute_dtype"] = "float16"
    with pytest.raises(ValueError, match=r"compute_dtype=torch\.float16; the optimizer has"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"compute_dtype: double; allowed are torch\.float32"):
        AdamW([parameter(5, FP16)], compute_dtype="double")


def test_torchs_own_checkpoints_say_what_loads_them() -> None:
    theirs = torch.optim.AdamW([parameter(5, FP32)], foreach=False)
    steps(theirs, 1)
    for make in (AdamW, SGD):
        optimizer = make([parameter(5, FP32)])
        with pytest.raises(ValueError, match=r"mcf\.optim\.load_converted\(optimizer, state_dict"):
            optimizer.load_state_dict(theirs.state_dict())
    optimizer = AdamW([parameter(5, FP32)])
    mcf.optim.load_converted(optimizer, theirs.state_dict())
    steps(optimizer, 1)
    state = AdamW([parameter(5, FP32)], precision="light").state_dict()
    with pytest.raises(ValueError, match=r"precision='light'.*mcf\.optim\.load_converted"):
        optimizer.load_state_dict(state)
