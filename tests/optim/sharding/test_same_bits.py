"""Every rule and strategy has one process's bits, however its tensors are shared.

A scenario trains named parameters and returns digests of what is left; on every layout, in every
process, it returns what one process with plain tensors does.
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
import warnings
import weakref
from typing import Any

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim import AdamW, WeightAverage, load_float32_weights
from mcf.optim.sharding import shards
from tests.helpers.everyday import everyday
from tests.helpers.processes import World, forget_layouts
from tests.optim.helpers import random
from tests.optim.sharding import engines, layouts
from tests.optim.sharding.engines import quiet
from tests.optim.sharding.layouts import LAYOUTS, SHAPES, Layout, digests, steps
from tests.optim.variants import RECENT_RULES, VARIANTS, Variant, recent

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOW = pytest.mark.slow
BY_NAME = {x.name: x for x in LAYOUTS}
MIXED = BY_NAME["mixed_grid"]
MATRICES = ((7, 6), (1, 9), (12, 10), (0, 3), (6, 7), (4, 4))
SIZES = sorted({x.size for x in LAYOUTS})


def of_size(size: int) -> list[Layout]:
    return [x for x in LAYOUTS if x.size == size]


def on_layouts(several: list[Any], scenario: str, args: Any, **how: Any) -> list[Any]:
    """Run a scenario on each layout; None stands for plain tensors."""
    found = []
    with quiet(), mcf.executor(how.get("executor", "torch")):
        for layout in several:
            mesh = None if layout is None else layouts.mesh_of(layout)
            shapes = how.get("shapes", SHAPES)
            named = layouts.params(layout, mesh, how.get("dtype", BF16), shapes)
            found.append(globals()[scenario](named, *args))
    return found


def sent(several: list[Any], scenario: str, args: Any, how: dict[str, Any]) -> list[Any]:
    """`on_layouts`, of arguments that can be sent."""
    return on_layouts(several, scenario, args, **how)


def check(world: World, several: list[Layout], scenario: str, *args: Any, **how: Any) -> None:
    """All layouts of one size, since a group of processes takes long to make."""
    (expected,) = on_layouts([None], scenario, args, **how)
    (size,) = {x.size for x in several}
    for found in world.run(size, sent, several, scenario, args, how):
        for layout, theirs in zip(several, found, strict=True):
            assert theirs == expected, layout.name


@pytest.mark.parametrize("mesh", [(3, 2), (2, 3), (5, 4)])
def test_pieces_of_more_processes_are_where_torch_puts_them(mesh: tuple[int, int]) -> None:
    """`fully_shard` cuts a piece of tensor parallelism; some processes get nothing."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    data, tensor = mesh
    places = (_StridedShard(0, split_factor=tensor), Shard(0))
    for n in range(1, 30):
        whole = torch.arange(n)
        for at in itertools.product(range(data), range(tensor)):
            piece = layouts._chunk(whole, 0, tensor, at[1])
            expected = layouts._chunk(piece, 0, data, at[0]).tolist()
            found = shards._indices((n, 2), mesh, at, places)
            assert found[0].tolist() == expected, (n, at)
            assert found[1] is None


# -- rules and strategies ------------------------------------------------------------------------


def trained(named: Any, make: str, options: list[dict[str, Any]], count: int = 4) -> list[Any]:
    """Digests after some steps under each of some options."""
    start = [shards.local(p.detach()).clone() for _, p in named]
    found = []
    for given in options:
        for (_, p), x in zip(named, start, strict=True):
            shards.local(p.detach()).copy_(x)
        optimizer = getattr(mcf.optim, make)(named, **given)
        steps(named, optimizer, range(count))
        found.append(digests(named, optimizer))
    return found


def runs(variant: Variant) -> list[dict[str, Any]]:
    """The options of every strategy of a rule, stochastic low words among them.

    But "4bit", whose bytes most of these layouts cut.
    """
    found = [c for c in variant.cases() if c.dtype == BF16 and c.precision != "4bit"]
    options = [{**variant.options, **case.options()} for case in found]
    lows = [{**o, "low": "stochastic"} for o in options if o["precision"] in ("light", "plus")]
    return options + [o for o in lows if o["compute_dtype"] == FP32]


