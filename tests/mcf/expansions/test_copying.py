"""Test copies, files, flat states and users' own types: components survive bit for bit.

Caught mutants: results without the user's type; a tensor that is written to, or a stored gradient,
converted to it; a component left out of a flat state; tied weights stored twice; a view that keeps
its whole memory; integer keys of an optimizer that come back as text.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

import mcf
from mcf.expansions.interchange.copying import rebuild
from mcf.optim import CollageAdamW
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.modes import Seen


class Scale(nn.Module):
    def __init__(self, value: str, terms: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(mcf.tensor([value, "0.1"], terms))
        self.register_buffer("offset", mcf.tensor(["0.3"]))


def saved(x: object) -> object:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_pickle_and_torch_save_keep_components_and_flags() -> None:
    x = mcf.tensor(["0.1", "inf"], terms=3, requires_grad=True)
    for y in (pickle.loads(pickle.dumps(x)), saved(x), copy.deepcopy(x)):
        assert isinstance(y, mcf.MCFTensor)
        assert y.requires_grad
        assert_all_same_bits(y.components, x.components)
    assert isinstance(saved(nn.Parameter(x.detach())), nn.Parameter)


def test_a_parameter_stays_an_expansion_through_the_module_methods() -> None:
    module = Scale("0.7")
    assert isinstance(module.weight, nn.Parameter)
    assert [n for n, _ in module.named_parameters()] == ["weight"]
    other = Scale("5")
    other.load_state_dict(saved(module.state_dict()))
    assert_all_same_bits(other.weight.components, module.weight.components)
    assert_all_same_bits(other.offset.components, module.offset.components)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert module.weight.tolist() != [0, 0]
    module.double()
    assert isinstance(module.weight, mcf.MCFTensor)
    assert isinstance(module.weight, nn.Parameter)
    assert (module.weight.dtype, module.weight.terms) == (torch.float64, 2)
    module.zero_grad()


def test_loaders_collate() -> None:
    data = [(mcf.tensor([float(k), "0.1"]), k) for k in range(4)]
    batches = list(DataLoader(data, batch_size=2))
    assert [tuple(b.shape) for b, _ in batches] == [(2, 2), (2, 2)]
    assert_all_same_bits(batches[1][0][0].components, data[2][0].components)


def test_data_can_be_exchanged() -> None:
    x = nn.Parameter(mcf.tensor([1.0, 2.0]))
    x.data = mcf.tensor(["0.1", "0.2"])
    assert_all_same_bits(x.components, mcf.tensor(["0.1", "0.2"]).components)
    x.data.mul_(2)
    assert_all_same_bits(x.components, mcf.tensor(["0.2", "0.4"]).components)


def test_shared_memory() -> None:
    x = mcf.tensor([1.0])
    assert not x.is_shared()
    assert x.share_memory_().is_shared()


class Own(mcf.MCFTensor):
    """A type of a user's."""


def pair(terms: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    whole = torch.arange(6, dtype=dtype).reshape(2, 3) - 2
    return mcf.MCFTensor([whole * 2.0 ** (-60 * k) for k in range(terms)])


def with_gradient() -> Any:
    x = pair().requires_grad_()
    (x * x).sum().backward()
    return x


def with_attribute() -> Any:
    x = pair()
    x.name_of_it = ["kept"]
    return x


def of_inference() -> Any:
    with torch.inference_mode():
        return pair()


COPIED: dict[str, Callable[[], Any]] = {
    "one component": lambda: pair(1),
    "four": lambda: pair(4, torch.float32),
    "half": lambda: pair(2, torch.bfloat16),
    "empty": lambda: mcf.MCFTensor([torch.zeros(0, 3), torch.zeros(0, 3)]),
    "number": lambda: pair()[0, 0].clone(),
    "parameter": lambda: nn.Parameter(pair()),
    "of inference": of_inference,
    "gradient": with_gradient,
    "attribute": with_attribute,
    "own type": lambda: Own(pair().components),
    "view": lambda: pair()[1:],
    "transposed": lambda: pair().t(),
    "expanded": lambda: pair()[:1].expand(4, 3),
    "one memory": lambda: mcf.MCFTensor(torch.eye(2, 3, dtype=torch.float64).unbind()),
    "meta": lambda: pair().to("meta"),
}


def described(x: Any) -> list[Any]:
    """Return what a copy has to have, apart from numbers and inference mode."""
    memory = [c.untyped_storage().nbytes() for c in x.components]
    grad = None if x.grad is None else x.grad.tolist()
    others = {k: v for k, v in x.__dict__.items() if k[:2] != "_c" and k != "_terms"}
    flags = x.requires_grad, x.is_leaf, isinstance(x, nn.Parameter)
    return [type(x), x.shape, x.stride(), x.storage_offset(), memory, grad, flags, others]


@pytest.mark.parametrize("name", COPIED)
def test_deep_copy_has_everything_in_memory_of_its_own(name: str) -> None:
    x = COPIED[name]()
    y = copy.deepcopy(x)
    with torch.inference_mode():
        inside = copy.deepcopy(x)
    for found in (y, inside):
        assert described(found) == described(x)
        places = {c.data_ptr() for c in found.components} - {0}
        assert not places & {c.data_ptr() for c in x.components}
        if not x.is_meta:
            assert_all_same_bits(found.components, x.components, name)
    assert y.is_inference() is False
    assert inside.is_inference()


def test_deep_copy_of_several_copies_shared_memory_once() -> None:
    """Mutants: memory that was met copied again; the components left out of the memo."""
    x = pair()
    first, view, again = x.components[0], x[1:], x
    for given in ([x, view, first, again], [view, first, x, again], [first, x, view, again]):
        copies = copy.deepcopy(given)
        own = copies[[g is x for g in given].index(True)]
        own.fill_(7.5)
        for t in copies:
            assert t.tolist() == torch.full(t.shape, 7.5).tolist()
        assert copies[-1] is own
        assert x[0, 0].item() == -2
    a, b = copy.deepcopy([x, x.components])
    assert b[0] is a.components[0]


def test_deep_copy_is_seen_by_modes_and_refused_of_a_result() -> None:
    x = pair()
    with Seen() as seen:
        copy.deepcopy(x)
    assert seen.seen
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x.requires_grad_() * 2)
    hooked = pair().requires_grad_()
    hooked.register_hook(lambda grad: grad * 2)
    copied = copy.deepcopy(hooked)
    copied.sum().backward()
    assert copied.grad.tolist() == [[1.0] * 3] * 2


