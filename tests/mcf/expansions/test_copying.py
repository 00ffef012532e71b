"""Pickling, torch.save, deep copies, parameters, loaders: the components survive, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import mcf
from mcf.expansions.interchange.copying import rebuild
from tests.helpers import assert_all_same_bits


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


def test_deep_copies_of_views_share_memory_as_the_originals_do() -> None:
    x = mcf.tensor([1.0, 2.0])
    view = x[1:]
    x2, view2 = copy.deepcopy((x, view))
    view2.zero_()
    assert x2.tolist() == [1, 0]
    assert x.tolist() == [1, 2]


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
