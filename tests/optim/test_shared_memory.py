"""Tensors of a step that share memory: refused where two are written, read first where one is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.kernels.overlap import share
from mcf.optim import SGD, AdamW, GradientRelease
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, assert_same, random, stored


@pytest.fixture(autouse=True, params=["torch", "numba"])
def executor(request: pytest.FixtureRequest) -> Any:
    with mcf.executor(request.param):
        yield


def flat() -> tuple[Parameter, Parameter]:
    buffer = random(100, BF16, 1)
    return Parameter(buffer[:60]), Parameter(buffer[50:])


def same_data() -> tuple[Parameter, Parameter]:
    a, b = Parameter(random(60, BF16, 1)), Parameter(random(60, BF16, 2))
    b.data = a.data
    return a, b


def columns() -> tuple[Parameter, Parameter]:
    buffer = random((7, 12), BF16, 1)
    return Parameter(buffer[:, :7]), Parameter(buffer[:, 5:])


def transposed() -> tuple[Parameter, Parameter]:
    buffer = random((6, 6), BF16, 1)
    return Parameter(buffer), Parameter(buffer.T)


def give(params: Any, t: int = 0) -> None:
    for k, p in enumerate(params):
        p.grad = random(p.shape, p.dtype, 10 * t + k, 0.1)


@pytest.mark.parametrize("make", [flat, same_data, columns, transposed])
def test_parameters(make: Callable[[], Any]) -> None:
    params = make()
    optimizer = AdamW([{"params": [("first", params[0])]}, {"params": [("second", params[1])]}])
    give(params)
    before = stored(optimizer)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\((first|second)\) .*shares memory with .*\((f|s)"):
            optimizer.step()
        assert_same(stored(optimizer), before)
    assert not optimizer.state
    # One of them alone is no race.
    params[1].grad = None
    optimizer.step()


@pytest.mark.parametrize("make", [flat, same_data, columns, transposed])
def test_parameters_that_backward_steps(make: Callable[[], Any]) -> None:
    params = make()
    optimizer = AdamW([("first", params[0]), ("second", params[1])])
    with pytest.raises(ValueError, match=r"\((first|second)\) .*shares memory with .*\((f|s)"):
        GradientRelease(optimizer)
    assert not any(p._post_accumulate_grad_hooks for p in params)
    # Frozen, it is not stepped.
    params[1].requires_grad_(False)
    GradientRelease(optimizer).remove()


def test_after_steps_of_their_own() -> None:
    # A plan is there by then.
    a, b = Parameter(random(60, BF16, 1)), Parameter(random(60, BF16, 2))
    optimizer = AdamW([a, b], precision="plain")
    for t in range(3):
        give((a, b), t)
        optimizer.step()
    b.data = a.data
    give((a, b), 3)
    before = stored(optimizer)
    with pytest.raises(ValueError, match="shares memory with"):
        optimizer.step()
    assert_same(stored(optimizer), before)
    b.data = b.data.clone()
    optimizer.step()


def test_states() -> None:
    a, b = Parameter(random(60, BF16, 1)), Parameter(random(60, BF16, 2))
    optimizer = AdamW([a, b])
    for t in range(2):
        give((a, b), t)
        optimizer.step()
    optimizer.state[b]["exp_avg"] = optimizer.state[a]["exp_avg"]
    give((a, b), 2)
    before = stored(optimizer)
    with pytest.raises(ValueError, match=r"state 'exp_avg' of .* shares memory with state"):
        optimizer.step()
    assert_same(stored(optimizer), before)
    # What was saved is never shared with what was loaded.
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def interleaved() -> list[Parameter]:
    buffer = random((7, 12), BF16, 1)
    return [Parameter(buffer[:, :5]), Parameter(buffer[:, 5:6]), Parameter(buffer[:, 6:])]


def every_third() -> list[Parameter]:
    buffer = random(60, BF16, 1)
    return [Parameter(buffer[k::3]) for k in range(3)]


def neighbours() -> list[Parameter]:
    buffer = random(60, BF16, 1)
    return [Parameter(buffer[:25]), Parameter(buffer[25:25]), Parameter(buffer[25:])]


@pytest.mark.parametrize("make", [interleaved, every_third, neighbours])
def test_views_without_a_common_element(make: Callable[[], list[Parameter]]) -> None:
    params = make()
    apart = [Parameter(p.detach().clone()) for p in params]
    optimizers = AdamW(params), AdamW(apart)
    for t in range(3):
        for optimizer, some in zip(optimizers, (params, apart), strict=True):
            give(some, t)
            optimizer.step()
    for p, q in zip(params, apart, strict=True):
        assert_same_bits(p.detach(), q.detach())


GRADIENTS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "one for both": lambda p, q: (p.detach() * 2,) * 2,
    "expanded": lambda p, q: (torch.ones((), dtype=BF16).expand(60), None),
    "its own parameter": lambda p, q: (p.detach(), q.detach()),
    "the other parameter": lambda p, q: (q.detach(), p.detach()),
    "an element of the other": lambda p, q: (q.detach()[3:4].expand(60), p.detach()),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_read_first(name: str) -> None:
    made = [[Parameter(random(60, BF16, k)) for k in (1, 2)] for _ in range(2)]
    optimizers = [SGD(params, lr=0.1, momentum=0.9, precision="light") for params in made]
    for t in range(4):
        for own, (optimizer, params) in enumerate(zip(optimizers, made, strict=True)):
            # From the second step on there is a plan.
            some = GRADIENTS[name](*params) if t > 1 else [random(60, BF16, t)] * 2
            for p, g in zip(params, some, strict=True):
                p.grad = g.clone() if own and g is not None else g
            optimizer.step()
        for p in (p for params in made for p in params):
            p.grad = None
    assert_same(stored(optimizers[0]), stored(optimizers[1]))


def test_share_is_exact() -> None:
    # Every pair of views of two dimensions into twelve elements, against sets of places.
    buffer = torch.arange(12)
    views = [
        buffer.as_strided((n, m), (s, r), first)
        for n, m, s, r, first in itertools.product((1, 2, 3), (1, 2), (2, 3, 4), (1, 2), (0, 1, 3))
        if first + (n - 1) * s + (m - 1) * r < 12
    ]
    places = [set(v.flatten().tolist()) for v in views]
    answers = set()
    for (v, mine), (w, theirs) in itertools.combinations(zip(views, places, strict=True), 2):
        expected = bool(mine & theirs)
        assert share(v, w) == expected
        answers.add(expected)
    assert answers == {True, False}
