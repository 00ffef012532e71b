"""Random bits keyed on names: the same in every grouping, order and part of a model.

Contract: with names, the bits of a parameter depend on its name and not on the others nor on their
order; without, on its place. A checkpoint goes on with what it was made
with, and one of an older version with places.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import Parameter

import mcf
from mcf.kernels import streams
from mcf.optim import AdamW, Muon
from mcf.optim.parameters import randomness as naming
from tests.helpers import assert_same_bits, count_different
from tests.optim.helpers import BF16, parameter, random
from tests.optim.stream_cases import (
    MAKERS,
    NAMES,
    Named,
    adamw,
    assert_part,
    model,
    train,
    trained,
    values,
)

pytestmark = pytest.mark.usefixtures("on_torch")


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


@pytest.mark.sampled(every=3)
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


@pytest.mark.sampled(every=2)
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
    plain, other = (
        list(naming.stream_numbers(adamw(list(m.named_parameters())).param_groups).values())
        for m in (net, compiled)
    )
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
    assert [*naming.stream_numbers(optimizer.param_groups).values()] == [0, 1, 2, 3, 4]
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
    with pytest.raises(ValueError, match="stream_by must be one of 'name', 'place', got 'order'"):
        make([{"params": [p], "stream_by": "order"}])
    # What rounds to nearest has no streams: groups whose parameters others divided go on.
    AdamW([{"params": [p], "param_names": ["a", "b"]}], precision="plus")
    optimizer = make([("a", p), ("b", q)])
    saved = optimizer.state_dict()
    saved["param_groups"][0]["param_names"] = ["a"]
    with pytest.raises(ValueError, match=r"state_dict param_groups\[0\] has 2 params and 1 param"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["param_names"] == ["a", "b"]
