"""Random bits of parameters whose stream or place is told: `set_stream`, `set_index_offset`.

Contract: what is told counts in place of names and places, stays with copies, and is seen by the
next step.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch.distributed as dist

import mcf
from mcf.optim import AdamW, set_stream
from tests.optim.helpers import BF16, parameter
from tests.optim.plan_cases import in_full
from tests.optim.stream_cases import (
    NAMES,
    Results,
    adamw,
    assert_part,
    give,
    model,
    train,
    trained,
    values,
)

pytestmark = pytest.mark.usefixtures("on_torch")


def test_streams_that_are_told() -> None:
    """Processes that count their own parameters, without names; and places."""
    by_name, by_place = trained(adamw, model()), model()
    train(adamw([p for _, p in by_place]), by_place, 0, 4)
    for what, whole in (("name", by_name), ("place", values(by_place))):
        for mine in (NAMES[::2], NAMES[1::2][::-1]):
            part = model(mine)
            for name, p in part:
                set_stream(p, f"module.{name}" if what == "name" else NAMES.index(name))
            optimizer = adamw([p for _, p in part])
            train(optimizer, part, 0, 2)
            # What was told stays with copies.
            copied = pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
            part = list(zip(mine, copied.param_groups[0]["params"], strict=True))
            train(copied, part, 2, 4)
            assert_part(values(part), whole)


def test_what_changes_between_two_steps() -> None:
    """Names that are replaced or written, streams that are told, what they are keyed on."""

    def changed(keep: bool) -> Results:
        named = model()
        plans = 0
        optimizer = adamw(named)
        if not keep:
            in_full(optimizer)
        group = optimizer.param_groups[0]
        for t in range(9):
            give(named, t)
            if t == 3:
                group["param_names"] = [*NAMES[1:], NAMES[0]]
            if t == 4:
                group["param_names"][2] = "another"
            if t == 5:
                set_stream(named[0][1], "told")
            if t == 6:
                group["stream_by"] = "place"
            if t == 7:
                set_stream(named[0][1], 2)
            before = optimizer._steps._repeat
            optimizer.step()
            plans += before is not None and optimizer._steps._repeat is before
        assert plans == (3 if keep else 0), "of steps 1, 2 and 8"
        return values(named)

    with mcf.executor("numba"):
        assert_part(changed(True), changed(False))


@pytest.fixture
def one_process(tmp_path: Any):
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch without gloo")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torchs_zero_redundancy_optimizer(one_process: None) -> None:
    """It sorts parameters by size before it shares them out."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    options: dict[str, Any] = {"lr": 1e-2, "precision": "stochastic"}
    named = model()
    for name, p in named:
        set_stream(p, name)
    sharded = ZeroRedundancyOptimizer([p for _, p in named], AdamW, **options)
    inner = [id(p) for g in sharded.optim.param_groups for p in g["params"]]
    assert inner != [id(p) for _, p in named]
    train(sharded, named, 0, 4)
    assert_part(values(named), trained(adamw, model()))


def test_refusals_of_streams() -> None:
    p = parameter(3, BF16)
    for wrong in (1.0, True, None, b"a"):
        with pytest.raises(TypeError, match=f"must be a name or a place .*{type(wrong).__name__}"):
            set_stream(p, wrong)  # type: ignore[arg-type]
    for place in (-1, 2**53):
        with pytest.raises(ValueError, match=f"place from 0 and below .*got {place}"):
            set_stream(p, place)
