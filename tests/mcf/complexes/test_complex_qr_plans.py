"""Exact: Q and R of few complex matrices by plan are those of the operators.

Caught mutants: signs of rows that are not negative; columns of Q as they were; the zeros below R's
diagonal without the sign that their row gets; an imaginary part of the diagonal.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.complexes import orthogonal, reflection_plans
from tests.helpers.modes import Seen
from tests.mcf.linalg.test_elimination_loops import F64, components
from tests.mcf.linalg.test_lanes import uneven

MODES = ("reduced", "complete", "r")


def matrices(*shape: int, terms: int = 2) -> Any:
    real = mcf.MCFTensor(components(F64, terms, *shape))
    return orthogonal.pair(real, real.flip(-1).mul(0.75))


def alike(got: Any, expected: Any) -> None:
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape
        for p, q in zip((x.real, x.imag), (y.real, y.imag), strict=True):
            for c, d in zip(p.components, q.components, strict=True):
                assert c.stride() == d.stride()
                # A NaN has any payload.
                assert bool(((c == d) | ((c != c) & (d != d))).all())
                assert torch.equal(torch.signbit(c) & (c == c), torch.signbit(d) & (d == d))


def compare(a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in MODES:
        # The second time with what the first has left.
        found = [torch.linalg.qr(a, mode) for _ in range(2)]
        with monkeypatch.context() as patched:
            patched.setattr(orthogonal, "orthogonal", lambda a, mode: None)
            expected = torch.linalg.qr(a, mode)
        for got in found:
            assert type(got) is type(expected)
            alike(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_factors_are_those_of_operators(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reflection_plans._plans.clear()
    for shape in ((1, 1), (3, 3), (5, 3), (3, 5), (2, 3, 4, 4)):
        compare(matrices(*shape, terms=terms), monkeypatch)
    compare(matrices(4, 3, terms=terms).mT, monkeypatch)
    # Zeros, deficient and flat columns, what is not finite; side by side in lanes.
    for batch in (9, 20):
        real, imag = (mcf.MCFTensor(uneven(F64, terms, batch, 4, 3)) for _ in range(2))
        compare(orthogonal.pair(real, imag.flip(0)), monkeypatch)
    assert all(compute is not None for compute, _ in reflection_plans._plans.values())


def test_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the slow test, what is done every day."""
    reflection_plans._plans.clear()
    compare(matrices(3, 3), monkeypatch)
    assert all(compute is not None for compute, _ in reflection_plans._plans.values())
    assert len(reflection_plans._plans) == len(MODES)


@pytest.mark.slow
def test_what_is_recorded_or_has_no_plan_goes_the_other_way() -> None:
    a = matrices(3, 3)
    expected = torch.linalg.qr(a)
    reflection_plans._plans.clear()
    leaf = orthogonal.pair(a.real.clone().requires_grad_(), a.imag)
    q, r = torch.linalg.qr(leaf)
    assert q.real.requires_grad
    alike([orthogonal.pair(x.real.detach(), x.imag.detach()) for x in (q, r)], expected)
    with Seen():
        alike(torch.linalg.qr(a), expected)
    assert not reflection_plans._plans
    with mcf.executor("torch"):
        alike(torch.linalg.qr(a), expected)
    for other in (matrices(40, 3).mT, matrices(2, 0, 3), orthogonal.pair(a.real, a.imag.mT)):
        assert all(x is not None for x in torch.linalg.qr(other))
    assert all(compute is None for compute, _ in reflection_plans._plans.values())
