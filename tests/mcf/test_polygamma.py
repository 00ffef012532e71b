"""Polygamma functions of higher orders and Hurwitz's zeta function, against ball arithmetic.

Those of the orders 2 to 4 are in `test_special_functions.py`. Caught mutants: a table, a constant
or a power of one component less, a series too short, a reflection of another order, what is far
below the range added as if it were in it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flint import acb

import mcf
from mcf.elementary import polygamma
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import inputs
from tests.helpers.everyday import everyday
from tests.helpers.special import REFERENCE, climbed, part

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

NAMES = ("zeta_3", "zeta_4", "zeta_6", "zeta_33", "polygamma_5", "polygamma_12", "polygamma_32")
# The others are programs of other orders, whose tables take seconds each.
OFTEN = ("polygamma_5",)
some = pytest.mark.parametrize("name", everyday(NAMES, OFTEN))


def function(name: str) -> Any:
    kind, order = name.split("_")
    return getattr(polygamma, kind)(int(order))


def _worst(name: str, fmt: Format, terms: int, count: int) -> float:
    batches = inputs(name, fmt, terms, count, seed=terms)
    return max(max(part(name, fmt, x, function(name)(x))) for (x,) in batches)


@some
def test_error_within_the_bound(name: str) -> None:
    for fmt, terms in ((FP64, 4), (FP32, 2)):
        assert 0 < _worst(name, fmt, terms, 4) <= 1, (fmt.name, terms)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_error_of_many(name: str, fmt: Format, terms: int) -> None:
    assert 0 < _worst(name, fmt, terms, 100) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("m", range(5, polygamma.LAST + 1))
def test_every_order(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"polygamma_{m}"
    sign = (-1) ** (m + 1) * math.factorial(m)
    exact: Any = lambda x: sign * acb(m + 1).zeta(acb(x)).real  # noqa: E731
    monkeypatch.setitem(REFERENCE, name, exact)
    assert 0 < _worst(name, FP64, 4, 6) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["polygamma_5", "polygamma_12", "zeta_3", "zeta_33"])
def test_error_found_by_climbing(name: str) -> None:
    assert 0 < climbed(name, function(name), FP64, 4) <= 1


@pytest.mark.slow
def test_next_to_halves_below_zero() -> None:
    """Where two terms nearly cancel, and the reflection has a small cosine and little else."""
    x = tuple(torch.tensor([v]) for v in (-1.5, 4.8522186268940004e-11, -1.3823577699190182e-18))
    assert 0 < part("polygamma_12", FP32, x, polygamma.polygamma(12)(x))[0] <= 1


def test_special_values() -> None:
    """As torch has them, but for poles, where it has large numbers, and -inf."""
    nan, inf = math.nan, math.inf
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, -1.0, -50.0, 1e-300, 1e300], dtype=torch.float64)
    up = [inf, inf, 0.0, inf, nan, inf, inf, inf, 0.0]
    expected = {"polygamma_5": up, "zeta_6": up}
    for name, row in expected.items():
        found = function(name)((x, torch.zeros_like(x)))
        assert torch.equal(found[0].nan_to_num(1.5), torch.tensor(row).double().nan_to_num(1.5))
        assert not found[1].any()


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 4, 6])
def test_far_below_zero_next_to_half(m: int) -> None:
    """Where the sine's power is nothing and what is left is below the range."""
    x = tuple(torch.tensor([v], dtype=torch.float64) for v in (-(2.0**300), 0.5))
    found = polygamma.polygamma(m)(x)
    exact = -math.factorial(m - 1) * 2.0 ** (-300 * m)
    assert abs(found[0].item()) <= abs(exact) * 1.1


@pytest.mark.slow
def test_names_of_torch() -> None:
    x: Any = mcf.tensor(["0.3", "-0.7"], dtype=torch.float64)
    five = polygamma.polygamma(5)(x.components)
    for f in (torch.polygamma, torch.special.polygamma):
        assert all(map(torch.equal, f(5, x).components, five))
    third, second = polygamma.zeta(3)(x.components), mcf.trigamma(x.components)
    s = torch.tensor([3.0, 2.0], dtype=torch.float64)
    expected = [torch.stack([a[0], b[1]]) for a, b in zip(third, second, strict=True)]
    exact: Any = mcf.tensor(["3", "2"], dtype=torch.float64)
    for found in (torch.special.zeta(s, x), torch.special.zeta(exact, x)):
        assert all(map(torch.equal, found.components, expected))
    assert all(map(torch.equal, torch.special.zeta(3, x).components, third))
    one = torch.special.zeta(exact, 1)
    assert one[1].item() == pytest.approx(math.pi**2 / 6)
    beside = torch.special.zeta(exact, torch.tensor([[0.5], [0.25]], dtype=torch.float64))
    assert beside.shape == (2, 2)
    assert beside.terms == 2
    assert torch.equal(beside[1], torch.special.zeta(exact, 0.25))
    assert torch.special.zeta(exact[:0], x[:0]).shape == (0,)


def test_what_is_not_there_is_refused() -> None:
    x: Any = mcf.tensor(["0.3", "0.7"], dtype=torch.float64)
    with pytest.raises(mcf.UnsupportedError, match="n must be 0 to 32, got 33; the derivative"):
        torch.polygamma(33, x)
    with pytest.raises(mcf.UnsupportedError, match="no derivative by s"):
        torch.special.zeta(torch.tensor(2.0, requires_grad=True), x)
    for name in ("zeta_2", "zeta_34", "polygamma_33", "polygamma_05"):
        with pytest.raises(ValueError, match="polygamma_5 to polygamma_32, zeta_3 to zeta_33"):
            mcf.bound(name, 2)
    assert mcf.bound("polygamma_5", 2, torch.float64).proven


def test_weights() -> None:
    """g(1) = m! and g(0) = 2 m! times the sum of 1/(1/2 + k)^(m+1) / pi^(m+1)."""
    assert [polygamma.weight(m) for m in (2, 3, 4)] == [(0, 2), (2, 0, 4), (0, 16, 0, 8)]
    for m in range(2, polygamma.LAST + 1):
        assert sum(polygamma.weight(m)) == math.factorial(m)
