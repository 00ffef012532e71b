"""Every rule and strategy has one process's bits, however its tensors are shared."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

import mcf.optim
from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import layouts
from tests.optim.sharding.layouts import LAYOUTS, Layout
from tests.optim.variants import RECENT_RULES, VARIANTS, Variant, recent

MIXED = next(x for x in LAYOUTS if x.name == "mixed_grid")
MATRICES = ((7, 6), (1, 9), (12, 10), (0, 3), (6, 7), (4, 4))


def runs(variant: Variant) -> list[dict[str, Any]]:
    """The options of every strategy of a rule, stochastic low words among them.

    But "4bit", whose bytes most of these layouts cut: sharding/test_4_bits.py has it.
    """
    found = [case for case in variant.cases() if case.dtype == torch.bfloat16]
    found = [case for case in found if case.precision != "4bit"]
    options = [{**variant.options, **case.options()} for case in found]
    lows = [{**o, "low": "stochastic"} for o in options if o["precision"] in ("light", "plus")]
    return options + [o for o in lows if o["compute_dtype"] == torch.float32]


def shapes(make: str) -> tuple[tuple[int, ...], ...]:
    return MATRICES if make == "Muon" else layouts.SHAPES


def all_of(
    several: list[Layout], make: str, options: list[dict[str, Any]], executor: str
) -> list[list[dict[str, str]]]:
    how = {"shapes": shapes(make), "executor": executor}
    return [[layouts.trained(x, make, o, **how)[0] for o in options] for x in several]


def check(
    world: World,
    several: list[Layout],
    variant: Variant,
    options: list[dict[str, Any]],
    executor: str = "torch",
) -> None:
    """All layouts of one size, since a group of processes takes long to make."""
    make = variant.make.__name__
    how = {"shapes": shapes(make), "executor": executor}
    expected = [layouts.trained(None, make, o, **how)[0] for o in options]
    (size,) = {x.size for x in several}
    for found in world.run(size, all_of, several, make, options, executor):
        for layout, theirs in zip(several, found, strict=True):
            for option, one, other in zip(options, expected, theirs, strict=True):
                assert one == other, (layout.name, option)


FIRST = next(v for v in VARIANTS if v.make is mcf.optim.AdamW)
SIZES = sorted({x.size for x in LAYOUTS})
# By default the layouts of four processes, which have all that those of fewer have but the odd.
LARGEST = everyday(SIZES, [max(SIZES)])


def of_size(size: int) -> list[Layout]:
    return [x for x in LAYOUTS if x.size == size]


MUON = Variant("muon", mcf.optim.Muon, {"weight_decay": 0.1})
RANDOM = {"precision": "plus", "low": "stochastic"}
# Numba's kernels are prepared once and repeated. Muon orthogonalises each matrix whole, in one
# process.
FEW = {
    "repeated": (FIRST, [{**FIRST.options, **RANDOM}], "numba"),
    "operators": (
        FIRST,
        [
            {**FIRST.options, "precision": "split16"},
            {**FIRST.options, "precision": "8bit", "max_grad_norm": 0.5},
        ],
        "torch",
    ),
    "muon": (
        MUON,
        [
            {**MUON.options, "precision": "light", "low": "stochastic"},
            {**MUON.options, "precision": "bf16_sr"},
        ],
        "torch",
    ),
}


@pytest.mark.parametrize("size", LARGEST)
@pytest.mark.parametrize("what", everyday(FEW, ["repeated"]))
def test_layouts_of_every_size(world: World, what: str, size: int) -> None:
    variant, options, executor = FEW[what]
    check(world, of_size(size), variant, options, executor)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", [FIRST, MUON], ids=str)
def test_every_strategy(world: World, variant: Variant, size: int) -> None:
    check(world, of_size(size), variant, runs(variant), "numba")


# One of each rule with a formula of its own; the others are variants.
RULES = {v.make: v for v in VARIANTS}
BEST = ("plus", "light")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("variant", [*RULES.values(), *recent()], ids=str)
def test_all_rules(world: World, variant: Variant) -> None:
    """On a layout with everything in it: rows, columns, strided, replicated, plain, empty."""
    (best,) = [p for p in BEST if p in variant.make.precisions][:1]
    options = [{**variant.options, "precision": best, "low": "stochastic"}]
    check(world, [MIXED], variant, options)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*VARIANTS, *RECENT_RULES], ids=str)
def test_every_strategy_of_every_rule(world: World, variant: Variant) -> None:
    check(world, [MIXED], variant, runs(variant), "numba")


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        pytest.param(torch.float16, "plus", marks=pytest.mark.slow),
        pytest.param(torch.float32, "plus", marks=pytest.mark.slow),
        pytest.param(torch.float32, "8bit", marks=pytest.mark.slow),
        (torch.float32, "bf16_sr"),
    ],
)
def test_other_dtypes(world: World, dtype: torch.dtype, precision: str) -> None:
    options = {"lr": 0.01, "precision": precision, "eps": 1e-6}
    more = dtype, 4, layouts.SHAPES, "torch"
    expected = layouts.trained(None, "AdamW", options, *more)[0]
    for found, _ in world.run(4, layouts.trained, MIXED, "AdamW", options, *more):
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["torch", "triton"])
def test_executors(world: World, executor: str) -> None:
    options = {"lr": 0.01, "precision": "plus", "low": "stochastic", "max_grad_norm": 0.5}
    expected = layouts.trained(None, "AdamW", options)[0]
    more = torch.bfloat16, 4, layouts.SHAPES, executor
    for found, _ in world.run(4, layouts.trained, MIXED, "AdamW", options, *more):
        assert found == expected


OPTIONS: tuple[dict[str, Any], ...] = (
    {"capturable": True},
    {"capturable": True, "nonfinite": "skip", "max_grad_norm": 0.5},
    {"max_grad_value": 0.0625},
    {"maximize": True, "decouple_lr": True},
    {"track_metrics": True},
)


def test_options(world: World) -> None:
    check(world, [MIXED], FIRST, [{"lr": 0.01, "precision": "stochastic", **o} for o in OPTIONS])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_fifty_steps(world: World, layout: Layout) -> None:
    options = {"lr": 0.01, "precision": "plus", "low": "stochastic", "max_grad_norm": 0.5}
    expected = layouts.trained(None, "AdamW", options, count=50)[0]
    for found, _ in world.run(
        layout.size, layouts.trained, layout, "AdamW", options, torch.bfloat16, 50
    ):
        assert found == expected


def copies() -> list[bool]:
    """Whether copies of optimizers go on as the original does."""
    mesh = layouts.mesh_of(MIXED)
    answers = []
    for precision in ("split16", "light", "stochastic"):
        named = layouts.params(MIXED, mesh, torch.bfloat16, layouts.SHAPES)
        optimizer = mcf.optim.AdamW(named, lr=0.01, precision=precision)
        for t in range(2):
            layouts.set_gradients(named, t)
            optimizer.step()
        other = copy.deepcopy(optimizer)
        theirs = [(n, q) for (n, _), q in zip(named, other.param_groups[0]["params"], strict=True)]
        before = layouts.digests(theirs, other)
        assert before == layouts.digests(named, optimizer)
        for t in range(2, 4):
            layouts.set_gradients(named, t)
            optimizer.step()
        assert layouts.digests(theirs, other) == before
        for t in range(2, 4):
            layouts.set_gradients(theirs, t)
            other.step()
        answers.append(layouts.digests(theirs, other) == layouts.digests(named, optimizer))
    return answers


@pytest.mark.slow
def test_copies(world: World) -> None:
    assert world.run(4, copies) == [[True] * 3] * 4


def weights() -> None:
    mesh = layouts.mesh_of(MIXED)
    for precision in ("split16", "light", "master", "split8"):
        named = layouts.params(MIXED, mesh, torch.bfloat16, layouts.SHAPES)
        alone = layouts.params(None, None, torch.bfloat16, layouts.SHAPES)
        one = mcf.optim.AdamW(named, lr=0.01, precision=precision)
        other = mcf.optim.AdamW(alone, lr=0.01, precision=precision)
        for t in range(2):
            layouts.set_gradients(named, t)
            layouts.set_gradients(alone, t)
            one.step()
            other.step()
        for (_, p), (_, q) in zip(named, alone, strict=True):
            found = one.master_weight(p)
            assert found.dtype == torch.float32
            assert layouts.shards.same_place(p, found)
            assert layouts.digest(layouts.whole(found)) == layouts.digest(other.master_weight(q))
            both = one.master_weight(p, exact=True), other.master_weight(q, exact=True)
            for mine, theirs in zip(*both, strict=True):
                assert layouts.digest(layouts.whole(mine)) == layouts.digest(theirs)


@pytest.mark.slow
def test_master_weights(world: World) -> None:
    world.run(4, weights)


def rewritten(parts: bool) -> str:
    """Weights that somebody else wrote between two steps; the parts alone, as checkpoints do."""
    mesh = layouts.mesh_of(MIXED)
    digests = []
    for where in (MIXED, None):
        named = layouts.params(where, mesh, torch.bfloat16, layouts.SHAPES)
        optimizer = mcf.optim.AdamW(named, lr=0.01, precision="master")
        for t in range(4):
            if t == 2:
                with torch.no_grad():
                    for k, (_, p) in enumerate(named):
                        if k % 2:
                            (layouts.shards.local(p) if parts else p).mul_(-0.5)
            layouts.set_gradients(named, t)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mcf.optim.WeightsRewrittenWarning)
                optimizer.step()
        digests.append(layouts.digests(named, optimizer))
    assert digests[0] == digests[1]
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [False, True])
def test_rewritten_weights(world: World, parts: bool) -> None:
    world.run(4, rewritten, parts)
