"""Classes of torch inside `collage` on parameters that processes share."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import mcf
from mcf.optim import collage
from mcf.optim.sharding import shards
from tests.helpers.processes import World
from tests.optim.sharding import engines, layouts
from tests.optim.sharding.engines import quiet
from tests.optim.sharding.layouts import LAYOUTS, Layout

BF16 = torch.bfloat16
SLOW = pytest.mark.slow

# A class, its options, the precision.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("NAdam", {"lr": 1e-2}, {"precision": "light", "low": "stochastic"}),
    ("AdamW", {"lr": 1e-2}, {"precision": "bf16_sr"}),
    ("RMSprop", {"lr": 1e-2, "momentum": 0.9}, {"precision": "split16"}),
    ("Adagrad", {"lr": 1e-2}, {"precision": "plus"}),
    ("SGD", {"lr": 1e-2, "momentum": 0.9}, {"precision": "master"}),
]


def made(case: Any, named: Any) -> Any:
    name, options, stored = case
    return collage(getattr(torch.optim, name), named, **options, **stored)


def steps(named: Any, optimizer: Any, times: Any) -> None:
    for t in times:
        layouts.set_gradients(named, t)
        optimizer.step()


def trained(several: list[Layout | None], cases: Any) -> list[list[dict[str, str]]]:
    found = []
    with quiet(), mcf.executor("torch"):
        for layout in several:
            mesh = None if layout is None else layouts.mesh_of(layout)
            mine = []
            for case in cases:
                named = layouts.params(layout, mesh, BF16, layouts.SHAPES)
                optimizer = made(case, named)
                steps(named, optimizer, range(3))
                mine.append(layouts.digests(named, optimizer))
            found.append(mine)
    return found


def named_layouts(*names: str) -> list[Layout]:
    return [x for x in LAYOUTS if x.name in names]


@pytest.mark.parametrize(
    ("several", "cases"),
    [
        pytest.param(named_layouts("columns2"), CASES[:2], id="columns"),
        pytest.param(named_layouts("mixed"), CASES, id="mixed", marks=SLOW),
        pytest.param(named_layouts("mixed_grid", "hybrid"), CASES, id="grids", marks=SLOW),
    ],
)
def test_the_bits_of_one_process(world: World, several: list[Layout], cases: Any) -> None:
    (expected,) = trained([None], cases)
    for found in world.run(several[0].size, trained, several, cases):
        for layout, mine in zip(several, found, strict=True):
            for case, one, other in zip(cases, expected, mine, strict=True):
                assert one == other, (layout.name, case)


def under(engine: str) -> list[dict[str, str]]:
    found = []
    with quiet(), mcf.executor("torch"):
        for case in CASES[:3]:
            mine = getattr(engines, engine)()
            optimizer = made(case, mine.named())
            mine.train(optimizer, 3)
            found.append(mine.digests(optimizer))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "size"), [("fsdp", 3), ("tensor_parallel", 2)])
def test_engines(world: World, engine: str, size: int) -> None:
    expected = under("plain")
    for found in world.run(size, under, engine):
        assert found == expected


def resumed() -> list[bool]:
    """A state of rows goes on as one of columns, of one process, and back."""
    rows, columns = (next(x for x in LAYOUTS if x.name == n) for n in ("rows2", "columns2"))
    mesh = layouts.mesh_of(rows)
    answers = []
    with quiet(), mcf.executor("torch"):
        for case in (CASES[0], CASES[3], CASES[4]):
            saved: Any = None
            whole: list[Any] = []
            for t, layout in enumerate((rows, columns, None, columns)):
                named = layouts.params(layout, mesh, BF16, layouts.SHAPES)
                optimizer = made(case, named)
                if saved is not None:
                    for (_, p), full in zip(named, whole, strict=True):
                        shards.local(p.detach()).copy_(shards.part(p, full))
                    optimizer.load_state_dict(saved)
                steps(named, optimizer, [t])
                whole = layouts.wholes([p.detach().clone() for _, p in named])
                saved = copy.copy(optimizer.state_dict())
            alone = layouts.params(None, None, BF16, layouts.SHAPES)
            other = made(case, alone)
            steps(alone, other, range(4))
            answers.append(layouts.digests(named, optimizer) == layouts.digests(alone, other))
    return answers


@pytest.mark.slow
def test_checkpoints(world: World) -> None:
    assert world.run(2, resumed) == [[True] * 3] * 2


def refused_and_skipped() -> list[str]:
    """What a class that cannot step parts says; a GradScaler's infinity of one process alone."""
    from torch import distributed

    where = next(x for x in LAYOUTS if x.name == "rows2")
    mesh = layouts.mesh_of(where)
    with quiet(), mcf.executor("torch"):
        named = layouts.params(where, mesh, BF16, ((8, 6), (5,)))
        with pytest.raises(ValueError, match="Adafactor makes no step on a parameter of") as error:
            collage(torch.optim.Adafactor, named)
        optimizer = made(CASES[0], named)
        before = layouts.digests(named, optimizer)
        layouts.set_gradients(named, 0)
        optimizer.grad_scale = torch.tensor(1.0)
        optimizer.found_inf = torch.tensor(float(distributed.get_rank() == 1))
        optimizer.step()
        assert layouts.digests(named, optimizer) == before
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
        assert layouts.digests(named, optimizer) != before
        assert not math.isnan(float(shards.local(optimizer.master_weight(named[0][1])).sum()))
    return [str(error.value)]


def test_refused_and_skipped(world: World) -> None:
    for (said,) in world.run(2, refused_and_skipped):
        assert "with the options of param_groups[0]" in said