def shapes_of(variant: Variant) -> tuple[tuple[int, ...], ...]:
    return MATRICES if variant.make is mcf.optim.Muon else SHAPES


def check_rule(
    world: World, several: list[Layout], variant: Variant, options: Any, executor: str = "torch"
) -> None:
    how = {"shapes": shapes_of(variant), "executor": executor}
    check(world, several, "trained", variant.make.__name__, options, **how)


FIRST = next(v for v in VARIANTS if v.make is AdamW)
MUON = Variant("muon", mcf.optim.Muon, {"weight_decay": 0.1})
RANDOM = {"precision": "plus", "low": "stochastic"}
CLIPPED = {"lr": 0.01, **RANDOM, "max_grad_norm": 0.5}
# Numba's kernels are prepared once and repeated. Muon orthogonalises each matrix whole, in one
# process.
FEW: dict[str, tuple[Variant, list[dict[str, Any]], str]] = {
    "repeated": (FIRST, [RANDOM], "numba"),
    "operators": (
        FIRST, [{"precision": "split16"}, {"precision": "8bit", "max_grad_norm": 0.5}], "torch",
    ),
    "muon": (MUON, [{**RANDOM, "precision": "light"}, {"precision": "bf16_sr"}], "torch"),
}  # fmt: skip


# By default the layouts of four processes, which have all that those of fewer have but the odd.
@pytest.mark.parametrize("size", everyday(SIZES, [max(SIZES)]))
@pytest.mark.parametrize("what", everyday(FEW, ["repeated"]))
def test_layouts_of_every_size(world: World, what: str, size: int) -> None:
    variant, options, executor = FEW[what]
    options = [{**variant.options, **o} for o in options]
    check_rule(world, of_size(size), variant, options, executor)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", [FIRST, MUON], ids=str)
def test_every_strategy(world: World, variant: Variant, size: int) -> None:
    check_rule(world, of_size(size), variant, runs(variant), "numba")


# One of each rule with a formula of its own; the others are variants.
RULES = {v.make: v for v in VARIANTS}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("variant", [*RULES.values(), *recent()], ids=str)
def test_all_rules(world: World, variant: Variant) -> None:
    """On a layout with everything in it: rows, columns, strided, replicated, plain, empty."""
    best = "plus" if "plus" in variant.make.precisions else "light"
    options = [{**variant.options, "precision": best, "low": "stochastic"}]
    check_rule(world, [MIXED], variant, options)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*VARIANTS, *RECENT_RULES], ids=str)
def test_every_strategy_of_every_rule(world: World, variant: Variant) -> None:
    check_rule(world, [MIXED], variant, runs(variant), "numba")


@pytest.mark.parametrize(
    ("dtype", "precision"),
    everyday(
        [(FP16, "plus"), (FP32, "plus"), (FP32, "8bit"), (FP32, "bf16_sr")], [(FP32, "bf16_sr")]
    ),
)
def test_other_dtypes(world: World, dtype: torch.dtype, precision: str) -> None:
    options = [{"lr": 0.01, "precision": precision, "eps": 1e-6}]
    check(world, [MIXED], "trained", "AdamW", options, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["torch", "triton"])
def test_executors(world: World, executor: str) -> None:
    check(world, [MIXED], "trained", "AdamW", [CLIPPED], executor=executor)


OPTIONS: tuple[dict[str, Any], ...] = (
    {"capturable": True},
    {"capturable": True, "nonfinite": "skip", "max_grad_norm": 0.5},
    {"max_grad_value": 0.0625},
    {"maximize": True, "decouple_lr": True},
    {"track_metrics": True},
)


def test_options(world: World) -> None:
    options = [{"lr": 0.01, "precision": "stochastic", **o} for o in OPTIONS]
    check(world, [MIXED], "trained", "AdamW", options)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_fifty_steps(world: World, layout: Layout) -> None:
    check(world, [layout], "trained", "AdamW", [CLIPPED], 50, executor="numba")


