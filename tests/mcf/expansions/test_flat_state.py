"""States as plain tensors with names, and back, bit for bit; what is no such state is refused.

Caught mutants: a component that is left out; tied weights stored twice; a view that keeps its whole
memory; an optimizer's integer keys that come back as text.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import mcf
from mcf.optim import CollageAdamW
from tests.helpers import assert_all_same_bits

pytestmark = pytest.mark.usefixtures("on_torch")


def saved(state: Any) -> Any:
    """Through a file of plain tensors and text, as other programs have it."""
    tensors, metadata = mcf.flatten_state(state)
    for name, t in tensors.items():
        assert type(t) is torch.Tensor, name
        assert t.is_contiguous()
        assert t.untyped_storage().nbytes() == t.nbytes
        assert not t.requires_grad
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items())
    places = [t.data_ptr() for t in tensors.values() if t.numel()]
    assert len(set(places)) == len(places)
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return mcf.unflatten_state(torch.load(file, weights_only=True), dict(metadata))


def same(got: Any, want: Any) -> None:
    mine, structure = tree_flatten(got)
    theirs, wanted = tree_flatten(want)
    assert structure == wanted
    for x, y in zip(mine, theirs, strict=True):
        if isinstance(y, mcf.MCFTensor):
            assert isinstance(x, mcf.MCFTensor)
            assert_all_same_bits(x.components, [c.contiguous() for c in y.components], "components")
        elif isinstance(y, torch.Tensor):
            assert torch.equal(x, y)
        else:
            assert x == y
            assert type(x) is type(y)


def test_a_module_and_its_optimizers() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(torch.bfloat16)
    net[0].weight = nn.Parameter(mcf.tensor(net[0].weight.detach(), 2))
    net.register_buffer("third", mcf.tensor("1/3", 3))
    plain = [p for p in net.parameters() if not isinstance(p, mcf.MCFTensor)]
    optimizers = [
        CollageAdamW(plain, lr=1e-3, mode="plus"),
        torch.optim.SGD([net[0].weight], lr=0.1, momentum=0.9),
    ]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    for optimizer in optimizers:
        optimizer.step()
    for state in (net.state_dict(), *(o.state_dict() for o in optimizers)):
        same(saved(dict(state)), dict(state))
    tensors, _ = mcf.flatten_state(net.state_dict())
    assert {"0.weight.c0", "0.weight.c1", "1.bias", "third.c2"} <= tensors.keys()
    optimizers[1].load_state_dict(saved(optimizers[1].state_dict()))
    assert isinstance(optimizers[1].state[net[0].weight]["momentum_buffer"], mcf.MCFTensor)


def test_ties_views_and_structures() -> None:
    x = mcf.rand(6, 4, terms=2, dtype=torch.float64)
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "view": x.T[1:],
        "tied": {"a": x, "b": [x]},
        "rows": (base[0], base[1], base.T),
        1: {"lr": 0.1, "betas": (0.9, float("inf")), "name": "Ünicode", "none": None, "on": True},
        "empty": torch.zeros(0, 2),
    }
    got = saved(state)
    same(got, state)
    assert got["tied"]["a"] is got["tied"]["b"][0]
    assert len(mcf.flatten_state(state)[0]) == 2 + 2 + 3 + 1


def test_bad_states() -> None:
    x = mcf.ones(2)
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"a": {"b": object()}}, TypeError, "a.b must be .* got object"),
        ({"a": {1.5: x}}, TypeError, "keys of a .* got 1.5"),
        ({"w": x, "w.c0": torch.ones(1)}, ValueError, "name 'w.c0'"),
        ({"s": torch.ones(2).to_sparse()}, TypeError, "s must be a dense tensor"),
    ]
    for state, error, match in wrong:
        with pytest.raises(error, match=match):
            mcf.flatten_state(state)


def test_bad_files() -> None:
    tensors, metadata = mcf.flatten_state({"w": mcf.ones(2), "b": torch.ones(3)})
    for given in (None, {}, {"mcf": "no json"}, {"mcf": "[]"}):
        with pytest.raises(ValueError, match="metadata must have the entry 'mcf'"):
            mcf.unflatten_state(tensors, given)
    with pytest.raises(ValueError, match="version 1, got 2"):
        mcf.unflatten_state(tensors, {"mcf": json.dumps({"version": 2, "state": {}})})
    with pytest.raises(ValueError, match=r"no 'w\.c1'"):
        mcf.unflatten_state({k: v for k, v in tensors.items() if k != "w.c1"}, metadata)
    with pytest.raises(ValueError, match="shape"):
        mcf.unflatten_state({**tensors, "w.c1": torch.ones(3)}, metadata)
    for node in ({"code": 1}, {"list": 3}, {"tensor": ["b"]}, {"expansion": [1]}, {"dict": [1]}, 7):
        with pytest.raises(ValueError, match="metadata must have"):
            mcf.unflatten_state(tensors, {"mcf": json.dumps({"version": 1, "state": node})})
