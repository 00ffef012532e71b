"""Orthogonal polynomials against their explicit sums in exact fractions.

The tolerance is what the recurrences can lose: each of its n steps rounds with 2^-104 (two
components of float64) what is at most as large as the largest polynomial met on the way, and near
the ends of [-1, 1] an error grows in proportion to the steps after it: n^2 2^-102 in all.

Caught mutants: a division by k + 2; products of first components; v and w exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb, factorial

import pytest
import torch

import mcf

pytestmark = pytest.mark.usefixtures("on_torch")

POINTS = [Fraction(k, 2**9 * 3**3) for k in (-(2**10), -13824, -6912, -1, 0, 5, 4095, 13823, 13824)]
POINTS += [Fraction(-7, 3), Fraction(2**20 + 1, 3)]


def _u(n: int, x: Fraction) -> Fraction:
    return sum((-1) ** k * comb(n - k, k) * (2 * x) ** (n - 2 * k) for k in range(n // 2 + 1))


def _he(n: int, x: Fraction) -> Fraction:
    return sum(
        Fraction((-1) ** m * factorial(n), factorial(m) * factorial(n - 2 * m) * 2**m)
        * x ** (n - 2 * m)
        for m in range(n // 2 + 1)
    )


def _h(n: int, x: Fraction) -> Fraction:
    return sum(
        Fraction((-1) ** m * factorial(n), factorial(m) * factorial(n - 2 * m))
        * (2 * x) ** (n - 2 * m)
        for m in range(n // 2 + 1)
    )


def _l(n: int, x: Fraction) -> Fraction:
    return sum(comb(n, k) * (-x) ** k / factorial(k) for k in range(n + 1))


def _p(n: int, x: Fraction) -> Fraction:
    terms = range(n // 2 + 1)
    return (
        sum((-1) ** k * comb(n, k) * comb(2 * n - 2 * k, n) * x ** (n - 2 * k) for k in terms)
        / 2**n
    )


def _before(n: int, x: Fraction) -> Fraction:
    return _u(n - 1, x) if n else Fraction(0)


EXACT: dict[str, Callable[[int, Fraction], Fraction]] = {
    "chebyshev_polynomial_t": lambda n, x: (
        (_u(n, x) - (_u(n - 2, x) if n > 1 else 0)) / (2 if n else 1)
    ),
    "chebyshev_polynomial_u": _u,
    "chebyshev_polynomial_v": lambda n, x: _u(n, x) - _before(n, x),
    "chebyshev_polynomial_w": lambda n, x: _u(n, x) + _before(n, x),
    "hermite_polynomial_h": _h,
    "hermite_polynomial_he": _he,
    "laguerre_polynomial_l": _l,
    "legendre_polynomial_p": _p,
}
for _name in "tuvw":
    EXACT[f"shifted_chebyshev_polynomial_{_name}"] = (
        lambda n, x, f=EXACT[f"chebyshev_polynomial_{_name}"]: f(n, 2 * x - 1)
    )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", EXACT)
def test_values(name: str) -> None:
    x = mcf.tensor(POINTS, 2, torch.float64)
    points = [Fraction(f) for f in x.to_fractions()]
    for n in (0, 1, 2, 3, 8, 21):
        got = getattr(torch.special, name)(x, n).to_fractions()
        wanted = [EXACT[name](n, p) for p in points]
        # The largest of the polynomials that the recurrence passed through.
        sizes = [max(abs(EXACT[name](k, p)) for k in range(n + 1)) for p in points]
        if "laguerre" in name or "hermite" in name:
            # Their coefficients grow: 2 k or x / k times what came before.
            sizes = [s * (n + abs(p) + 1) for s, p in zip(sizes, points, strict=True)]
        for value, want, size in zip(got, wanted, sizes, strict=True):
            assert abs(Fraction(value) - want) <= (n + 1) ** 2 * Fraction(1, 2**102) * size


@pytest.mark.parametrize("name", ["chebyshev_polynomial_v", "legendre_polynomial_p"])
def test_orders_as_a_tensor(name: str) -> None:
    """Each element has its order; orders are cut to whole ones and give 0 below 0, as in torch."""
    function = getattr(torch.special, name)
    x = mcf.tensor([[1, 2], [3, -5]], 3, torch.float32) / 7
    orders = torch.tensor([0, 3, 7, -1])
    got = function(x[..., None], orders)
    assert got.shape == (2, 2, 4)
    for i, n in enumerate(orders.tolist()):
        assert torch.equal(got[..., i], function(x, n))
    assert torch.equal(function(x, torch.tensor(2.75)), function(x, 2))
    assert torch.equal(function(x, -1), torch.zeros_like(x))
    plain = function(x.to_plain(torch.float64), 3)
    assert torch.allclose(function(x, 3).to_plain(torch.float64), plain)
    assert function(x[:0], orders[:0, None, None]).shape == (0, 0, 2)


def test_derivatives() -> None:
    """T_n' = n U_{n-1}, to the 10 bits that both may lose."""
    x = mcf.tensor([1, -2, 3], 2, torch.float64) / 7
    x.requires_grad_()
    torch.special.chebyshev_polynomial_t(x, 6).sum().backward()
    want = 6 * torch.special.chebyshev_polynomial_u(x.detach(), 5)
    assert ((x.grad - want).abs() <= 2.0**-90).all()


def test_what_is_not_finite() -> None:
    x = mcf.tensor([torch.nan, torch.inf], 2)
    got = torch.special.legendre_polynomial_p(x, 2).to_plain()
    assert got[0].isnan()
    assert got[1] == torch.inf
    assert torch.special.legendre_polynomial_p(x, 0).to_plain().tolist() == [1, 1]