def test_copies_of_a_users_type_have_it() -> None:
    x = Own(mcf.tensor(["0.1", "0.2"], 3).components)
    x.tag = "kept"
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is Own
        assert y.tag == "kept"
        assert_all_same_bits(y.components, x.components)
    with pytest.raises(pickle.UnpicklingError):
        saved(x)
    for kind in (torch.Tensor, 1):
        with pytest.raises(TypeError, match="kind"):
            rebuild(list(x.components), False, {}, kind)


pytestmark = pytest.mark.usefixtures("on_torch")


class Plain(torch.Tensor):
    """One of torch's."""


NUMBERS = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "s + x": lambda s, x: s + x,
    "x + s": lambda s, x: x + s,
    "1 - s": lambda s, x: 1 - s,
    "s / x": lambda s, x: s / x,
    "x / s": lambda s, x: x / s,
    "exp": lambda s, x: s.exp(),
    "view": lambda s, x: s.T,
    "index": lambda s, x: s[0],
    "sum": lambda s, x: s.sum(),
    "named": lambda s, x: s.max(0).values,
    "named, of no operator": lambda s, x: torch.histogram(s, 3).bin_edges,
    "list": lambda s, x: s.unbind()[1],
    "cat": lambda s, x: torch.cat([x, s]),
    "where": lambda s, x: torch.where(NUMBERS > 1, x, s),
    "like": lambda s, x: torch.zeros_like(s),
    "to": lambda s, x: s.to(torch.float32),
    "detach": lambda s, x: s.detach(),
    "in place": lambda s, x: s.clone().mul_(2),
    "others in place": lambda s, x: x.clone().mul_(s),
    "back": lambda s, x: torch.atleast_1d((x, s))[0],
    "itself": lambda s, x: s.contiguous(),
    "linear algebra": lambda s, x: torch.linalg.det(s),
    "norm": lambda s, x: s.norm(),
    "split": lambda s, x: s.split(1)[0],
    "gelu": lambda s, x: torch.nn.functional.gelu(s),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_type(name: str) -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    found = CALLS[name](Own(x.components), x)
    assert type(found) is Own
    assert type(x) is mcf.MCFTensor
    assert type(CALLS[name](NUMBERS.as_subclass(Plain), NUMBERS)) is Plain
    expected = CALLS[name](x, x)
    assert_alike(mcf.MCFTensor(found.components), mcf.MCFTensor(expected.components), "")


def test_a_graph_and_its_gradient() -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    s = Own(x.components).requires_grad_()
    total = (s * s).sum()
    assert type(total) is Own
    total.backward()
    # As torch's: it is what was stored, not the result of a function of s.
    assert type(s.grad) is mcf.MCFTensor
    assert_alike(s.grad, 2 * x, "")


def test_what_is_written_to_keeps_its_type() -> None:
    x = mcf.tensor(NUMBERS, dtype=torch.float64)
    s, kept = Own(x.components), x.clone()
    kept.add_(s)
    assert type(kept) is mcf.MCFTensor
    torch.add(x, s, out=kept)
    assert type(kept) is mcf.MCFTensor
    assert_alike(kept, 2 * x, "")


def through_file(state: Any) -> Any:
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
        same(through_file(dict(state)), dict(state))
    tensors, _ = mcf.flatten_state(net.state_dict())
    assert {"0.weight.c0", "0.weight.c1", "1.bias", "third.c2"} <= tensors.keys()
    optimizers[1].load_state_dict(through_file(optimizers[1].state_dict()))
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
    got = through_file(state)
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
