"""Exact: closeness, vector products and writing at once are what torch's way gives: bits, errors.

Caught mutants: the factor on the other operand; infinities beside finite numbers taken for close;
equal infinities taken for different ones; a permuted index of the vector product; a write
that autograd's version does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.tensor import torch_functions
from mcf.tensor.ops import assignment
from tests.helpers import assert_alike
from tests.mcf.tensor.inputs import hard

X, Y = (mcf.MCFTensor(hard(torch.float64, 2, 24, seed)) for seed in (1, 2))
V = [X[k : k + 3].clone() for k in range(9, 12)]
INF = float("inf")


def _numbers(values: list[float], lower: float = 0.0) -> mcf.MCFTensor:
    first = torch.tensor(values, dtype=torch.float64)
    return mcf.MCFTensor([first, lower * (first.abs() == 1).double()])


A = _numbers([1, 1, -1, 0, -0.0, INF, INF, -INF, float("nan"), 1.5, 2.0**-1060, 2.0**1023])
B = _numbers([1, 1.25, -1, -0.0, 0, INF, 3, INF, float("nan"), 1, 0, -(2.0**1023)], 2.0**-60)
PLACES = torch.tensor([3, 1, 3, -1])


def _set(index: Any, value: Any) -> Any:
    x = X.clone()
    x[index] = value
    return x


# One of |x - y| = 1/4 and 1/5 |y|, 1/4 |x|; both ways.
CLOSE = [(A, B), (B, A), (A, A), (X, Y), (X, X * (1 + 2.0**-40))]

CALLS: dict[str, Callable[[], Any]] = {
    "isclose": lambda: [
        torch.isclose(x, y, rtol, atol)
        for x, y in CLOSE
        for rtol, atol in ((1e-5, 1e-8), (0.2, 0.0), (0.0, 1e-8), (2.0**-60, 0.25), (INF, 0.0))
    ],
    "isclose by name": lambda: [X.isclose(Y, rtol=0.5), torch.isclose(A, A, equal_nan=True)],
    "allclose": lambda: [torch.allclose(x, y, 0.2) for x, y in CLOSE] + [X.allclose(X)],
    "cross": lambda: [
        torch.linalg.cross(V[0], V[1]), torch.cross(V[1], V[2], dim=0), V[2].cross(V[0], -1),
        torch.linalg.cross(X.reshape(8, 3), V[0][None]), V[0].cross(V[1], dim=-1),
        torch.linalg.cross(X.reshape(8, 3), Y.reshape(8, 3)), torch.linalg.cross(V[0], V[0]),
        torch.cross(X.reshape(2, 3, 4), Y.reshape(2, 3, 4)), torch.linalg.cross(
            X.reshape(8, 3).T, Y.reshape(8, 3).T, dim=0),
    ],
    "gathered": lambda: [
        X.diff(), X[::2].diff(), X[:2].diff(), X[:1].diff(), torch.outer(X, Y), torch.outer(
            X.reshape(4, 6)[:, 1], Y[::3]), torch.outer(X[:0], Y), torch.linalg.cross(
                X.reshape(4, 6)[:, :3], Y.reshape(4, 6)[:, 3:]),
    ],
    "fill_": lambda: [X.clone().fill_(v) for v in (0.1, -0.0, 2**60 + 1, INF)] + [
        X.reshape(4, 6).t().clone().t().fill_(3)],
    "one value": lambda: [_set(PLACES, Y[3]), _set(PLACES, Y[3:4]), _set((PLACES[:2],), Y[0]),
                          _set(torch.tensor(5), Y[2])],
    "copy_": lambda: [X.clone().copy_(Y), torch.empty_like(X.float()).copy_(Y),
                      X.clone().copy_(Y[:1]), X.reshape(4, 6).clone().t().copy_(Y.reshape(6, 4))],
}  # fmt: skip


# On the loops: on the torch executor there is no chain.
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = CALLS[name]()
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    monkeypatch.setattr(assignment, "_written_at_once", lambda *_: False)
    for k, (got, expected) in enumerate(zip(at_once, CALLS[name](), strict=True)):
        assert_alike(got, expected, f"{name} {k}")


REFUSED: dict[str, Callable[[], Any]] = {
    "rtol": lambda: torch.isclose(X, Y, -1.0),
    "atol": lambda: torch.allclose(X, Y, 1e-5, -1.0),
    "dtype": lambda: torch.isclose(X, Y.float()),
    "shape": lambda: torch.isclose(X, Y[:5]),
    "two numbers": lambda: torch.linalg.cross(X[:2], Y[:2]),
    "dim of many": lambda: torch.linalg.cross(X.reshape(8, 3), Y.reshape(8, 3), dim=2),
    "dim of others": lambda: torch.linalg.cross(X.reshape(8, 3), Y.reshape(8, 3), dim=0),
    "dim": lambda: torch.cross(V[0], V[1], dim=1),
    "shape copied": lambda: X.clone().copy_(Y[:5]),
    "an integer": lambda: X.clone().fill_(2**70),
    "a leaf": lambda: X.clone().requires_grad_(True).fill_(1.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((RuntimeError, ValueError, IndexError, OverflowError)) as at_once:
        REFUSED[name]()
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    with pytest.raises(type(at_once.value)) as expected:
        REFUSED[name]()
    assert str(at_once.value) == str(expected.value)


def test_writing_counts_as_a_change() -> None:
    x = X.clone()
    before = x._version
    x.fill_(1.0)
    x.copy_(Y)
    assert x._version == before + 2
