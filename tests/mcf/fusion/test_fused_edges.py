"""`torch.compile(backend=mcf.fused)` where sizes are zero and numbers are not known beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from tests.helpers.draws import bell


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()


def expansion(shape: tuple[int, ...], seed: int) -> Any:
    return mcf.from_components((bell(shape, seed), bell(shape, seed + 10) * 2.0**-60))


def same(x: Any, y: Any) -> None:
    assert x.shape == y.shape
    for a, b in zip(x.components, y.components, strict=True):
        assert torch.equal(a.view(torch.int64), b.view(torch.int64))


def test_parts_without_elements() -> None:
    """What is computed of no elements is no statement; it raised IndexError."""

    def f(x: Any, y: Any) -> Any:
        return torch.cat([x[:0] + 1, x * y]), (x[:, :0] * y[:, :0]).sum(1)

    x, y = expansion((3, 2), 1), expansion((3, 2), 2)
    for got, want in zip(torch.compile(f, backend=mcf.fused)(x, y), f(x, y), strict=True):
        same(got, want)


@pytest.mark.parametrize("backend", ["eager", "mcf"])
def test_integers_that_change_between_calls(backend: str) -> None:
    """The second is a SymInt, which raised TypeError beside an expansion."""

    def f(x: Any, n: int) -> Any:
        return n - x * n

    x = expansion((3,), 1)
    fast = torch.compile(f, backend=mcf.fused if backend == "mcf" else backend)
    for n in (2, 3, 2**53 + 1):
        same(fast(x, n), f(x, n))


def test_zeros_that_a_movement_fills_in() -> None:
    """The mutant: a constant other than 0 is recorded first."""

    def f(x: Any, y: Any) -> Any:
        return torch.tril(x * y) + x, torch.triu(x @ y, 1) * 3.0

    x, y = expansion((2, 2), 1), expansion((2, 2), 2)
    for got, want in zip(torch.compile(f, backend=mcf.fused)(x, y), f(x, y), strict=True):
        same(got, want)


def test_systems_that_use_numbers_of_another() -> None:
    """The third product has factors of both rows; the mutant takes rows for systems."""

    def f(x: Any) -> Any:
        return torch.cat([x[0], x[0, :1], x[1, 1:]]) * x.reshape(-1)

    x = expansion((2, 2), 1)
    same(torch.compile(f, backend=mcf.fused)(x), f(x))
