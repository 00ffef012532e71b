"""Tensors of a step that share memory: refused where two are written, read first where one is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

import mcf
from mcf.kernels.overlap import share
from mcf.optim import SGD, AdamW, GradientRelease, NAdam, collage
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16
from tests.optim.helpers import (
    assert_same,
    give_gradients,
    parameter,
    random,
    refuses,
    steps,
    stored,
)


@pytest.fixture(autouse=True, params=["torch", "numba"])
def executor(request: pytest.FixtureRequest) -> Any:
    with mcf.executor(request.param):
        yield


by_default = pytest.mark.parametrize("executor", ["auto"], indirect=True)


def flat() -> tuple[Parameter, Parameter]:
    buffer = random(100, BF16, 1)
    return Parameter(buffer[:60]), Parameter(buffer[50:])


def same_data() -> tuple[Parameter, Parameter]:
    a, b = two()
    b.data = a.data
    return a, b


def columns() -> tuple[Parameter, Parameter]:
    buffer = random((7, 12), BF16, 1)
    return Parameter(buffer[:, :7]), Parameter(buffer[:, 5:])


def transposed() -> tuple[Parameter, Parameter]:
    buffer = random((6, 6), BF16, 1)
    return Parameter(buffer), Parameter(buffer.T)


@pytest.mark.parametrize("make", [flat, same_data, columns, transposed])
def test_parameters_that_share_memory_are_refused(make: Callable[[], Any]) -> None:
    params = make()
    optimizer = AdamW([{"params": [("first", params[0])]}, {"params": [("second", params[1])]}])
    words = r"\((first|second)\) .*shares memory with .*\((f|s)"
    with pytest.raises(ValueError, match=words):
        GradientRelease(optimizer)
    assert not any(p._post_accumulate_grad_hooks for p in params)
    give_gradients(optimizer, 0)
    for _ in range(2):
        refuses(optimizer, ValueError, words)
    assert not optimizer.state
    # One of them alone is no race; frozen, it is not stepped.
    params[1].grad = None
    optimizer.step()
    params[1].requires_grad_(False)
    GradientRelease(optimizer).remove()


def two() -> tuple[Parameter, Parameter]:
    return Parameter(random(60, BF16, 1)), Parameter(random(60, BF16, 2))


def test_parameters_that_share_memory_later_are_refused() -> None:
    # A plan is there by then.
    a, b = two()
    optimizer = AdamW([a, b], precision="plain")
    steps(optimizer, 3)
    b.data = a.data
    give_gradients(optimizer, 3)
    refuses(optimizer, ValueError, "shares memory with")
    b.data = b.data.clone()
    optimizer.step()


def test_states_that_share_memory_are_refused() -> None:
    a, b = two()
    optimizer = AdamW([a, b])
    steps(optimizer, 2)
    optimizer.state[b]["exp_avg"] = optimizer.state[a]["exp_avg"]
    refuses(optimizer, ValueError, r"state 'exp_avg' of .* shares memory with state")
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
def test_views_without_a_common_element_are_stepped(make: Callable[[], list[Parameter]]) -> None:
    params = make()
    apart = [Parameter(p.detach().clone()) for p in params]
    for some in (params, apart):
        steps(AdamW(some), 3)
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


# -- odd -------------------------------------------------------------------------------------------


def free(t: torch.Tensor, left: int = 0) -> torch.Tensor:
    """Keep some bytes of a storage, as FSDP does with none; the tensor does not notice."""
    t.untyped_storage().resize_(left)
    return t


FREED = {
    "weight": (lambda o, p: free(p.data), r"params\[1\] .*has a storage of 0 bytes and needs 80"),
    "cut": (lambda o, p: free(p.data, 78), r"params\[1\] .*has a storage of 78 bytes and needs 80"),
    "gradient": (lambda o, p: free(p.grad), r"params\[1\] .*\.grad has a storage of 0 bytes"),
    "state": (
        lambda o, p: free(o.state[p]["exp_avg"]),
        r"state 'exp_avg' of params\[1\] .* has a storage of 0 bytes",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("count", [0, 1, 3], ids="after{}".format)
@pytest.mark.parametrize("what", FREED)
def test_freed_memory_is_refused(executor: None, what: str, count: int) -> None:
    """In the first step, the second and one that repeats a plan; nothing changes."""
    if what == "state" and not count:
        pytest.skip("no state yet")
    first, second = parameter(30, BF16), parameter(40, BF16, 1)
    optimizer = AdamW([first, second], 1e-2)
    steps(optimizer, count)
    for p in (first, second):
        p.grad = torch.ones_like(p)
    before = first.detach().clone()
    change, message = FREED[what]
    change(optimizer, second)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            optimizer.step()
    assert torch.equal(first.detach(), before)
    assert int(optimizer.state.get(first, {"step": 0})["step"]) == count


def test_freed_memory_that_comes_back(executor: None) -> None:
    results = []
    for swapped in (False, True):
        p = parameter(40, BF16)
        optimizer = AdamW([p], 1e-2, precision="plain")
        steps(optimizer, 3)
        if swapped:
            kept = p.detach().clone()
            free(p.data)
            with pytest.raises(RuntimeError, match="storage of 0 bytes"):
                optimizer.step()
            p.data.untyped_storage().resize_(80)
            p.data.copy_(kept)
        steps(optimizer, 3, seed=9)
        results.append(stored(optimizer))
    assert_same(*results)


@by_default
def test_collage_refuses_freed_memory() -> None:
    p = parameter(40, BF16)
    optimizer = collage(torch.optim.AdamW, [p], lr=1e-2)
    steps(optimizer, 2)
    free(p.data)
    with pytest.raises(RuntimeError, match=r"params\[0\] .*storage of 0 bytes and needs 80"):
        optimizer.step()


@by_default
@pytest.mark.slow
@pytest.mark.parametrize("capturable", [False, True])
def test_a_meta_tensor_beside_others(capturable: bool) -> None:
    """A step of a part of a model that was not materialised; the others have their bits."""
    results = []
    for beside in (False, True):
        p, q = parameter(40, BF16), Parameter(torch.empty(7, dtype=BF16, device="meta"))
        optimizer = AdamW([p, q] if beside else [p], 1e-2, capturable=capturable)
        q.grad = torch.empty_like(q)
        for _ in range(3):
            p.grad = torch.ones_like(p)
            optimizer.step()
        results.append({"p": p.detach(), "m": optimizer.state[p]["exp_avg"]})
    assert_same(*results)


@by_default
@pytest.mark.sampled
@pytest.mark.parametrize("size", [40, 2**31 + 9, 2**40])
@pytest.mark.parametrize("make", [AdamW, SGD, NAdam])
def test_fake_tensors(make: Any, size: int) -> None:
    """Estimators of memory step tensors of any size without values, also with torch's classes."""
    with FakeTensorMode():
        p = Parameter(torch.empty(size, dtype=BF16))
        p.grad = torch.empty_like(p)
        optimizer = make([p], 1e-2)
        for _ in range(3):
            optimizer.step()
        assert p.shape == (size,)
        assert all(t.shape in ((), (size,)) for t in optimizer.state[p].values())