# -- what is done to optimizers and weights ------------------------------------------------------


def copied(named: Any, precision: str) -> dict[str, str]:
    """A copy goes on as the original does."""
    optimizer = AdamW(named, lr=0.01, precision=precision)
    steps(named, optimizer, range(2))
    other = copy.deepcopy(optimizer)
    theirs = [(n, q) for (n, _), q in zip(named, other.param_groups[0]["params"], strict=True)]
    steps(named, optimizer, range(2, 4))
    steps(theirs, other, range(2, 4))
    assert digests(theirs, other) == digests(named, optimizer)
    return digests(theirs, other)


def weights(named: Any, precision: str) -> list[str]:
    """Master weights, rounded and exact."""
    optimizer = AdamW(named, lr=0.01, precision=precision)
    steps(named, optimizer, range(2))
    found = []
    for _, p in named:
        rounded = optimizer.master_weight(p)
        assert rounded.dtype == FP32
        assert shards.same_place(p, rounded)
        found += [rounded, *optimizer.master_weight(p, exact=True)]
    return list(map(layouts.digest, layouts.wholes(found)))


def rewritten(named: Any, parts: bool) -> dict[str, str]:
    """Somebody writes weights between two steps; the parts alone, as checkpoints do."""
    optimizer = AdamW(named, lr=0.01, precision="master")
    steps(named, optimizer, range(2))
    with torch.no_grad():
        for _, p in named[1::2]:
            (shards.local(p) if parts else p).mul_(-0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcf.optim.WeightsRewrittenWarning)
        steps(named, optimizer, range(2, 4))
    return digests(named, optimizer)


def loaded(named: Any, precision: str) -> dict[str, str]:
    """Another optimizer goes on with the state as the first one does; integers as bytes too."""
    optimizer, other = (AdamW(named, lr=0.01, precision=precision) for _ in range(2))
    steps(named, optimizer, range(1))
    before = digests(named, optimizer)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert digests(named, other) == before
    for _, p in named:
        assert all(t.ndim == 0 or shards.same_place(p, t) for t in other.state[p].values())
    steps(named, other, range(1, 2))
    return digests(named, other)


def averaged(named: Any) -> list[str]:
    """Averages, before and after a checkpoint of them is loaded, and weights that they replace."""
    optimizer = AdamW(named, 0.01, precision="split16")
    average = WeightAverage(optimizer, 0.9)
    net = torch.nn.Module()
    for name, p in named:
        net.register_parameter(name.replace(".", "_"), p)
    start = {n: random(p.shape, FP32, 7) for n, p in net.named_parameters()}
    assert load_float32_weights(net, optimizer, start).exact
    steps(named, optimizer, range(2))
    saved = average.state_dict()
    average = WeightAverage(optimizer)
    average.load_state_dict(saved)
    steps(named, optimizer, range(2, 3))
    found = [t for _, p in named for t in average.weight(p, exact=True)]
    with average.swapped():
        digests = [layouts.digest(t) for t in layouts.wholes([p.detach() for _, p in named])]
    digests += map(layouts.digest, layouts.wholes(found))
    return digests + list(map(layouts.digest, average.float32_weights(net).values()))


# With a parameter of no dimensions, which every process has.
SCALAR = (*SHAPES[:-1], ())
_PLACES = [(0,), (-1,), (0,), (0,), (0,), (-1,), (0,), (None,)]
_ONE, _TWO = (Layout(f"scalar{n}", (n,), _PLACES) for n in (1, 2))
DONE: list[Any] = [
    ([_ONE], "loaded", ("split16",), SCALAR),
    *(([x], "loaded", (p,), SCALAR) for x in (_ONE, _TWO) for p in ("split8", "light")),
    ([_TWO], "loaded", ("split16",), SCALAR),
    ([BY_NAME["mixed"]], "averaged", (), SHAPES),
    *((of_size(n), "averaged", (), SHAPES) for n in SIZES),
    *(([MIXED], "copied", (p,), SHAPES) for p in ("split16", "light", "stochastic")),
    *(([MIXED], "weights", (p,), SHAPES) for p in ("split16", "light", "master", "split8")),
    *(([MIXED], "rewritten", (parts,), SHAPES) for parts in (False, True)),
]


