"""What series at nodes of tables take for granted: coefficients that fall, differences as exact.

Caught mutants: sums by `absorb` from the degree 0 on where coefficients fall slowly (of order 31),
a difference without its second float.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from mcf.elementary import bessel_series, error, gamma_series, polygamma, tables, working
from mcf.elementary.error_steps import Steps
from mcf.kernels import FP64
from tests.helpers.adversarial import Draw

SERIES = {
    "erfcx_series": error.ERFCX_DEGREES,
    "lgamma_series": gamma_series.DEGREES,
    "digamma_series": gamma_series.DEGREES,
    "trigamma_series": gamma_series.DEGREES,
    "k0e_series": gamma_series.DEGREES,
    "k1e_series": gamma_series.DEGREES,
    "erfinv_series": gamma_series.DEGREES,
    "i0e_series": bessel_series.DEGREES,
    "i1e_series": bessel_series.DEGREES,
}


def _share(name: str, degrees: int, first: int) -> float:
    """The largest sum of all coefficients behind one, over that one, from a degree on."""
    table = tables.table(name, torch.device("cpu"))[0].abs().reshape(-1, degrees)
    behind = table.flip(1).cumsum(1).flip(1)
    return float((behind[:, first + 1 :] / table[:, first:-1]).max())


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SERIES)
def test_a_coefficient_is_twice_what_follows(name: str) -> None:
    """Of the components' leading ones; `absorb` takes .51."""
    assert 0 < _share(name, SERIES[name], 0) < 0.505


@pytest.mark.slow
@pytest.mark.parametrize("m", [4, 15, 16, 30, 31, 32])
def test_of_polygamma_functions(m: int) -> None:
    polygamma.polygamma(m)
    name, degrees = f"polygamma_{m}_series", polygamma.degrees(m)
    assert _share(name, degrees, polygamma.steep(m)) < 0.505
    if m > 30:
        assert _share(name, degrees, 0) > 0.6, "the mutant"


def _beside(terms: int, *, lossy: bool = False) -> float:
    """The largest error of a difference from a node, in units of u^n of it."""
    d, u = Draw(FP64, 9), FP64.u
    parts = [torch.from_numpy(d.numbers(d.exponents(600, -1, -1))).abs()]
    parts[0][::3] *= 2.0**-8
    parts[0][::5] *= 2.0**-40
    for _ in range(terms - 1):
        parts.append(torch.from_numpy(d.low(parts[-1].numpy())))
    node = ((parts[0] * 32).floor() + 0.5) / 32
    # Nearly at the node, too.
    parts[0][::7] = node[::7] * (1 - 2.0**-52)
    found = working.beside(tuple(parts), node, terms)
    if lossy:
        found = (parts[0] - node, *found[1:])
    worst = Fraction(0)
    for k in range(len(node)):
        exact = sum((Fraction(float(p[k])) for p in parts), -Fraction(float(node[k])))
        ours = sum(Fraction(float(c[k])) for c in found)
        # What products take. Of a difference that is nothing beside 1 errors are nothing, too; a
        # tie of the first two may be passed by the third.
        unit = (1 + 8 * u if abs(exact) > 2.0**-40 else 2) * abs(Fraction(float(found[0][k])))
        assert all(abs(Fraction(float(c[k]))) <= u**j * unit for j, c in enumerate(found)) or lossy
        worst = max(worst, abs(ours - exact) / abs(exact) / u**terms)
    return float(worst)


@pytest.mark.parametrize("terms", [2, 3, 4])
def test_beside_a_node(terms: int) -> None:
    steps = Steps(terms)
    assert 0 < _beside(terms) <= steps.beside() / steps.constant()
    assert _beside(terms, lossy=True) > 100 * steps.beside() / steps.constant(), "the mutant"
