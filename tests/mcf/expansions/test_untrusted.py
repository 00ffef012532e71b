"""Files that somebody else has written, and components that somebody else has made.

`torch.load(weights_only=True)` calls the functions that a file names with what the file says, so a
file may say anything of an expansion tensor. Kernels write to all components as far as the first
reaches: a smaller one would be written past its end.

Caught mutants: each check of `mcf.expansions.components` left out; an attribute that a file may
set; components that the file can still resize.
"""

from __future__ import annotations

import copy
import io
import pickle
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._utils import _rebuild_parameter_with_state, _rebuild_tensor_v2

import mcf
from mcf.expansions.interchange.copying import rebuild
from mcf.optim import AdamW
from tests.helpers import assert_all_same_bits

BF16 = torch.bfloat16


class Forged:
    """An object that a file says is made by a call, and then given a state."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.made = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.made


def loaded(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(*shape, **options)


def _negative() -> Tensor:
    x = zeros(2, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    return x


SHARED = zeros(3)

# What is wrong with the components, and how the error says it.
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: [], "1 to 4 tensors, got 0"),
    "five": (lambda: [zeros(2) for _ in range(5)], "1 to 4 tensors, got 5"),
    "no tensors": (lambda: [1.0, 2.0], r"components\[0\] must be a plain torch.Tensor, got float"),
    "a tensor": (lambda: zeros(2, 3), "tuple or list of 1 to 4"),
    "None": (lambda: None, "tuple or list of 1 to 4"),
    "a dict": (lambda: {0: zeros(2)}, "tuple or list of 1 to 4"),
    "smaller": (lambda: [zeros(1000), zeros(1)], r"components\[1\] .* the shape .* got \[1\]"),
    "larger": (lambda: [zeros(1), zeros(1000)], r"components\[1\] .* the shape .* got \[1000\]"),
    "of other dimensions": (lambda: [zeros(6), zeros(2, 3)], r"the shape .* got \[2, 3\]"),
    "of other strides": (lambda: [zeros(2, 3), zeros(3, 2).t()], r"the strides .* got \[1, 2\]"),
    "expanded": (lambda: [zeros(3), zeros(1).expand(3)], r"the strides .* got \[0\]"),
    "of other dtype": (lambda: [zeros(2), zeros(2, dtype=BF16)], "the dtype .* got torch.bfloat16"),
    "of wider dtype": (lambda: [zeros(2), zeros(2).double()], "the dtype .* got torch.float64"),
    "integers": (lambda: [zeros(2).long(), zeros(2).long()], "dtype torch.int64"),
    "complex": (lambda: [zeros(2) * 1j], "dtype torch.complex64"),
    "on meta": (lambda: [zeros(2), zeros(2, device="meta")], "the device .* got meta"),
    "sparse": (lambda: [zeros(2).to_sparse()], "must be dense"),
    "negative views": (lambda: [_negative()], "negative view"),
    "the same": (lambda: [SHARED, SHARED], "share memory"),
    "in the same memory": (lambda: [SHARED, SHARED[:]], "share memory"),
    "one element apart": (lambda: list(zeros(4).unfold(0, 3, 1)), "share memory"),
    "expansions": (lambda: [mcf.zeros(2), mcf.zeros(2)], "plain torch.Tensor, got MCFTensor"),
    "parameters": (lambda: [nn.Parameter(zeros(2))], "plain torch.Tensor, got Parameter"),
    "with a gradient": (lambda: [zeros(2, requires_grad=True)], "must not require grad"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", WRONG)
def test_components_that_cannot_be_those_of_a_tensor_are_refused(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        mcf.MCFTensor(make())
    with pytest.raises((TypeError, ValueError), match=message):
        rebuild(make(), False, {})


@pytest.mark.parametrize(
    "name", [n for n in WRONG if n not in ("complex", "negative views", "sparse")]
)
def test_files_that_hold_them_are_refused(name: str) -> None:
    """torch's own errors of what it does not unpickle stand behind ours."""
    make, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        loaded(Forged(rebuild, make(), False, {}))
    if name in ("in the same memory", "one element apart"):
        # pickle copies each.
        return
    with pytest.raises((TypeError, ValueError), match=message):
        pickle.loads(pickle.dumps(Forged(rebuild, make(), False, {})))


