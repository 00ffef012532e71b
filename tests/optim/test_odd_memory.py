"""Tensors without memory: freed storages are refused by name, meta and fake tensors are stepped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, NAdam, collage
from tests.optim.helpers import BF16, assert_same, parameter, steps, stored


@pytest.fixture(params=["torch", "numba"])
def executor(request: pytest.FixtureRequest) -> Any:
    with mcf.executor(request.param):
        yield


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


def test_collage_refuses_freed_memory() -> None:
    p = parameter(40, BF16)
    optimizer = collage(torch.optim.AdamW, [p], lr=1e-2)
    steps(optimizer, 2)
    free(p.data)
    with pytest.raises(RuntimeError, match=r"params\[0\] .*storage of 0 bytes and needs 80"):
        optimizer.step()


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


@pytest.mark.sampled
@pytest.mark.parametrize("size", [40, 2**31 + 9, 2**40])
@pytest.mark.parametrize("make", [AdamW, SGD, NAdam])
def test_fake_tensors(make: Any, size: int) -> None:
    """As estimators of memory step them, of any size: torch's ask for no value either."""
    with FakeTensorMode():
        p = Parameter(torch.empty(size, dtype=BF16))
        p.grad = torch.empty_like(p)
        optimizer = make([p], 1e-2)
        for _ in range(3):
            optimizer.step()
        assert p.shape == (size,)
        assert all(t.shape in ((), (size,)) for t in optimizer.state[p].values())
