"""Every rule and strategy has one process's bits, however its tensors are shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf.optim
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout
from tests.optim.variants import VARIANTS, Variant

MATRICES = ((7, 6), (1, 9), (12, 10), (0, 3), (6, 7), (4, 4))


def runs(variant: Variant) -> list[dict[str, Any]]:
    """The options of every strategy of a rule, stochastic low words among them."""
    found = [case for case in variant.cases() if case.dtype == torch.bfloat16]
    options = [{**variant.options, **case.options()} for case in found]
    lows = [{**o, "low": "stochastic"} for o in options if o["precision"] in ("light", "plus")]
    return options + [o for o in lows if o["compute_dtype"] == torch.float32]


def shapes(make: str) -> tuple[tuple[int, ...], ...]:
    return MATRICES if make == "Muon" else layouts.SHAPES


def all_of(layout: Layout | None, make: str, several: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [layouts.trained(layout, make, o, shapes=shapes(make))[0] for o in several]


def check(world: World, layout: Layout, variant: Variant, several: list[dict[str, Any]]) -> None:
    make = variant.make.__name__
    expected = all_of(None, make, several)
    for found in world.run(layout.size, all_of, layout, make, several):
        for options, mine, theirs in zip(several, expected, found, strict=True):
            assert mine == theirs, options


FIRST = next(v for v in VARIANTS if v.make is mcf.optim.AdamW)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_adamw(world: World, layout: Layout) -> None:
    several = [o for o in runs(FIRST) if o["compute_dtype"] == torch.float32]
    check(world, layout, FIRST, several)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_all_rules(world: World, variant: Variant) -> None:
    """On a layout with everything in it: rows, columns, strided, replicated, plain, empty."""
    layout = next(x for x in LAYOUTS if x.name == "mixed_grid")
    some = [
        o
        for o in runs(variant)
        if o["precision"] in ("plus", "light", "split16", "stochastic", "master")
    ]
    check(world, layout, variant, some[:3] + some[-2:])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_muon(world: World, layout: Layout) -> None:
    """Each matrix is orthogonalised whole, by one process."""
    muon = Variant("muon", mcf.optim.Muon, {"weight_decay": 0.1})
    some = [o for o in runs(muon) if o["precision"] in ("light", "split16", "stochastic")]
    check(world, layout, muon, some)