@pytest.mark.parametrize(
    "state",
    [
        {"_terms": 4},
        {"_c1": zeros(1)},
        {"_c3": zeros(2)},
        {"components": [zeros(1)]},
        {"data": mcf.zeros(1)},
        {"grad": mcf.zeros(2)},
        {"requires_grad": True},
        {"shape": (10,)},
        {"__class__": Tensor},
        {"__torch_dispatch__": 1},
        {"_is_param": "yes"},
        {"_backward_hooks": OrderedDict()},
        {"__array_interface__": {}},
        {"no identifier": 1},
        {1: 2},
        [("tag", 1)],
        None,
    ],
)
def test_a_file_sets_no_attribute_that_has_a_meaning(state: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"attribute|_is_param"):
        loaded(Forged(rebuild, [zeros(2), zeros(2)], False, state))


@pytest.mark.parametrize("flag", [1, None, "yes"])
def test_requires_grad_is_a_bool(flag: Any) -> None:
    with pytest.raises(TypeError, match="requires_grad must be a bool"):
        loaded(Forged(rebuild, [zeros(2)], flag, {}))


@pytest.mark.parametrize("name", ["_terms", "_c0", "_c1", "_c2"])
def test_torch_functions_in_a_file_do_not_exchange_components(name: str) -> None:
    """torch sets any attribute of a parameter that it rebuilds."""
    p = Forged(rebuild, [zeros(1000), zeros(1000, 1)[:, 0]], False, {})
    forged = Forged(_rebuild_parameter_with_state, p, True, OrderedDict(), {name: zeros(1)})
    with pytest.raises(AttributeError, match=f"{name} of an expansion tensor cannot be set"):
        loaded(forged)
    x = mcf.zeros(2)
    with pytest.raises(AttributeError, match="cannot be set"):
        setattr(x, name, zeros(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"_terms": 2, "_c0": zeros(1000), "_c1": zeros(1)},
            r"__dict__\[1\] must have the shape .* got \[1\]",
        ),
        ({"_terms": 2, "_c0": SHARED, "_c1": SHARED}, "share memory"),
        ({"_terms": 3, "_c0": zeros(2), "_c1": zeros(2)}, "must hold _terms and as many"),
        ({"_terms": 1, "_c0": zeros(2), "_c1": zeros(2)}, "must hold _terms and as many"),
        ({"_terms": -3, "_c0": zeros(2)}, "must hold _terms and as many"),
        ({"_terms": True, "_c0": zeros(2)}, "must hold _terms and as many"),
        ({}, "must hold _terms and as many"),
        (5, "must be a dict"),
    ],
)
def test_nor_all_of_them_at_once(given: Any, message: str) -> None:
    p = Forged(rebuild, [zeros(1000), zeros(1000)], False, {})
    state = {"__dict__": given}
    forged = Forged(_rebuild_parameter_with_state, p, True, OrderedDict(), state)
    with pytest.raises((TypeError, ValueError), match=message):
        loaded(forged)


class Resized:
    """Stands in a file for an object that it holds already, and a change of its state."""

    def __init__(self, tensor: Any, state: Any) -> None:
        self.tensor, self.state = tensor, state


class Machine(types.ModuleType):
    """The module pickle, with a pickler that writes `Resized`."""

    class Pickler(pickle._Pickler):  # type: ignore[name-defined]
        """Tensors are changed after they were used."""

        def save(self, obj: Any, save_persistent_id: bool = True) -> None:
            """Write an object."""
            if isinstance(obj, Resized):
                self.save(obj.tensor)
                self.save(obj.state)
                self.write(pickle.BUILD)
            else:
                super().save(obj, save_persistent_id)


def test_a_file_cannot_resize_components_afterwards() -> None:
    """Mutant: the file's own tensors as components, checked before the file changes them."""
    memory = torch.storage.TypedStorage(
        wrap_storage=zeros(1000).untyped_storage(), dtype=torch.float32, _internal=True
    )
    low = Forged(_rebuild_tensor_v2, memory, 0, (1000,), (1,), False, OrderedDict())
    x = Forged(rebuild, [zeros(1000), low], False, {})
    file = io.BytesIO()
    torch.save([x, Resized(low, (memory, 0, (1,), (1,)))], file, pickle_module=Machine("machine"))
    file.seek(0)
    x, changed = torch.load(file, weights_only=True)
    assert changed.shape == (1,)
    assert [c.shape for c in x.components] == [(1000,)] * 2


