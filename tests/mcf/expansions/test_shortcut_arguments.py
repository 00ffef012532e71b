"""Exact: functions that are computed at once take arguments as torch does, by name and `out=`.

Caught mutants: an `out=` handed on to the function of each component, which left the last ones in
it; a call by names that a shortcut does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard

X, Y = (mcf.MCFTensor(hard(torch.float64, 2, 24, seed)) for seed in (1, 2))
A = mcf.MCFTensor([c.reshape(4, 6) for c in X.components])
B = mcf.MCFTensor([c.reshape(6, 4) for c in Y.components])
PLACES = torch.tensor([3, 1, 3])
linear: Any = torch.nn.functional.linear


def _like(x: Any) -> Any:
    return torch.zeros_like(x)


BY_NAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "cat out": (lambda: torch.cat([X, Y], out=_like(torch.cat([X, Y]))), lambda: torch.cat([X, Y])),
    "stack out": (lambda: torch.stack([X, Y], dim=1, out=_like(torch.stack([X, Y], 1))),
                  lambda: torch.stack([X, Y], 1)),
    "hstack out": (lambda: torch.hstack([X, Y], out=_like(torch.cat([X, Y]))),
                   lambda: torch.cat([X, Y])),
    "clamp out": (lambda: torch.clamp(X, min=-0.5, max=0.5, out=_like(X)),
                  lambda: X.clamp(-0.5, 0.5)),
    "clamp": (lambda: torch.clamp(input=X, min=-0.5), lambda: X.clamp(-0.5)),
    "matmul": (lambda: torch.matmul(input=A, other=B), lambda: A @ B),
    "matmul of": (lambda: A.matmul(other=B), lambda: A @ B),
    "linear": (lambda: linear(input=A, weight=A, bias=X[:4]), lambda: linear(A, A, X[:4])),
    "flip": (lambda: torch.flip(input=A, dims=(0,)), lambda: A.flip(0)),
    "index_select": (lambda: torch.index_select(input=X, dim=0, index=PLACES), lambda: X[PLACES]),
    "cat": (lambda: torch.cat(tensors=[X, Y], dim=0), lambda: torch.cat([X, Y])),
    "zeros_like": (lambda: torch.zeros_like(input=X), lambda: X.new_zeros(24)),
    "ones_like": (lambda: torch.ones_like(X, requires_grad=True).detach(), lambda: X.new_ones(24)),
    "new_zeros": (lambda: X.new_zeros(size=(24,)), lambda: X.new_zeros(24)),
    "power": (lambda: X.abs().clone().pow_(Y), lambda: X.abs() ** Y),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.usefixtures("on_torch")
def test_arguments_by_name(name: str) -> None:
    got, expected = (make() for make in BY_NAME[name])
    assert_all_same_bits(got.components, expected.components, name)


@pytest.mark.usefixtures("on_torch")
def test_in_place_powers_are_differentiated() -> None:
    x = X.abs().detach().requires_grad_()
    with torch.no_grad():
        expected = x**Y
    assert_all_same_bits((x * 1).pow_(Y).detach().components, expected.components, "pow_")
