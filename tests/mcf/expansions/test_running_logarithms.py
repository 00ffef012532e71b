"""Proven bound: running logarithms of sums of exponentials of rows that are combined as a tree.

Caught mutants: the factor of the larger part; what runs up to a pair given to the element after it
twice; the exponents' difference added; differences of equal infinities.
"""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.expansions.ops.reductions import scans
from tests.helpers import assert_all_same_bits
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday

COUNT, SHORT = 700, 8


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of few elements, most of whose levels are those of many."""
    monkeypatch.setattr(scans, "SHORT", SHORT)


def _numbers(terms: int, count: int = COUNT) -> Any:
    """Of size 8, in waves, with steps upwards late in the row."""
    wave = 8 * bell(count, 1) + 40 * (torch.arange(count) // 250)
    return mcf.MCFTensor([wave * 2.0 ** (-54 * k) / (1 + 2 * k) for k in range(terms)])


def _exact(x: Any) -> list[Any]:
    total, found = mpmath.mpf(0), []
    for value in x.to_mpmath():
        total += mpmath.exp(value)
        found.append(mpmath.log(total))
    return found


def _bound(terms: int, result: Any) -> Any:
    a, p, e, g = (
        mcf.bound(name, terms, torch.float64).relative for name in ("add", "mul", "exp", "log")
    )
    depth, log_count = 2 * COUNT.bit_length(), mpmath.log(COUNT)
    # What is not of first order is far below a hundredth.
    return 1.01 * (depth * (a + p + e) + (a + g) * log_count + a * abs(result))


TERMS = pytest.mark.parametrize("terms", everyday([2, 1, 3, 4], [2]))


@pytest.mark.usefixtures("few", "on_torch")
@TERMS
def test_values(terms: int) -> None:
    x = _numbers(terms)
    with mpmath.workprec(400):
        for value, want in zip(x.logcumsumexp(0).to_mpmath(), _exact(x), strict=True):
            assert abs(value - want) <= _bound(terms, want)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_bits(terms: int) -> None:
    x = _numbers(terms)
    got = x.logcumsumexp(0)
    with mcf.executor("torch"):
        expected = x.logcumsumexp(0)
    assert_all_same_bits(got.components, expected.components, "executors")
    recorded = x.clone().requires_grad_().logcumsumexp(0).detach()
    assert_all_same_bits(got.components, recorded.components, "with a derivative")
    for count in (SHORT + 1, SHORT + 2, COUNT - 1):
        rows = torch.stack([x[:count], x[-count:]])
        for found in (rows.logcumsumexp(1), rows.mT.logcumsumexp(0).mT):
            assert_all_same_bits(found[0].components, x[:count].logcumsumexp(0).components, "row")


@pytest.mark.usefixtures("few", "on_torch")
def test_a_derivative() -> None:
    x = _numbers(2, 40).requires_grad_()
    weights = torch.arange(40, dtype=torch.float64) % 5 + 1
    (got,) = torch.autograd.grad((x.logcumsumexp(0) * weights).sum(), x)
    with mpmath.workprec(400):
        points = x.detach().to_mpmath()
        runs = _exact(x.detach())
        for i, value in enumerate(got.to_mpmath()):
            want = sum(
                mpmath.mpf(weights[k].item()) * mpmath.exp(points[i] - runs[k])
                for k in range(i, 40)
            )
            # All terms are positive: 40 of them, of sums as long, and differences below 2^6.
            assert abs(value - want) <= 2**10 * mpmath.mpf(2) ** -106 * want


@pytest.mark.usefixtures("few", "on_torch")
def test_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    for given in ([-inf] * 12, [-inf, 1.0, inf, inf], [0.0, nan, inf], [800.0, -800.0, 1e300]):
        values = torch.tensor([*given, *[2.0] * 12], dtype=torch.float64)
        x = mcf.MCFTensor([values, torch.zeros_like(values)])
        torch.testing.assert_close(
            x.logcumsumexp(0).to_plain(), values.logcumsumexp(0), equal_nan=True
        )
