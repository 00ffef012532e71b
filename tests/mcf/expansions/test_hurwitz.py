"""Hurwitz's zeta function of any s against ball arithmetic: observed errors, torch's values.

Caught mutants: a series of 8 terms, Euler and Maclaurin from 4 on.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flint import acb, arb, ctx

import mcf
from mcf.expansions.ops.elementary import polygamma
from mcf.kernels.formats import format_of
from tests.helpers.elementary import balls

# Values: on the torch executor, which compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")
F64, F32 = torch.float64, torch.float32
_SLOW = pytest.mark.slow
PAIRS = [
    (1.0000001, 0.75), (1.5, 1.0), (1.5, 2.0**-30), (2.5, 40.0), (3.75, 1e9), (20.5, 3.0),
    (36.0, -7.3), (41.0, -100.2), (64.5, 30.0), (150.25, 1.25),
]  # fmt: skip


def _worst(dtype: torch.dtype, terms: int, pairs: list[tuple[float, float]]) -> float:
    """In units of u^n of the result."""
    share = mcf.tensor("1.00000000098765432109876543210987654321", terms, dtype)
    s, q = (mcf.tensor([p[k] for p in pairs], terms, dtype) for k in (0, 1))
    q = q * share
    s = torch.where(s == s.round(), s, s * share)
    found: Any = torch.special.zeta(s, q)
    unit, worst, before = arb(float(format_of(dtype).u ** terms)), 0.0, ctx.prec
    ctx.prec = 900
    try:
        for a, b, ours in zip(*(balls(v.components) for v in (s, q, found)), strict=True):
            exact = arb(0)
            while b < 0:
                exact, b = exact + b ** -int(float(a)), b + 1
            exact += acb(a).zeta(acb(b)).real
            # What float32 has all components of.
            if dtype is F64 or abs(exact) > arb(2) ** -60:
                worst = max(worst, float(abs(ours - exact) / (abs(exact) * unit)))
        return worst
    finally:
        ctx.prec = before


@_SLOW
def test_errors() -> None:
    """Half of the last bit, and what 53 bits more leave of other errors."""
    assert 0 < _worst(F32, 1, [PAIRS[3], PAIRS[6]]) <= 1.001


@_SLOW
@pytest.mark.parametrize(
    ("dtype", "terms", "limit"),
    # Of four components as many are computed with: a hundred sums and powers.
    [(F64, 1, 1.001), (F64, 2, 1.001), (F64, 3, 1.001), (F32, 3, 1.001), (F64, 4, 200.0)],
)
def test_errors_everywhere(dtype: torch.dtype, terms: int, limit: float) -> None:
    assert 0 < _worst(dtype, terms, PAIRS) <= limit


@_SLOW
@pytest.mark.parametrize(("broken", "value"), [("_COUNT", 8), ("_FROM", 4)])
def test_mutants(broken: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    polygamma._weight.cache_clear()
    monkeypatch.setattr(polygamma, broken, value)
    assert _worst(F64, 2, PAIRS[1:2]) > 2
    polygamma._weight.cache_clear()


@_SLOW
def test_special_values() -> None:
    inf, nan = torch.inf, torch.nan
    # Of the one number that is computed few terms are added up.
    numbers = [0.0, -0.0, 1.0, 45.0, -2.0, -1.5, inf, -inf, nan]
    orders = [1.0, 0.5, -1.0, 1.5, inf, -inf, nan]
    pairs = [(a, b) for a in orders for b in numbers if (a, b) != (1.5, 1.0)]
    s, q = (torch.tensor(v, dtype=F64) for v in zip(*pairs, strict=True))
    ours = torch.special.zeta(mcf.tensor(s, 2, F64), mcf.tensor(q, 2, F64)).to_plain()
    theirs = torch.special.zeta(s, q)
    known = theirs.isinf() | theirs.isnan()
    assert torch.equal(ours[known].nan_to_num(-7, 8, 9), theirs[known].nan_to_num(-7, 8, 9))
    # Torch's own has some bits less than 53.
    assert torch.allclose(ours[~known], theirs[~known], rtol=2.0**-40)


@_SLOW
def test_derivatives() -> None:
    """By q -s zeta(s + 1, q); by s an error, as torch has it."""
    s, q = mcf.tensor("2.5", 2, F64), mcf.tensor(["1.5", "0.3"], 2, F64).requires_grad_()
    (slope,) = torch.autograd.grad(torch.special.zeta(2.5, q).sum(), q, create_graph=True)
    exact = -2.5 * torch.special.zeta(s + 1, q.detach())
    assert ((slope - exact).abs() <= 2.0**-103 * exact.abs()).all()
    (curve,) = torch.autograd.grad(slope.sum(), q)
    assert ((curve - 8.75 * torch.special.zeta(4.5, q.detach())).abs() < 2.0**-95).all()
    with pytest.raises(mcf.UnsupportedError, match="no derivative by s"):
        torch.special.zeta(s.requires_grad_(), q)


@_SLOW
def test_whole_and_other_orders_together() -> None:
    """Whole s from 2 to 33 have the bits of their kernels."""
    s, x = torch.tensor([3.0, 2.5, 40.0], dtype=F64), mcf.tensor("1.25", 2, F64)
    both = torch.special.zeta(s, x)
    assert torch.equal(both[0].components[1], torch.special.zeta(3, x).components[1])
    assert torch.equal(both[1].components[1], torch.special.zeta(2.5, x).components[1])
