"""Exact: many elements in place have the bits of torch's executor, and no tensor is made for them.

Caught mutants: a result computed beside, which takes its memory; elements that a function's kernel
lacks left as they were, written where others are, or all in one piece; operands that lie a little
off the target taken for it.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import operations as writing
from mcf.expansions.launch.fused_formulas import MANY
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.mcf.expansions.test_written import _same, _tensor

pytest.importorskip("numba", reason="needs Numba")

COUNT = MANY + 77
Change = Callable[[Any, Any, Any], Any]
CHANGES: dict[str, Change] = {
    "add_": lambda o, y, z: o.add_(y),
    "of a number": lambda o, y, z: o.mul_(0.1),
    "of one element": lambda o, y, z: o.mul_(y[5]),
    "of itself": lambda o, y, z: o.add_(o),
    "clamp_": lambda o, y, z: o.clamp_(-0.5, 2.0),
    "alpha": lambda o, y, z: o.add_(y, alpha=0.3),
    "lerp_": lambda o, y, z: o.lerp_(y, 0.3),
    "addcmul_": lambda o, y, z: o.addcmul_(y, z),
    "value": lambda o, y, z: o.addcmul_(y, z, value=-0.3),
    "addcdiv_": lambda o, y, z: o.addcdiv_(y, z, value=-0.3),
    "the last operand": lambda o, y, z: torch.addcdiv(y, z, o, out=o),
    "a choice": lambda o, y, z: o.masked_fill_(y > 1, 0.5),
    "signs": lambda o, y, z: o.neg_(),
    "two arguments": lambda o, y, z: o.atan2_(y),
    "a function": lambda o, y, z: o.floor_(),
    "components exchanged": lambda o, y, z: torch.mul(mcf.MCFTensor(o.components[::-1]), y, out=o),
}
OFTEN = ("of a number", "lerp_", "addcdiv_", "signs", "the last operand", "components exchanged")


@pytest.mark.parametrize("name", everyday(CHANGES, OFTEN))
def test_in_place_of_many(name: str) -> None:
    x, y, z = (_tensor(COUNT, seed=k) for k in range(3))
    with mcf.executor("torch"):
        expected = CHANGES[name](x.clone(), y, z)
    for _ in range(2):
        target = x.clone()
        assert CHANGES[name](target, y, z) is target
        _same(target, expected, name)


def _allocated(call: Callable[[], Any]) -> int:
    """The bytes that a call allocates of torch's, and of Python's and NumPy's at most at a time."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    events = profile.events()
    assert events is not None
    found = sum(max(0, e.self_cpu_memory_usage) for e in events)
    tracemalloc.start()
    try:
        call()
        return found + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["add_", *OFTEN[:4]])
def test_no_tensor_is_made(name: str) -> None:
    count = 1 << 17
    o, y, z = (_tensor(count, seed=k) for k in range(3))
    assert _allocated(lambda: o.clone()) >= 2 * 8 * count
    CHANGES[name](o, y, z)
    assert _allocated(lambda: CHANGES[name](o, y, z)) < count


RARE: dict[str, Any] = {
    "none": [],
    "some": [0, 7, 700, 701, COUNT - 1],
    "all": slice(None),
}


@pytest.mark.parametrize("name", RARE)
def test_elements_that_a_kernel_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of a sine that are reduced by steps of their own."""
    monkeypatch.setattr(writing, "CHUNK", 1000)
    first = torch.arange(COUNT, dtype=torch.float64) / 8
    x = mcf.MCFTensor([first, torch.zeros_like(first)])
    x.components[0][RARE[name]] += 2.0**300
    with mcf.executor("torch"):
        expected = x.sin()
    _same(torch.sin(x, out=torch.empty_like(x)), expected, f"{name}, apart")
    target = x.clone()
    assert target.sin_() is target
    _same(target, expected, name)


def test_what_is_left_is_computed_some_at_a_time() -> None:
    left = [range(3), range(10, 25), range(30, 31)]
    found = writing._together(left, 8)
    assert [k for some in found for r in some for k in r] == [k for r in left for k in r]
    assert [sum(map(len, some)) for some in found] == [3, 8, 8]


@pytest.mark.parametrize("shift", [-3, 1])
def test_a_formula_of_what_lies_a_little_off(shift: int) -> None:
    """In memory that torch does not look at: that of second components."""
    memory = torch.zeros(COUNT + 6, dtype=torch.float64)
    (top, low), (head, tail) = _tensor(COUNT).components, _tensor(COUNT, seed=2).components
    x, y = mcf.MCFTensor([top, memory[3 : COUNT + 3]]), mcf.MCFTensor([head, tail])
    x.components[1].copy_(low)
    out = mcf.MCFTensor([torch.zeros_like(top), memory[3 + shift :][:COUNT]])
    for function in (torch.mul, lambda a, b, out: torch.lerp(a, b, 0.3, out=out)):
        x.components[1].copy_(low)
        with mcf.executor("torch"):
            expected = function(x.clone(), y, out=torch.empty_like(y))
        function(x, y, out=out)
        assert_all_same_bits(out.components, expected.components, f"shift {shift}")
