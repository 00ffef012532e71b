"""Exact: each distribution is its formula of the uniform or normal numbers of the same seed.

Caught mutants: a zero that gives an infinity; parameters in the wrong place; the leading component
of a probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf

pytestmark = pytest.mark.usefixtures("on_torch")

# Of 16 bits one in 65536 is zero; of 8 one in 256.
COUNT, FORM = 2000, {"terms": 1, "dtype": torch.bfloat16}


def after(seed: int, draw: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return draw()


PI = mcf.tensor(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899", **FORM
)
FORMULAS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "exponential": (lambda x: x.exponential_(2.0), lambda u: -u.log() / 2),
    "geometric": (
        lambda x: x.geometric_(0.25),
        lambda u: (u.log() / mcf.tensor(0.75, **FORM).log()).ceil(),
    ),
    "cauchy": (lambda x: x.cauchy_(1.0, 2.0), lambda u: ((u - 0.5) * PI).tan() * 2 + 1),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_uniform_numbers(name: str) -> None:
    draw, formula = FORMULAS[name]
    got = after(3, lambda: draw(mcf.zeros(COUNT, **FORM)))
    u = after(3, lambda: mcf.rand(COUNT, **FORM))
    assert (u == 0).any()
    # A zero is half of the next number.
    u = torch.where(u == 0, 2.0**-9, u)
    assert got.isfinite().all()
    assert got.to_fractions() == formula(u).to_fractions()
    again = mcf.zeros(COUNT, **FORM)
    generator = torch.Generator().manual_seed(3)
    if name == "exponential":
        again.exponential_(2.0, generator=generator)
        assert again.to_fractions() == got.to_fractions()


def test_formulas_of_normal_numbers() -> None:
    z = after(4, lambda: mcf.randn(50, terms=2, dtype=torch.float64))
    like = mcf.zeros(50, terms=2, dtype=torch.float64)
    got = after(4, lambda: like.clone().log_normal_(0.5, 2.0))
    assert got.to_fractions() == (z * 2 + 0.5).exp().to_fractions()
    mean, std = mcf.tensor("1/3", 2, torch.float64), torch.full((50,), 0.1, dtype=torch.float64)
    for given in ((mean.expand(50), 0.1), (mean.expand(50), std), (mean, std)):
        drawn = after(4, lambda given=given: torch.normal(*given))
        assert drawn.to_fractions() == (z * 0.1 + mean).to_fractions()


def test_probabilities_have_all_digits() -> None:
    u = after(5, lambda: mcf.rand(100, terms=2, dtype=torch.float64))
    above = u + 2.0**-106
    assert after(5, lambda: torch.bernoulli(above)).tolist() == [1.0] * 100
    drawn = after(5, lambda: torch.bernoulli(u))
    assert isinstance(drawn, mcf.MCFTensor)
    assert drawn.tolist() == [0.0] * 100


def test_wrong_parameters() -> None:
    x = mcf.zeros(3)
    for call in (
        lambda: x.exponential_(0),
        lambda: x.geometric_(1.0),
        lambda: x.cauchy_(0, -1),
        lambda: x.log_normal_(0, math.nan),
        lambda: torch.bernoulli(x + 2),
        lambda: torch.normal(x, x - 1),
    ):
        with pytest.raises(RuntimeError, match="expects"):
            call()
    assert x.tolist() == [0, 0, 0]
