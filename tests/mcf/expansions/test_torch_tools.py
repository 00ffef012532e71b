"""Test torch.func, checkpoints, optimizers, inits and functions of lists on expansions.

All components are kept: results are exact, or have the bits of the plain formula.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

import mcf

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

POINT = mcf.tensor([Fraction(3) + Fraction(1, 2**70), "-0.5"], 3, torch.float64)


def cubes(x: Any) -> Any:
    return (x * x * x).sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda x: torch.func.grad(cubes)(x),
    "vjp": lambda x: torch.func.vjp(cubes, x)[1](mcf.tensor(1, 3, torch.float64))[0],
    "jvp": lambda x: torch.stack(
        [torch.func.jvp(cubes, (x,), (row,))[1] for row in mcf.eye(2, terms=3, dtype=x.dtype)]
    ),
    "jacrev": lambda x: torch.func.jacrev(cubes)(x),
    "jacfwd": lambda x: torch.func.jacfwd(cubes)(x),
    "vmap": lambda x: torch.func.vmap(lambda v: 3 * v * v)(x),
    "jacobian": lambda x: torch.autograd.functional.jacobian(cubes, x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_first_derivatives_are_exact_where_they_fit(name: str) -> None:
    got = TRANSFORMS[name](POINT)
    assert got.to_fractions() == [3 * v * v for v in POINT.to_fractions()]


SECOND: dict[str, Callable[[Any], Any]] = {
    "func.hessian": lambda x: torch.func.hessian(cubes)(x),
    "jacrev of jacrev": lambda x: torch.func.jacrev(torch.func.jacrev(cubes))(x),
    "autograd.hessian": lambda x: torch.autograd.functional.hessian(cubes, x),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_exact_where_they_fit(name: str) -> None:
    a, b = POINT.to_fractions()
    assert SECOND[name](POINT).to_fractions() == [[6 * a, 0], [0, 6 * b]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_bit(reentrant: bool) -> None:
    x = POINT.clone().requires_grad_()

    def function(v: Any) -> Any:
        return (v.exp() * v).sum()

    checkpoint(function, x, use_reentrant=reentrant).backward()
    (want,) = torch.autograd.grad(function(x), x)
    assert torch.equal(x.grad, want)


def test_lbfgs_reaches_a_minimum_to_more_digits_than_a_float_has() -> None:
    third = mcf.tensor(Fraction(1, 3), 2, torch.float64)
    x = mcf.zeros(2, terms=2, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        [x], lr=1, max_iter=60, tolerance_grad=0, tolerance_change=0, line_search_fn=None
    )

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((x - third) * (x - third) * scale).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (x.detach() - third).abs().max().item() < 1e-25


def test_weight_norm_is_the_quotient() -> None:
    layer = mcf.nn.MCFLinear(3, 2)
    want = layer.weight.detach().clone()
    wrapped = nn.utils.parametrizations.weight_norm(layer)
    assert isinstance(wrapped.weight, mcf.MCFTensor)
    # One norm, one quotient, one product of two float32 components.
    assert ((wrapped.weight - want).abs() / want.abs()).max().item() < 2.0**-42


def test_parameters_as_a_vector_and_back() -> None:
    layer, other = mcf.nn.MCFLinear(3, 2), mcf.nn.MCFLinear(3, 2)
    vector_to_parameters(parameters_to_vector(layer.parameters()) * 2, other.parameters())
    for a, b in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(2 * a, b)


def test_load_state_dict_copies_to_the_format_of_the_module() -> None:
    source = mcf.nn.MCFLinear(3, 2)
    wide = mcf.nn.MCFLinear(3, 2, terms=3)
    wide.load_state_dict(source.state_dict())
    assert wide.weight.terms == 3
    assert torch.equal(wide.weight, source.weight)
    plain = nn.Linear(3, 2)
    plain.load_state_dict(source.state_dict())
    assert torch.equal(plain.weight, source.weight.to_plain())
    taken = mcf.nn.MCFLinear(3, 2, terms=3)
    taken.load_state_dict(source.state_dict(), assign=True)
    assert taken.weight.terms == 2
    assert isinstance(taken.weight, nn.Parameter)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_modules_change_the_format_of_components(dtype: torch.dtype) -> None:
    layer = mcf.nn.MCFLinear(3, 2)
    want = layer.weight.detach().to(dtype)
    changed = layer.to(dtype)
    assert (changed.weight.dtype, changed.weight.terms) == (dtype, 2)
    assert torch.equal(changed.weight, want)


RANDOM_INITS = ["uniform_", "normal_", "xavier_uniform_", "kaiming_normal_", "trunc_normal_"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", [*RANDOM_INITS, "orthogonal_"])
def test_random_inits_fill_every_component(name: str) -> None:
    x = mcf.zeros(16, 16, terms=2)
    getattr(nn.init, name)(x)
    assert (x.components[1] != 0).float().mean() > 0.9


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
