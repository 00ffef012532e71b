"""Pickling, torch.save, deep copies, parameters, loaders: the components survive, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import mcf
from mcf.expansions.interchange.copying import rebuild
from tests.helpers import assert_all_same_bits
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
