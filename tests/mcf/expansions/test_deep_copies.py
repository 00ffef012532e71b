"""Exact: a deep copy that is made at once is the one that is made by torch's of the components.

Caught mutants: memory that was met copied again; the components left out of the memo; a gradient,
attributes, hooks of a type or `requires_grad` lost; a view's copy without the rest of its memory; a
result of the graph copied; what a mode sees copied unseen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.interchange import copying
from tests.helpers import assert_alike
from tests.helpers.modes import Seen


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What leaves torch's way alone."""
    return lambda: monkeypatch.setattr(copying, "_copied", lambda x, memo: None)


@pytest.fixture
def made_at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each tensor that was asked for, whether it was copied at once."""
    found: list[bool] = []
    plain = copying._copied

    def asked(x: Any, memo: Any) -> Any:
        result = plain(x, memo)
        found.append(result is not None)
        return result

    monkeypatch.setattr(copying, "_copied", asked)
    return found


class Own(mcf.MCFTensor):
    """A type of a user's."""


def pair(terms: int = 2, dtype: torch.dtype = torch.float64) -> mcf.MCFTensor:
    whole = torch.arange(6, dtype=dtype).reshape(2, 3) - 2
    return mcf.MCFTensor([whole * 2.0 ** (-60 * k) for k in range(terms)])


def with_gradient() -> mcf.MCFTensor:
    x = pair().requires_grad_()
    (x * x).sum().backward()
    return x


def with_attribute() -> mcf.MCFTensor:
    x = pair()
    x.name_of_it = ["kept"]  # type: ignore[attr-defined]
    return x


def in_one_memory() -> mcf.MCFTensor:
    memory = torch.zeros(2, 3, dtype=torch.float64)
    memory[0] = 1
    return mcf.MCFTensor([memory[0], memory[1]])


def of_inference() -> mcf.MCFTensor:
    with torch.inference_mode():
        return pair()


OBJECTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "one component": (lambda: pair(1), True),
    "pair": (pair, True),
    "four": (lambda: pair(4, torch.float32), True),
    "half": (lambda: pair(2, torch.bfloat16), True),
    "empty": (lambda: mcf.MCFTensor([torch.zeros(0, 3), torch.zeros(0, 3)]), True),
    "number": (lambda: pair()[0, 0].clone(), True),
    "leaf": (lambda: pair().requires_grad_(), True),
    "parameter": (lambda: torch.nn.Parameter(pair()), True),
    "of inference": (of_inference, True),
    "gradient": (with_gradient, False),
    "attribute": (with_attribute, False),
    "own type": (lambda: Own(pair().components), False),
    "view": (lambda: pair()[1:], False),
    "turned": (lambda: pair().t(), False),
    "expanded": (lambda: pair()[:1].expand(4, 3), False),
    "one memory": (in_one_memory, False),
    "meta": (lambda: mcf.MCFTensor([c.to("meta") for c in pair().components]), False),
}


def described(x: Any) -> list[Any]:
    """What a copy has to have, but for its numbers."""
    memory = [c.untyped_storage().nbytes() for c in x.components]
    grad = None if x.grad is None else x.grad.tolist()
    flags = x.requires_grad, x.is_leaf, x.is_inference(), isinstance(x, torch.nn.Parameter)
    others = {k: v for k, v in x.__dict__.items() if k[:2] != "_c" and k != "_terms"}
    return [type(x), x.stride(), x.storage_offset(), memory, grad, flags, others]


@pytest.mark.parametrize("name", OBJECTS)
def test_copies_are_those_of_torchs_way(name: str, longer: Any, made_at_once: list[bool]) -> None:
    make, at_once = OBJECTS[name]
    x = make()
    copies = [copy.deepcopy(x)]
    assert made_at_once[:1] == ([at_once] if type(x) is mcf.MCFTensor else [])
    with torch.inference_mode():
        inside = copy.deepcopy(x)
    longer()
    copies.append(copy.deepcopy(x))
    with torch.inference_mode():
        assert described(inside) == described(copy.deepcopy(x))
    assert described(copies[0]) == described(copies[1])
    for found in copies:
        places = {c.data_ptr() for c in found.components} - {0}
        assert not places & {c.data_ptr() for c in x.components}
        if not x.is_meta:
            assert_alike(found.detach(), x.detach(), name)


def test_memory_is_copied_once(made_at_once: list[bool]) -> None:
    x = pair()
    first, view, again = x.components[0], x[1:], x
    for given in ([x, view, first, again], [view, first, x, again], [first, x, view, again]):
        copies = copy.deepcopy(given)
        [own] = [t for t, of in zip(copies, given, strict=True) if of is x][:1]
        own.fill_(7.5)
        for t in copies:
            assert t.tolist() == torch.full(t.shape, 7.5).tolist()
        assert copies[-1] is own
        assert x[0, 0].item() == -2
    # The first was at once; where its memory had been met none was.
    assert made_at_once[0]
    assert made_at_once.count(True) == 1
    other = mcf.MCFTensor([torch.ones(2), torch.zeros(2)])
    a, b = copy.deepcopy([other, other.components])
    assert b[0] is a.components[0]


def test_what_is_seen_and_what_torch_refuses() -> None:
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
    assert copied.grad is not None
    assert copied.grad.tolist() == [[1.0] * 3] * 2
