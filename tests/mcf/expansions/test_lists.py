"""Functions of lists of tensors have the bits of those of tensors; averages and optimizers by them.

All raised before, with an error about plain tensors that were none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf

X = ["0.1", "0.2"], ["0.7"]
Y = ["0.3", "0.4"], ["0.9"]


def lists(*data: tuple[list[str], ...]) -> list[list[Any]]:
    return [[mcf.tensor(numbers) for numbers in each] for each in data]


def same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert type(x) is mcf.MCFTensor
        assert x.shape == y.shape
        assert all(map(torch.equal, x.components, y.components))


CALLS: dict[str, tuple[Any, Any]] = {
    "lists": (lambda x, y: torch._foreach_mul(x, y), lambda x, y, k: x * y),
    "number": (lambda x, y: torch._foreach_add(x, 0.1), lambda x, y, k: x + 0.1),
    "numbers": (lambda x, y: torch._foreach_div(x, [3, 0.1]), lambda x, y, k: x / [3, 0.1][k]),
    "tensor": (lambda x, y: torch._foreach_mul(x, y[1]), lambda x, y, k: x * mcf.tensor(["0.9"])),
    "by name": (lambda x, y: torch._foreach_sub(x, y, alpha=0.1),
                lambda x, y, k: torch.sub(x, y, alpha=0.1)),
    "second by name": (lambda x, y: torch._foreach_lerp(x, tensors1=y, weight=0.1),
                       lambda x, y, k: torch.lerp(x, y, 0.1)),
    "factor": (lambda x, y: torch._foreach_addcdiv(x, y, x, 0.1),
               lambda x, y, k: torch.addcdiv(x, y, x, value=0.1)),
    "factors": (lambda x, y: torch._foreach_addcmul(x, y, x, torch.tensor([0.5, 0.25])),
                lambda x, y, k: torch.addcmul(x, y, x, value=[0.5, 0.25][k])),
    "largest": (lambda x, y: torch._foreach_maximum(x, 0.15), lambda x, y, k: x.clamp_min(0.15)),
    "power": (lambda x, y: torch._foreach_pow(2.0, x), lambda x, y, k: 2.0**x),
    "norm": (lambda x, y: torch._foreach_norm(x, 3),
             lambda x, y, k: torch.linalg.vector_norm(x, 3)),
    "function": (lambda x, y: torch._foreach_exp(x), lambda x, y, k: x.exp()),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_new_tensors(name: str) -> None:
    whole, single = CALLS[name]
    x, y = lists(X, Y)
    same(whole(x, y), [single(a, b, k) for k, (a, b) in enumerate(zip(x, y, strict=True))])


def test_in_place() -> None:
    x, y = lists(X, Y)
    wanted = [torch.lerp(a, b, 0.1) for a, b in zip(x, y, strict=True)]
    first = x[0]
    torch._foreach_lerp_(x, y, 0.1)
    same(x, wanted)
    assert x[0] is first
    torch._foreach_copy_(x, y)
    same(x, y)
    torch._foreach_zero_(x)
    same(x, [a * 0 for a in y])


def test_derivatives() -> None:
    x, y = lists(X, Y)
    leaves = [a.requires_grad_() for a in x]
    sum(a.sum() for a in torch._foreach_mul(leaves, y)).backward()
    same([a.grad for a in leaves], y)


def test_other_lengths() -> None:
    x, y = lists(X, Y)
    with pytest.raises(RuntimeError, match="same number of tensors, got 2 and 1"):
        torch._foreach_add(x, y[:1])
    with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
        torch._foreach_add(x, [1.0])


def test_averages_of_a_model() -> None:
    """Of equal weights, which torch takes by `_foreach_lerp_`."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(mcf.tensor(["0.1", "0.2"]))
    average = torch.optim.swa_utils.AveragedModel(module)
    start = module.weight.detach().clone()
    for _ in range(2):
        average.update_parameters(module)
        with torch.no_grad():
            module.weight.add_(1)
    same([average.module.weight.detach()], [torch.lerp(start, start + 1, 0.5)])


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers(kind: Any) -> None:
    found = []
    for foreach in (True, False):
        p = torch.nn.Parameter(mcf.tensor(["0.1", "0.2", "-0.7"]))
        optimizer = kind([p], lr=0.1, weight_decay=0.01, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
        found.append(p.detach())
    same(found[:1], found[1:])