def test_states_are_not_set() -> None:
    x = mcf.tensor([1.0, 2.0])
    for state in ((zeros(5).untyped_storage(), 0, (5,), (1,)), (zeros(5), zeros(5), 0, 0, 0), ()):
        with pytest.raises(TypeError, match="state of an expansion tensor cannot be set"):
            x.__setstate__(state)
    assert x.shape == (2,)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.set_(mcf.zeros(5)),
        lambda x: x.set_(zeros(5)),
        lambda x: x.set_(zeros(5).untyped_storage()),
        lambda x: setattr(x, "data", zeros(5)),
        lambda x: setattr(x, "data", mcf.zeros(5)),
        lambda x: setattr(x, "data", mcf.zeros(2, terms=3)),
        lambda x: setattr(x, "data", mcf.zeros(2, dtype=torch.float64)),
        lambda x: x.as_strided_((5,), (1,)),
        lambda x: x.untyped_storage().resize_(100),
        lambda x: x.view(torch.int32),
    ],
)
def test_memory_is_not_exchanged(call: Callable[[Any], Any]) -> None:
    x = mcf.tensor([1.0, 2.0])
    with pytest.raises((mcf.UnsupportedError, TypeError, RuntimeError)):
        call(x)
    assert {c.shape for c in x.components} == {x.shape} == {(2,)}


def test_shapes_change_in_all_components_or_in_none() -> None:
    """Mutant: one component after the other, up to one whose memory ends."""
    x = mcf.MCFTensor((torch.zeros(100)[:3], torch.zeros(3)))
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided_((50,), (1,), 0)
    assert {c.shape for c in x.components} == {x.shape} == {(3,)}


def test_strides_begin_where_each_component_lies() -> None:
    """Mutant: the first component's place in its memory for all of them."""
    both = torch.tensor([[1.0, 2.0, 3.0], [2.0**-30, 0.0, 2.0**-40]])
    x = mcf.MCFTensor(both.unbind())
    y = x.as_strided((2,), (2,), 0)
    assert y.to_fractions() == [x.to_fractions()[k] for k in (0, 2)]
    assert x[1:].as_strided((2,), (1,)).to_fractions() == x.to_fractions()[1:]
    x.as_strided_((1,), (1,), 2)
    assert x.components[1].tolist() == [2.0**-40]


def test_tensors_taken_apart_are_put_together_with_the_same_checks() -> None:
    x = mcf.tensor([1.0, 2.0])
    names, terms = x.__tensor_flatten__()
    parts = {n: getattr(x, n) for n in names}
    same = mcf.MCFTensor.__tensor_unflatten__(parts, terms, x.shape, x.stride())
    assert_all_same_bits(same.components, x.components)
    for wrong, size in ((parts | {"_c1": zeros(1)}, (2,)), (parts, (5,))):
        with pytest.raises(ValueError, match=r"must have the shape|outer_size is"):
            mcf.MCFTensor.__tensor_unflatten__(wrong, terms, size, (1,))


def test_a_component_that_is_resized_by_hand_is_not_stepped() -> None:
    p = nn.Parameter(mcf.zeros(1000, dtype=BF16))
    p.components[1].resize_(1)
    with pytest.raises(ValueError, match=r"components\[1\] has shape \[1\]"):
        AdamW([p], precision="light")


def test_sound_files_load() -> None:
    """Shapes with no elements and none of them dimensions, views, users' marks, parameters."""
    base = mcf.tensor([["0.1", "0.2", "0.3"], ["0.4", "0.5", "0.6"]], 3)
    for x in (base, base.t(), base[1:, ::2], mcf.zeros(0, 3), mcf.tensor("0.1", 4, torch.float64)):
        y = loaded(x)
        assert_all_same_bits(y.components, x.components)
        assert y.stride() == x.stride()
    p = nn.Parameter(mcf.tensor(["0.1"], dtype=BF16))
    p._no_weight_decay, p.tag = True, "head"
    for q in (loaded(p), pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert isinstance(q, nn.Parameter)
        assert (q._no_weight_decay, q.tag, q.requires_grad) == (True, "head", True)
    # As files of earlier versions have it.
    old = loaded(Forged(rebuild, [zeros(2), zeros(2)], True, {"_is_param": True}))
    assert isinstance(old, nn.Parameter)
    assert loaded([base, base[0]])[1].shape == (3,)
    # Components in turn, and one after the other, of one array.
    for whole in (zeros(5, 2).t(), zeros(2, 5)):
        assert loaded(mcf.MCFTensor(tuple(whole))).stride() == whole[0].stride()


def test_a_tensor_and_its_components_share_memory() -> None:
    high, low = torch.ones(2), torch.zeros(2)
    x = mcf.MCFTensor((high, low), requires_grad=True)
    high.mul_(3)
    assert x.tolist() == [3, 3]
    assert x.requires_grad
