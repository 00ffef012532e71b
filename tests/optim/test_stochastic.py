"""Precisions that round at random: the same bits wherever a step runs.

Contract: the random bits of an element are a function of the seed, the step, the parameter's name
(or its place, without names; or what `set_stream` told) and the element's index in the whole
parameter. So the executor, the layout, grouping, order and part of a model, a resume from a
checkpoint and a cut into shards change nothing. A checkpoint goes on with what it was made with,
and one of an older version with places.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
from mcf.kernels import streams
from mcf.optim import SGD, AdamW, CollageAdamW, Muon, collage, set_index_offset, set_stream
from mcf.optim.parameters import randomness as naming
from tests.helpers import assert_same_bits, count_different
from tests.optim.arithmetics import BF16, FP16
from tests.optim.helpers import (
    assert_same,
    give_gradients,
    in_full,
    parameter,
    parameters,
    random,
    steps,
    stored,
    through_file,
)
from tests.optim.variants import RANDOM

pytestmark = pytest.mark.usefixtures("on_torch")

each = pytest.mark.parametrize("options", RANDOM, ids=lambda o: "-".join(o.values()))


def layouts() -> list[Tensor]:
    transposed = random((6, 11), BF16, 2).t()
    sliced = random((9, 14), BF16, 1)[1:, ::2]
    return [random(s, BF16, 5) for s in ((0,), (), (7, 13), (1029,))] + [transposed, sliced]


def result(params: list[Tensor], count: int = 5, **options: Any) -> dict[str, Tensor]:
    """Return copies of some parameters after steps, and their states."""
    made = [Parameter(p.clone(memory_format=torch.preserve_format)) for p in params]
    optimizer = AdamW(made, 1e-2, weight_decay=0.1, **options)
    for t in range(count):
        give_gradients(optimizer, t)
        optimizer.step()
    return stored(optimizer)


# -- layouts, seeds, shards; test_executors.py has the executors -------------------------------


@pytest.mark.sampled(every=3)
@each
def test_layout_and_other_parameters_change_nothing(options: dict[str, Any]) -> None:
    found = result(layouts(), **options)
    assert_same(found, result([p.contiguous() for p in layouts()], **options))
    last = result([torch.zeros(1, dtype=BF16)] * 5 + layouts()[5:], **options)
    assert_same_bits(last["5.param"], found["5.param"])


@pytest.mark.sampled(every=3)
@each
def test_seed_decides_the_bits_and_checkpoints_keep_it(options: dict[str, Any]) -> None:
    first, second = (result(layouts()[2:4], seed=s, **options) for s in (0, 1))
    assert_same(result(layouts()[2:4], **options), first)
    name = "1.param_lo" if "low" in options else "1.param"
    assert count_different(first[name], second[name]) > 20

    optimizer = AdamW([parameter((5, 100), BF16)], 1e-3, seed=7, **options)
    steps(optimizer, 3)
    saved = through_file({"p": next(parameters(optimizer)).data, "o": optimizer.state_dict()})
    other = AdamW([Parameter(saved["p"])], 1e-3, **options)
    other.load_state_dict(saved["o"])
    assert other.param_groups[0]["seed"] == copy.deepcopy(other).param_groups[0]["seed"] == 7
    for o in (optimizer, other):
        steps(o, 3, seed=9)
    assert_same(stored(other), stored(optimizer))
    # The default of checkpoints without one.
    del saved["o"]["param_groups"][0]["seed"]
    other.load_state_dict(saved["o"])
    assert other.param_groups[0]["seed"] == 0


@pytest.mark.sampled(every=2)
@each
def test_shards_have_the_bits_of_the_whole(options: dict[str, Any]) -> None:
    start = random((10, 33), BF16, 1)

    def shard(a: int, b: int) -> dict[str, Tensor]:
        p = Parameter(start[a:b].clone())
        set_index_offset(p, 33 * a)
        optimizer = AdamW([p], 1e-2, weight_decay=0.1, **options)
        for t in range(5):
            p.grad = random(start.shape, BF16, 1000 * t, 0.1)[a:b]
            optimizer.step()
        return stored(optimizer)

    parts = [shard(a, b) for a, b in itertools.pairwise([0, 4, 7, 7, 10])]
    for name, expected in shard(0, 10).items():
        if expected.ndim:
            assert_same_bits(torch.cat([part[name] for part in parts]), expected, name)


@pytest.mark.parametrize("wrapped", [False, True])
def test_copied_optimizer_keeps_the_offsets_of_its_parameters(wrapped: bool) -> None:
    shard = parameter(40, BF16)
    set_index_offset(shard, 1000)
    options: dict[str, Any] = {"precision": "stochastic", "lr": 0.01}
    first = collage(torch.optim.AdamW, [shard], **options) if wrapped else AdamW([shard], **options)
    second = copy.deepcopy(first)
    # A model and its optimizer that are copied together stay together.
    third, weights = copy.deepcopy((first, [shard]))
    assert next(parameters(third)) is weights[0]
    for optimizer in (first, second, third):
        steps(optimizer, 3)
    assert_same(stored(second), stored(first))
    assert_same(stored(third), stored(first))


# -- names ---------------------------------------------------------------------------------------

SHAPES = {
    "embed.weight": (9, 7), "layers.0.weight": (12, 6), "layers.0.bias": (30,),
    "layers.1.weight": (12, 6), "head.weight": (40,),
}  # fmt: skip
NAMES = tuple(SHAPES)

Named = list[tuple[str, Parameter]]
Results = dict[str, Tensor]


def model(names: Iterable[str] = NAMES) -> Named:
    """Parameters by name; the value of each follows from its name."""
    return [(n, parameter(SHAPES[n], BF16, NAMES.index(n))) for n in names]


def train(optimizer: Any, named: Named, first: int, last: int) -> None:
    for t in range(first, last):
        for name, p in named:
            p.grad = random(p.shape, BF16, 100 * t + NAMES.index(name), 0.1)
        optimizer.step()


def values(named: Named) -> Results:
    return {name: p.detach().clone() for name, p in named}


def trained(make: Callable[[Any], Any], named: Named, groups: Any = None) -> Results:
    """Return parameters and low words after steps, by name."""
    optimizer = make(named if groups is None else groups)
    train(optimizer, named, 0, 4)
    lows = {n: optimizer.state[p].get("param_lo") for n, p in named}
    return values(named) | {f"{n} low": t.clone() for n, t in lows.items() if t is not None}


def assert_part(found: Results, whole: Results) -> None:
    assert_same(found, {name: whole[name] for name in found})


def adamw(params: Any, **options: Any) -> AdamW:
    return AdamW(params, 1e-2, precision="stochastic", **options)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "adamw": adamw,
    "low": lambda p: AdamW(p, 1e-2, low="stochastic"),
    "capturable": lambda p: adamw(p, capturable=True),
    "metrics": lambda p: adamw(p, track_metrics=True),
    "sgd": lambda p: SGD(p, 1e-2, precision="stochastic"),
    "muon": lambda p: Muon(p, 1e-2, precision="stochastic"),
    "collage": lambda p: collage(torch.optim.AdamW, p, lr=1e-2, precision="stochastic"),
}
# Groupings, orders and parts of the same names, as lists of groups of names.
a, b, c, d, e = NAMES
ORDERS = ([[e, d, c, b, a]], [[d], [a, e], [b, c]], [[e, c]], [[d]])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", MAKERS)
def test_grouping_order_and_part_of_names_change_nothing(kind: str) -> None:
    make = MAKERS[kind]
    fit = [n for n in NAMES if kind != "muon" or len(SHAPES[n]) == 2]
    whole = trained(make, model(fit))
    for order in ORDERS:
        names = [g for group in order if (g := [n for n in group if n in fit])]
        if not names:
            continue
        named = model(n for group in names for n in group)
        known = dict(named)
        groups = [{"params": [(n, known[n]) for n in group]} for group in names]
        # Numba's steps are those that a plan repeats.
        with mcf.executor("numba" if kind == "adamw" else "torch"):
            assert_part(trained(make, named, groups), whole)


WRAPPED = (
    "module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}", "module.module.{}",
    "_fsdp_wrapped_module.{}", "_fsdp_wrapped_module._checkpoint_wrapped_module.{}",
)  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_prefixes_of_wrappers_do_not_count(wrapped: str) -> None:
    named = model()
    found = trained(adamw, named, [(wrapped.format(n), p) for n, p in named])
    assert_part(found, trained(adamw, model()))


def test_wrappers_inside_a_name_do_not_count_but_modules_called_so_do() -> None:
    inside = "module.layers._orig_mod.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight"
    assert naming.unwrapped(inside) == "layers.0.weight"
    assert naming.unwrapped("head.module.weight") == "head.module.weight"
    assert naming.unwrapped("module") == "module"
    # As torch.compile has them.
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).to(BF16)
    plain, compiled = (
        list(naming.stream_numbers(adamw(list(m.named_parameters())).param_groups).values())
        for m in (net, torch.compile(net))
    )
    assert plain == compiled


def test_number_of_a_name_is_fixed_for_all_time() -> None:
    """62 bits of SHA-256, beyond all places, and taken as they are."""
    digest = hashlib.sha256(b"layers.0.weight").digest()
    number = naming.of_name("layers.0.weight")
    assert number == 2**62 + (int.from_bytes(digest[:8], "big") >> 2) < 2**63
    expected = streams.key(5, 7, number)
    assert expected == int(streams.key(5, torch.tensor([7]), torch.tensor([number])))
    assert expected == int(streams.key(5, np.array([7], "u8"), np.array([number], "u8"))[0])
    assert naming.of_name("\ud800") != naming.of_name("?"), "any string is a name"


@pytest.mark.parametrize("second", ["y", "module.x"])
def test_each_name_has_numbers_of_its_own_and_a_name_given_twice_two_streams(second: str) -> None:
    start = random((400,), BF16, 3)
    p, q = Parameter(start.clone()), Parameter(start.clone())
    optimizer = adamw([{"params": [("x", p)]}, {"params": [(second, q)]}])
    p.grad = q.grad = random((400,), BF16, 4)
    optimizer.step()
    assert count_different(p.detach(), q.detach()) > 40


def test_without_names_places_count() -> None:
    named = model()
    optimizer = adamw([p for _, p in named])
    assert [*naming.stream_numbers(optimizer.param_groups).values()] == [0, 1, 2, 3, 4]
    train(optimizer, named, 0, 4)
    assert_part(trained(lambda p: adamw(p, stream_by="place"), model()), values(named))
    by_name = trained(adamw, model())
    assert count_different(by_name["embed.weight"], named[0][1].detach()) > 2


@pytest.mark.parametrize("keyed", ["name", "place"])
@pytest.mark.parametrize("kind", ["adamw", "collage"])
def test_checkpoint_goes_on_with_what_it_was_made_with(kind: str, keyed: str) -> None:
    make = MAKERS[kind]
    named, others = model(), model()
    optimizer = make(named if keyed == "name" else [p for _, p in named])
    train(optimizer, named, 0, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for (_, p), (_, q) in zip(others, named, strict=True):
        p.data.copy_(q)
    train(optimizer, named, 2, 5)
    if keyed == "place":
        # Of a version that did not say.
        for group in saved["param_groups"]:
            del group["stream_by"]
    # Given the other way.
    resumed = make(others if keyed == "place" else [p for _, p in others])
    resumed.load_state_dict(saved)
    train(resumed, others, 2, 5)
    assert_part(values(others), values(named))


# -- streams that are told -----------------------------------------------------------------------


def test_told_streams_count_in_place_of_names_and_stay_with_copies() -> None:
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
            copied = pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
            part = list(zip(mine, copied.param_groups[0]["params"], strict=True))
            train(copied, part, 2, 4)
            assert_part(values(part), whole)


CHANGES: dict[int, Callable[[Any, Any], Any]] = {
    3: lambda group, p: group.update(param_names=[*NAMES[1:], NAMES[0]]),
    4: lambda group, p: group["param_names"].__setitem__(2, "another"),
    5: lambda group, p: set_stream(p, "told"),
    6: lambda group, p: group.update(stream_by="place"),
    7: lambda group, p: set_stream(p, 2),
}


def test_changed_names_and_streams_are_seen_by_the_next_step() -> None:
    def changed(keep: bool) -> Results:
        named, plans = model(), 0
        optimizer = adamw(named) if keep else in_full(adamw(named))
        for t in range(9):
            CHANGES.get(t, lambda group, p: None)(optimizer.param_groups[0], named[0][1])
            before = optimizer._steps._repeat
            train(optimizer, named, t, t + 1)
            plans += before is not None and optimizer._steps._repeat is before
        assert plans == (3 if keep else 0), "of steps 1, 2 and 8"
        return values(named)

    with mcf.executor("numba"):
        assert_part(changed(True), changed(False))


# -- refusals ------------------------------------------------------------------------------------


def refused(error: type[Exception], words: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words):
        make()


def test_unfit_options_and_offsets_are_refused() -> None:
    p, half = parameter(3, BF16), parameter(3, FP16)
    state = AdamW([p], low="stochastic").state_dict()
    words = "'stochastic' with precision='plain', which stores no"
    refused(ValueError, words, lambda: AdamW([p], precision="plain", low="stochastic"))
    words = "low must be one of 'nearest', 'stochastic', got 'up'"
    refused(ValueError, words, lambda: AdamW([p], low="up"))
    refused(TypeError, "seed must be an int, got float", lambda: AdamW([p], seed=0.5))
    words = r"'light_stochastic' with .*float16"
    refused(ValueError, words, lambda: AdamW([half], precision="light", low="stochastic"))
    words = r"compute_dtype=torch.bfloat16 with precision='plus_st"
    refused(ValueError, words, lambda: CollageAdamW([p], low="stochastic", compute_dtype=BF16))
    words = "low='stochastic'; the optimizer has low='nearest'"
    refused(ValueError, words, lambda: AdamW([p]).load_state_dict(state))
    for wrong in (-1, 2**53):
        words = f"from 0 and below .*got {wrong}"
        refused(ValueError, words, lambda w=wrong: set_index_offset(p, w))
        refused(ValueError, f"place {words}", lambda w=wrong: set_stream(p, w))
    refused(TypeError, "offset must be an int, got float", lambda: set_index_offset(p, 1.0))
    for unfit in (1.0, True, None, b"a"):
        words = f"must be a name or a place .*{type(unfit).__name__}"
        refused(TypeError, words, lambda w=unfit: set_stream(p, w))


@pytest.mark.parametrize("make", [MAKERS["adamw"], MAKERS["collage"]], ids=["adamw", "collage"])
def test_unfit_names_are_refused(make: Any) -> None:
    p, q = parameter(3, BF16), parameter(4, BF16)
    for names, has in ((["a"], 1), (["a", "b", "c"], 3), ("ab", "str")):
        words = rf"\[0\] has 2 params and {has} param_names"
        refused(ValueError, words, lambda n=names: make([{"params": [p, q], "param_names": n}]))
    words = r"param_names\[1\] of param_groups\[0\] is a int"
    refused(TypeError, words, lambda: make([("a", p), (7, q)]))
    words = r"stream_by='name' and no param_names; allowed is 'plac"
    refused(ValueError, words, lambda: make([{"params": [p], "stream_by": "name"}]))
    words = "stream_by must be one of 'name', 'place', got 'order'"
    refused(ValueError, words, lambda: make([{"params": [p], "stream_by": "order"}]))
    # What rounds to nearest has no streams: groups whose parameters others divided go on.
    AdamW([{"params": [p], "param_names": ["a", "b"]}], precision="plus")
    optimizer = make([("a", p), ("b", q)])
    saved = optimizer.state_dict()
    saved["param_groups"][0]["param_names"] = ["a"]
    words = r"state_dict param_groups\[0\] has 2 params and 1 param"
    refused(ValueError, words, lambda: optimizer.load_state_dict(saved))
    assert optimizer.param_groups[0]["param_names"] == ["a", "b"]
