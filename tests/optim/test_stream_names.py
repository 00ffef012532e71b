"""Random bits keyed on names: the same in every grouping, order and part of a model.

Contract: with names, the bits of a parameter depend on its name and not on the others nor on their
order; without, on its place; `set_stream` says either. A checkpoint goes on with what it was made
with, and one of an older version with places.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
from mcf.kernels import streams
from mcf.optim import SGD, AdamW, GradientRelease, Muon, collage, set_index_offset, set_stream
from mcf.optim import stream_names as naming
from tests.helpers import assert_same_bits, count_different
from tests.optim.helpers import BF16, parameter, random
from tests.optim.plan_cases import in_full

NAMES = ("embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "head.weight")
SHAPES = ((9, 7), (12, 6), (30,), (12, 6), (40,))
Named = list[tuple[str, Parameter]]
Results = dict[str, Tensor]


@pytest.fixture(autouse=True)
def reference_executor():
    with mcf.executor("torch"):
        yield


def model(names: Iterable[str] = NAMES) -> Named:
    """Parameters by name; the value of each follows from its name."""
    return [(n, parameter(SHAPES[NAMES.index(n)], BF16, NAMES.index(n))) for n in names]


def give(params: Iterable[tuple[str, Tensor]], t: int) -> None:
    for name, p in params:
        p.grad = random(p.shape, BF16, 100 * t + NAMES.index(name), 0.1)


def trained(
    make: Callable[[Any], Any], named: Named, groups: Any = None, first: int = 0, last: int = 4
) -> Results:
    """What steps make of parameters and low words, by name."""
    optimizer = make(named if groups is None else groups)
    train(optimizer, named, first, last)
    found = values(named)
    for name, p in named:
        if "param_lo" in optimizer.state[p]:
            found[f"{name} low"] = optimizer.state[p]["param_lo"].clone()
    return found


def train(optimizer: Any, named: Named, first: int, last: int) -> None:
    for t in range(first, last):
        give(named, t)
        optimizer.step()


def values(named: Named) -> Results:
    return {name: p.detach().clone() for name, p in named}


def assert_part(found: Results, whole: Results) -> None:
    for name, x in found.items():
        assert_same_bits(x, whole[name], name)


def adamw(params: Any, **options: Any) -> AdamW:
    return AdamW(params, 1e-2, precision="stochastic", **options)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "adamw": adamw,
    "low": lambda p: AdamW(p, 1e-2, low="stochastic"),
    "capturable": lambda p: adamw(p, capturable=True),
    "metrics": lambda p: adamw(p, track_metrics=True),
    "sgd": lambda p: SGD(p, 1e-2, precision="stochastic"),
    "collage": lambda p: collage(torch.optim.AdamW, p, lr=1e-2, precision="stochastic"),
}


def matrices(named: Named) -> Named:
    return [(n, p) for n, p in named if p.ndim == 2]


def orders() -> dict[str, Any]:
    """Groupings, orders and parts of the same names, as lists of groups of names."""
    a, b, c, d, e = NAMES
    return {
        "reversed": [[e, d, c, b, a]],
        "groups": [[d], [a, e], [b, c]],
        "a part": [[e, c]],
        "one": [[d]],
    }


@pytest.mark.parametrize("kind", MAKERS)
def test_grouping_order_and_part_do_not_matter(kind: str) -> None:
    make = MAKERS[kind]
    whole = trained(make, model())
    for words, names in orders().items():
        named = model(n for group in names for n in group)
        known = dict(named)
        groups = [{"params": [(n, known[n]) for n in group]} for group in names]
        # Numba's steps are those that a plan repeats.
        with mcf.executor("numba" if kind == "adamw" else "torch"):
            found = trained(make, named, groups)
        for name, x in found.items():
            assert_same_bits(x, whole[name], f"{words} {name}")


def test_muon() -> None:
    make = lambda p: Muon(p, 1e-2, precision="stochastic")  # noqa: E731
    whole = trained(make, matrices(model()))
    for names in ((NAMES[3], NAMES[1], NAMES[0]), (NAMES[3],)):
        assert_part(trained(make, model(names)), whole)


def test_each_name_has_numbers_of_its_own() -> None:
    start = random((400,), BF16, 3)
    results = []
    for name in ("x", "y"):
        p = Parameter(start.clone())
        optimizer = adamw([(name, p)])
        p.grad = random((400,), BF16, 4)
        optimizer.step()
        results.append(p.detach())
    assert count_different(*results) > 40


WRAPPED = (
    "module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}", "module.module.{}",
    "_fsdp_wrapped_module.{}", "_fsdp_wrapped_module._checkpoint_wrapped_module.{}",
)  # fmt: skip


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_prefixes_of_wrappers_do_not_count(wrapped: str) -> None:
    named = model()
    found = trained(adamw, named, [(wrapped.format(n), p) for n, p in named])
    assert_part(found, trained(adamw, model()))


def test_unwrapped() -> None:
    inside = "module.layers._orig_mod.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight"
    assert naming.unwrapped(inside) == "layers.0.weight"
    # Modules may be called so inside a model.
    assert naming.unwrapped("head.module.weight") == "head.module.weight"
    assert naming.unwrapped("module") == "module"


def test_a_model_under_torch_compile_and_its_checkpoint() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).to(BF16)
    compiled: Any = torch.compile(net)
    names = [n for n, _ in compiled.named_parameters()]
    assert all(n.startswith("_orig_mod.") for n in names)
    plain, other = ([q for _, q in naming.numbers(adamw(list(m.named_parameters())).param_groups)]
                    for m in (net, compiled))  # fmt: skip
    assert plain == other


def test_the_number_of_a_name() -> None:
    """Fixed for all time: 62 bits of SHA-256, beyond all places, and taken as they are."""
    digest = hashlib.sha256(b"layers.0.weight").digest()
    number = naming.of_name("layers.0.weight")
    assert number == 2**62 + (int.from_bytes(digest[:8], "big") >> 2) < 2**63
    expected = streams.key(5, 7, number)
    assert expected == int(streams.key(5, torch.tensor([7]), torch.tensor([number])))
    assert expected == int(streams.key(5, np.array([7], "u8"), np.array([number], "u8"))[0])
    assert naming.of_name("\ud800") != naming.of_name("?"), "any string is a name"


def test_the_same_name_twice_is_two_streams() -> None:
    start = random((400,), BF16, 3)
    p, q = Parameter(start.clone()), Parameter(start.clone())
    optimizer = adamw([{"params": [("fc.weight", p)]}, {"params": [("module.fc.weight", q)]}])
    for x in (p, q):
        x.grad = random((400,), BF16, 4)
    optimizer.step()
    assert count_different(p.detach(), q.detach()) > 40


def test_without_names_places_count_as_before() -> None:
    named = model()
    params = [p for _, p in named]
    optimizer = adamw(params)
    assert [k for _, k in naming.numbers(optimizer.param_groups)] == [0, 1, 2, 3, 4]
    train(optimizer, named, 0, 4)
    again = model()
    assert_part(trained(lambda p: adamw(p, stream_by="place"), again), values(named))
    by_name = trained(adamw, model())
    assert count_different(by_name["embed.weight"], named[0][1].detach()) > 2


@pytest.mark.parametrize("kind", ["adamw", "collage"])
def test_a_checkpoint_goes_on_with_what_it_was_made_with(kind: str) -> None:
    make = MAKERS[kind]
    for keyed in ("name", "place"):
        named = model()
        start = named if keyed == "name" else [p for _, p in named]
        optimizer = make(start)
        train(optimizer, named, 0, 2)
        weights, saved = copy.deepcopy(values(named)), copy.deepcopy(optimizer.state_dict())
        train(optimizer, named, 2, 5)
        if keyed == "place":
            # Of a version that did not say.
            for group in saved["param_groups"]:
                del group["stream_by"]
        others = model()
        for name, p in others:
            p.data.copy_(weights[name])
        # Given the other way.
        resumed = make(others if keyed == "place" else [p for _, p in others])
        resumed.load_state_dict(saved)
        train(resumed, others, 2, 5)
        assert_part(values(others), values(named))


def test_gradient_release() -> None:
    whole = trained(adamw, model())
    named = model(reversed(NAMES))
    release = GradientRelease(adamw(named))
    for t in range(4):
        (sum((p * random(p.shape, BF16, 100 * t + NAMES.index(n), 0.1)).sum() for n, p in named)
         ).backward()  # type: ignore[union-attr]  # fmt: skip
    release.remove()
    assert_part(values(named), whole)


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


def test_parts_of_one_tensor() -> None:
    start = random((10, 33), BF16, 1)

    def steps(x: Tensor, first: int) -> Tensor:
        p = Parameter(x.clone())
        set_index_offset(p, 33 * first)
        optimizer = adamw([("layers.3.weight", p)])
        for t in range(3):
            p.grad = random(start.shape, BF16, t, 0.1)[first : first + len(x)]
            optimizer.step()
        return p.detach()

    assert_same_bits(torch.cat([steps(start[:4], 0), steps(start[4:], 4)]), steps(start, 0))


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


@pytest.mark.parametrize("make", [MAKERS["adamw"], MAKERS["collage"]], ids=["adamw", "collage"])
def test_refusals(make: Any) -> None:
    p, q = parameter(3, BF16), parameter(4, BF16)
    for names, has in ((["a"], 1), (["a", "b", "c"], 3), ("ab", "str")):
        with pytest.raises(ValueError, match=rf"\[0\] has 2 params and {has} param_names"):
            make([{"params": [p, q], "param_names": names}])
    with pytest.raises(TypeError, match=r"param_names\[1\] of param_groups\[0\] is a int"):
        make([("a", p), (7, q)])
    with pytest.raises(ValueError, match=r"stream_by='name' and no param_names; allowed is 'plac"):
        make([{"params": [p], "stream_by": "name"}])
    with pytest.raises(ValueError, match="Unknown stream_by: 'order'; known are 'name', 'place'"):
        make([{"params": [p], "stream_by": "order"}])
    # What rounds to nearest has no streams: groups whose parameters others divided go on.
    AdamW([{"params": [p], "param_names": ["a", "b"]}], precision="plus")
    optimizer = make([("a", p), ("b", q)])
    saved = optimizer.state_dict()
    saved["param_groups"][0]["param_names"] = ["a"]
    with pytest.raises(ValueError, match=r"state_dict param_groups\[0\] has 2 params and 1 param"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["param_names"] == ["a", "b"]


def test_refusals_of_streams() -> None:
    p = parameter(3, BF16)
    for wrong in (1.0, True, None, b"a"):
        with pytest.raises(TypeError, match=f"must be a name or a place .*{type(wrong).__name__}"):
            set_stream(p, wrong)  # type: ignore[arg-type]
    for place in (-1, 2**53):
        with pytest.raises(ValueError, match=f"place from 0 and below .*got {place}"):
            set_stream(p, place)