@pytest.mark.parametrize(
    ("several", "scenario", "args", "shapes"),
    everyday(
        DONE,
        lambda several, scenario, args, shapes: (
            (several, scenario, args)
            in (([_ONE], "loaded", ("split16",)), (DONE[6][0], "averaged", ()))
        ),
        id=lambda several, scenario, args, shapes: f"{scenario}-{several[0].name}-{args}",
    ),
)
def test_what_is_done_to_weights(
    world: World, several: list[Layout], scenario: str, args: Any, shapes: Any
) -> None:
    check(world, several, scenario, *args, shapes=shapes)


# -- classes of torch inside `collage` -----------------------------------------------------------

# A class, its options, the precision.
CLASSES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("NAdam", {"lr": 1e-2}, {"precision": "light", "low": "stochastic"}),
    ("AdamW", {"lr": 1e-2}, {"precision": "bf16_sr"}),
    ("RMSprop", {"lr": 1e-2, "momentum": 0.9}, {"precision": "split16"}),
    ("Adagrad", {"lr": 1e-2}, {"precision": "plus"}),
    ("SGD", {"lr": 1e-2, "momentum": 0.9}, {"precision": "master"}),
]


def collage(case: Any, named: Any) -> Any:
    name, options, precision = case
    return mcf.optim.collage(getattr(torch.optim, name), named, **options, **precision)


def wrapped(named: Any, number: int) -> dict[str, str]:
    optimizer = collage(CLASSES[number], named)
    steps(named, optimizer, range(3))
    return digests(named, optimizer)


@pytest.mark.parametrize(
    ("several", "number"),
    everyday(
        [(names, k) for names in ("columns2", "mixed", "mixed_grid", "hybrid") for k in range(5)],
        [("columns2", 0), ("columns2", 1)],
    ),
)
def test_wrapped_classes(world: World, several: str, number: int) -> None:
    check(world, [BY_NAME[several]], "wrapped", number)


def under(engine: str) -> list[dict[str, str]]:
    found = []
    with quiet(), mcf.executor("torch"):
        for case in CLASSES[:3]:
            mine = getattr(engines, engine)()
            optimizer = collage(case, mine.named())
            mine.train(optimizer, 3)
            found.append(mine.digests(optimizer))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "size"), [("fsdp", 3), ("tensor_parallel", 2)])
def test_wrapped_classes_under_engines(world: World, engine: str, size: int) -> None:
    assert world.run(size, under, engine) == [under("plain")] * size


def resumed() -> list[bool]:
    """A state of rows goes on as one of columns, of one process, and back."""
    rows, columns = BY_NAME["rows2"], BY_NAME["columns2"]
    mesh = layouts.mesh_of(rows)
    answers = []
    with quiet(), mcf.executor("torch"):
        for case in (CLASSES[0], CLASSES[3], CLASSES[4]):
            saved: Any = None
            whole: list[Any] = []
            for t, layout in enumerate((rows, columns, None, columns)):
                named = layouts.params(layout, mesh, BF16, SHAPES)
                optimizer = collage(case, named)
                if saved is not None:
                    for (_, p), full in zip(named, whole, strict=True):
                        shards.local(p.detach()).copy_(shards.part(p, full))
                    optimizer.load_state_dict(saved)
                steps(named, optimizer, [t])
                whole = layouts.wholes([p.detach().clone() for _, p in named])
                saved = copy.copy(optimizer.state_dict())
            alone = layouts.params(None, None, BF16, SHAPES)
            other = collage(case, alone)
            steps(alone, other, range(4))
            answers.append(digests(named, optimizer) == digests(alone, other))
    return answers


@pytest.mark.slow
def test_wrapped_classes_go_on_in_other_layouts(world: World) -> None:
    assert world.run(2, resumed) == [[True] * 3] * 2


