"""`axis=` and `keepdims=` wherever torch takes them, and torch's own names of all arguments.

Caught mutants: a replacement of torch's function that has torch's names of arguments alone, or its
own alone; a mean of all elements beside the variance along an axis.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

import mcf
from mcf.expansions.dispatch.registry import FUNCTIONS
from mcf.expansions.dispatch.torch_functions import by_place
from tests.mcf.expansions.inputs import hard

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

PLAIN = torch.tensor([[3.0, 1, 2], [-1, 5, 0.5]], dtype=torch.float64)
INDEX = torch.tensor([[1, 0, 1]])
NAMES: list[dict[str, Any]] = [
    {"axis": 0}, {"axis": 0, "keepdims": True}, {"keepdims": True}, {"axis": (0, 1)}
]  # fmt: skip
# What some functions take before.
BEFORE: list[tuple[Any, ...]] = [(), (1,), (0.5,), (INDEX[0],), (PLAIN,), (INDEX,), (INDEX, PLAIN)]
OURS = {"axis": "dim", "keepdims": "keepdim"}
ROOMS = {"torch": torch, "Tensor": torch.Tensor, "linalg": torch.linalg}


def taken() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    """The functions, arguments and names that torch takes for a plain tensor."""
    for where, room in ROOMS.items():
        for name in sorted(dir(room)):
            function = getattr(room, name)
            if name.startswith("_") or not callable(function) or isinstance(function, type):
                continue
            if name.startswith(("set_", "from_")):
                continue
            for names in NAMES:
                for before in BEFORE:
                    try:
                        function(PLAIN.clone(), *before, **names)
                    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
                        continue
                    yield where, name, before, names
                    break


def numbers(found: Any) -> list[Any]:
    parts = tree_flatten(found)[0]
    parts = [x.to_fractions() if isinstance(x, mcf.MCFTensor) else x for x in parts]
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in parts]


@pytest.mark.slow
def test_names_of_numpy_are_those_of_torch() -> None:
    # Digits that float64 has not.
    x = mcf.tensor(PLAIN, 2, PLAIN.dtype) + mcf.tensor(2.0**-60, 2, torch.float64)
    tried, refused = set(), set()
    for where, name, before, names in taken():
        function = getattr(ROOMS[where], name)
        given = [mcf.tensor(b, 2, b.dtype) if b is PLAIN else b for b in before]
        try:
            want = numbers(function(x.clone(), *given, **{OURS[k]: v for k, v in names.items()}))
        except (mcf.UnsupportedError, TypeError):
            refused.add((where, name))
            continue
        assert numbers(function(x.clone(), *given, **names)) == want, (where, name, names)
        tried.add(f"{where}.{name}")
    assert len(tried) > 90, sorted(tried)
    assert {"torch.sum", "torch.nansum", "Tensor.quantile", "torch.cummax", "Tensor.prod",
            "linalg.norm", "torch.std_mean", "Tensor.logcumsumexp"} <= tried  # fmt: skip


def test_other_names_are_refused() -> None:
    x = mcf.tensor([1.0, 2.0])
    for function in (torch.quantile, torch.var, torch.nansum):
        with pytest.raises(TypeError):
            function(x, axes=0)
    # As torch: a function written in Python has its own names alone.
    with pytest.raises(TypeError):
        torch.nn.functional.softmax(x, axis=0)


X, Y = (mcf.tensor(PLAIN + k, 2, PLAIN.dtype) for k in (0, 1))
V, W = (mcf.MCFTensor(hard(torch.float64, 2, 24, seed)) for seed in (1, 2))
A, B = V.reshape(4, 6), W.reshape(6, 4)
PLACES = torch.tensor([3, 1, 3])
linear: Any = torch.nn.functional.linear


def _like(x: Any) -> Any:
    return torch.zeros_like(x)


BY_NAME: dict[str, tuple[Any, Any]] = {
    "log2": (lambda: torch.log2(input=Y), lambda: torch.log2(Y)),
    "as NumPy": (lambda: torch.log2(x=Y), lambda: torch.log2(Y)),
    "two as NumPy": (lambda: torch.logaddexp(x1=X, x2=Y), lambda: torch.logaddexp(X, Y)),
    "a method": (lambda: X.copysign(other=Y), lambda: X.copysign(Y)),
    "one by place": (lambda: X.logaddexp(other=Y), lambda: X.logaddexp(Y)),
    "cross": (lambda: torch.cross(input=X, other=Y, dim=1), lambda: torch.cross(X, Y, 1)),
    "cross as NumPy": (lambda: torch.linalg.cross(X, x2=Y), lambda: torch.linalg.cross(X, Y)),
    "isclose": (lambda: torch.isclose(input=X, other=Y), lambda: torch.isclose(X, Y)),
    "allclose": (lambda: X.allclose(other=Y), lambda: X.allclose(Y)),
    "isclose as NumPy": (lambda: torch.isclose(X, x2=Y), lambda: torch.isclose(X, Y)),
    "copy_": (lambda: X.clone().copy_(other=Y), lambda: X.clone().copy_(Y)),
    "full_like": (lambda: torch.full_like(input=X, fill_value=0.1),
                  lambda: torch.full_like(X, 0.1)),
    "a number first": (lambda: torch.pow(self=2, exponent=X), lambda: torch.pow(2, X)),
    "pow": (lambda: torch.pow(input=Y, exponent=X), lambda: torch.pow(Y, X)),
    "where": (lambda: torch.where(input=X, other=Y, condition=X > 1),
              lambda: torch.where(X > 1, X, Y)),
    "written in Python": (lambda: torch.nn.functional.tanh(input=X), lambda: torch.tanh(X)),
    "cat out": (lambda: torch.cat([V, W], out=_like(torch.cat([V, W]))), lambda: torch.cat([V, W])),
    "stack out": (lambda: torch.stack([V, W], dim=1, out=_like(torch.stack([V, W], 1))),
                  lambda: torch.stack([V, W], 1)),
    "hstack out": (lambda: torch.hstack([V, W], out=_like(torch.cat([V, W]))),
                   lambda: torch.cat([V, W])),
    "clamp out": (lambda: torch.clamp(V, min=-0.5, max=0.5, out=_like(V)),
                  lambda: V.clamp(-0.5, 0.5)),
    "clamp by name": (lambda: torch.clamp(input=V, min=-0.5), lambda: V.clamp(-0.5)),
    "matmul": (lambda: torch.matmul(input=A, other=B), lambda: A @ B),
    "matmul of": (lambda: A.matmul(other=B), lambda: A @ B),
    "linear": (lambda: linear(input=A, weight=A, bias=V[:4]), lambda: linear(A, A, V[:4])),
    "flip": (lambda: torch.flip(input=A, dims=(0,)), lambda: A.flip(0)),
    "index_select": (lambda: torch.index_select(input=V, dim=0, index=PLACES), lambda: V[PLACES]),
    "cat": (lambda: torch.cat(tensors=[V, W], dim=0), lambda: torch.cat([V, W])),
    "zeros_like": (lambda: torch.zeros_like(input=V), lambda: V.new_zeros(24)),
    "ones_like": (lambda: torch.ones_like(V, requires_grad=True).detach(), lambda: V.new_ones(24)),
    "new_zeros": (lambda: V.new_zeros(size=(24,)), lambda: V.new_zeros(24)),
    "power in place": (lambda: V.abs().clone().pow_(W), lambda: V.abs() ** W),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", BY_NAME)
def test_torchs_names_of_arguments(name: str) -> None:
    by_name, by_place = BY_NAME[name]
    assert numbers(by_name()) == numbers(by_place())


# Of several forms, whose arguments are read by what they are.
SEVERAL = {"where", "randint_like", "normal", "bernoulli", "multinomial"}


def test_every_implementation_takes_torchs_names() -> None:
    unbound = []
    for function, implementation in FUNCTIONS.items():
        # torch's own functions call those of its inner rooms by place.
        if isinstance(function, FunctionType) or function in vars(torch._C._nn).values():
            continue
        method = hasattr(function, "__objclass__")
        name = getattr(function, "__name__", "")
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            # Others are of TorchScript alone.
            given = [a for a in schema.arguments if not a.kwarg_only]
            first = given[0] if given else None
            if first is None or first.name not in ("self", "x", "A") or name in SEVERAL:
                continue
            if str(first.type) != "Tensor":
                continue
            args = (X,) if method else ()
            names = ["input" if a.name == "self" else a.name for a in given[len(args) :]]
            kwargs = dict.fromkeys(names, X)
            try:
                found = by_place(function, implementation, args, kwargs)
                inspect.signature(implementation).bind(*found[0], **found[1])
            except TypeError as error:
                unbound.append((name, names, error))
    assert not unbound, unbound


def test_names_that_torch_does_not_know_are_refused() -> None:
    for function in (torch.nn.functional.tanh, torch.log2, torch.Tensor.logaddexp):
        with pytest.raises(TypeError):
            function(X, foo=Y)
    with pytest.raises(TypeError):
        torch.nn.functional.tanh(X, input=X)
