"""How large the errors of Bessel functions can be, as in `mcf.elementary.special_bounds`."""

from __future__ import annotations

import functools
from fractions import Fraction

import torch

from mcf.elementary import bessel, bessel_k, gamma, series, tables
from mcf.elementary.error_bounds import exp, log
from mcf.elementary.error_steps import Steps


def at_nodes(e: Steps, name: str, degrees: int = bessel.DEGREES) -> float:
    """Of a table's series that has no zero, in a v of at most 1, which is rounded once."""
    table = tables.table(name, torch.device("cpu"))[0]
    degree = gamma.degree_needed(e.terms)
    needed = [gamma.components_needed(e.terms, k) for k in range(degree)]
    steps = e.at_node([*needed, 1])
    worst = 0.0
    for row in table.abs().reshape(-1, degrees).tolist():
        rows = [*zip(row, needed, strict=False), (row[degree], 1)]
        found, size = e.horner(rows, 1.0, e.beside(), steps)
        worst = max(worst, (found + 2 * row[degree + 1]) / (2 * row[0] - size))
    return worst


def _asymptotic(e: Steps, order: int) -> float:
    """Hankel's series over a root."""
    coefficient = functools.partial(bessel.hankel, order)
    tail = e.polynomial(1 / bessel.FAR, bessel.BITS, coefficient, 0.0, e.div())
    return tail + e.sqrt() + (e.mul() + e.constant()) / 2 + e.div()


def first(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """A series of exp(-x) I_n(x) / x^n, Hankel's from 256 on, times exp(x)."""
    near = at_nodes(e, f"i{order}e_series") + e.mul() * order
    found = max(near, _asymptotic(e, order))
    return found + (0.0 if scaled else exp(e) + e.mul()), 0.0


def _positive(e: Steps, order: int, second: bool) -> tuple[float, float]:
    """Absolute error and largest value of a power series of `bessel_k`, whose terms add up."""
    of = bessel_k.second if second else bessel_k.first

    def coefficient(k: int) -> Fraction:
        return of(order, k)

    limit = 2.0**-bessel_k.BITS
    rows, cut = e.rows(bessel_k.BITS, coefficient, 0.0)
    add = series.adding(0.0)
    steps = [max(e.add(m), e.absorb(m)) if add(m) else e.add(m) for _, m in rows]
    error, size = e.horner(rows, limit, e.mul(), steps)
    return error + 2 * cut * limit ** len(rows), size


def second(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """Power series and a logarithm up to 1, a series at nodes, Hankel's; times exp(x)."""
    grown = log(e) + _positive(e, order, False)[0] + e.mul()
    beside, _ = _positive(e, order, True)
    if order == 0:
        # K_0 falls to .4210 at 1.
        low = grown + beside / 0.421 + e.add()
    else:
        # x K_1 is 1 less x^2/2 times a sum, falls to .6019, and -x log(x) I_1 is below .4.
        low = (0.4 * (grown + 2 * e.mul() + e.add()) + beside / 2) / 0.6 + e.add() + e.div()
    growth = exp(e) + e.mul()
    high = max(at_nodes(e, f"k{order}e_series"), _asymptotic(e, order))
    return max(low + scaled * growth, high + (not scaled) * growth), 0.0