def refused_and_skipped() -> str:
    """Return the refusal of a class that cannot step parts; skip for an infinity of one process."""
    from torch import distributed

    mesh = layouts.mesh_of(BY_NAME["rows2"])
    with quiet(), mcf.executor("torch"):
        named = layouts.params(BY_NAME["rows2"], mesh, BF16, ((8, 6), (5,)))
        with pytest.raises(ValueError, match="Adafactor makes no step on a parameter of") as error:
            mcf.optim.collage(torch.optim.Adafactor, named)
        optimizer = collage(CLASSES[0], named)
        before = digests(named, optimizer)
        layouts.set_gradients(named, 0)
        optimizer.grad_scale = torch.tensor(1.0)
        optimizer.found_inf = torch.tensor(float(distributed.get_rank() == 1))
        optimizer.step()
        assert digests(named, optimizer) == before
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
        assert digests(named, optimizer) != before
        assert not math.isnan(float(shards.local(optimizer.master_weight(named[0][1])).sum()))
    return str(error.value)


def test_wrapped_classes_refuse_and_skip_alike(world: World) -> None:
    for said in world.run(2, refused_and_skipped):
        assert "with the options of param_groups[0]" in said


# -- two numbers to a byte -----------------------------------------------------------------------

# Rows of any number, and columns that are cut between bytes; one with a dimension of one, one of
# three dimensions, vectors, one with nothing in it, one that is odd.
EVEN = ((7, 8), (5,), (1, 16), (12, 10), (3, 4, 8), (0, 4), (5, 3))
PAIRED = {
    "2": [
        Layout("rows2", (2,), (0,)), Layout("mixed2", (2,), [(-1,), (0,), (-1,), (0,), (-1,)]),
    ],
    "4": [
        Layout("grid", (2, 2), [(0, -1), (0, 0), (None, -1), (0, None), (0, -1)]),
        Layout("strided", (2, 2), [((-1, 2), -1), (0, 0), ((-1, 2), -1), ((0, 2), 0)]),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("size", "executor"), [("2", "numba"), ("4", "torch")])
def test_moments_of_4_bits(world: World, size: str, executor: str) -> None:
    options = [{"lr": 0.01, "precision": "4bit", "max_grad_norm": 0.5}]
    how = {"shapes": EVEN, "executor": executor}
    check(world, PAIRED[size], "trained", "AdamW", options, **how)


def refused() -> str:
    layout = BY_NAME["columns2"]
    mesh = layouts.mesh_of(layout)
    p = torch.nn.Parameter(layouts.shared(torch.ones(4, 6).bfloat16(), mesh, layout.places))
    with pytest.raises(ValueError, match=r"cut by .* between two columns") as error:
        AdamW([p], precision="4bit")
    return str(error.value)


@pytest.mark.slow
def test_a_cut_through_bytes_is_refused(world: World) -> None:
    first, second = world.run(2, refused)
    assert first == second


# -- meshes --------------------------------------------------------------------------------------


def left(make: str) -> bool:
    """Whether a mesh is still there when nothing is left of a training over it.

    Each has its own connections and threads.
    """
    named = layouts.params(MIXED, layouts.mesh_of(MIXED), BF16, ((7, 6), (12, 10)))
    with mcf.executor("torch"):
        optimizer = getattr(mcf.optim, make)(named, lr=0.01, precision="light", max_grad_norm=0.5)
        steps(named, optimizer, range(4))
    mesh = weakref.ref(next(p.device_mesh for _, p in named if hasattr(p, "device_mesh")))
    del named, optimizer
    forget_layouts()
    gc.collect()
    return mesh() is not None


@pytest.mark.slow
def test_no_mesh_outlives_what_is_shared_over_it(world: World) -> None:
    """Mutants: layouts, and groups of owners, that a dictionary keeps by the mesh's address."""
    for rule in ("AdamW", "Muon"):
        assert world.run(MIXED.size, left, rule) == [False] * MIXED.size
