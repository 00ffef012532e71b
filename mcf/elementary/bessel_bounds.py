"""Error bounds of modified Bessel functions, as in `mcf.elementary.special_bounds`."""

from __future__ import annotations

import functools
from fractions import Fraction

import torch

from mcf.elementary import bessel, bessel_k, bessel_slopes, gamma, series, tables
from mcf.elementary.error_bounds import exp, log
from mcf.elementary.error_steps import Steps


def at_nodes(e: Steps, name: str, degrees: int = bessel.DEGREES, spare: float = 0.0) -> float:
    """Return the error of a table's series without zeros, for |v| <= 1, rounded once."""
    table = tables.table(name, torch.device("cpu"))[0]
    degree = gamma.degree_needed(e.terms, spare, degrees)
    needed = [gamma.components_needed(e.terms, k, spare) for k in range(degree)]
    steps = e.at_node([*needed, 1])
    worst = 0.0
    for row in table.abs().reshape(-1, degrees).tolist():
        rows = [*zip(row, needed, strict=False), (row[degree], 1)]
        found, size = e.horner(rows, 1.0, e.beside(), steps)
        worst = max(worst, (found + 2 * row[degree + 1]) / (2 * row[0] - size))
    return worst


def _asymptotic(e: Steps, order: int) -> float:
    """Return the error of Hankel's series over a root."""
    coefficient = functools.partial(bessel.hankel, order)
    tail = e.polynomial(1 / bessel.FAR, bessel.BITS, coefficient, 0.0, e.div())
    return tail + e.sqrt() + (e.mul() + e.constant()) / 2 + e.div()


def first(e: Steps, order: int, *, scaled: bool) -> tuple[float, float]:
    """Return the error of I_n: series of exp(-x) I_n(x) / x^n, Hankel's, times exp(x)."""
    near = at_nodes(e, f"i{order}e_series") + e.mul() * order
    found = max(near, _asymptotic(e, order))
    return found + (0.0 if scaled else exp(e) + e.mul()), 0.0


def _positive(e: Steps, order: int, second: bool) -> tuple[float, float]:
    """Return absolute error and largest value of a positive power series of `bessel_k`."""
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
    """Return the error of K_n: power series and logarithm, nodes, Hankel's; times exp(x)."""
    low = _of_second(e, order) + e.div() * order
    growth = exp(e) + e.mul()
    high = max(at_nodes(e, f"k{order}e_series"), _asymptotic(e, order))
    return max(low + scaled * growth, high + (not scaled) * growth), 0.0


def slope(e: Steps, name: str, m: int) -> tuple[float, float]:
    """Return the error of a derivative: nodes, Hankel's over a root and x^m, K's below 1."""
    near = at_nodes(e, f"{name}_{m}_series", bessel_slopes.DEGREES, bessel_slopes.SPARE)
    near += (e.mul() + e.collect()) * (name == "i1e")
    coefficient = functools.partial(bessel_slopes.hankel, name, m)
    far = e.polynomial(1 / bessel.FAR, bessel.BITS, coefficient, 0.0, e.div())
    far += e.sqrt() + (e.mul() + e.constant()) / 2 + 2 * e.div() + (m - 1) * e.mul()
    return max(near, far, _slope_below_one(e, m) if name == "k0e" else 0.0), 0.0


def _slope_below_one(e: Steps, m: int) -> float:
    """Return the error of exp(x) (a K_0 + b x K_1) / x^m, with terms up to several times the sum.

    As x falls only b x K_1 remains. The ratio of the terms to the sum grows up to x = 1, where
    K_0(1) = 0.4210 and K_1(1) = 0.6019.
    """
    a, b = bessel_slopes.factors("k0e", m)
    zero, one = 0.42102443824070833, 0.6019072301972346
    left = abs(sum(a) * zero + sum(b) * one)
    parts = []
    for order, factor in enumerate((a, b)):
        steps = sum(1 for c in factor if c)
        size = sum(map(abs, factor)) * (one if order else zero)
        # Horner's rule adds to at most the sum of its terms.
        found = len(factor) * e.mul() + steps * e.add() + e.mul()
        parts.append(size * (found + _of_second(e, order)))
    add = e.add() + m * e.mul() + e.div() + exp(e) + e.mul()
    return sum(parts) / left + add


def _of_second(e: Steps, order: int) -> float:
    """Return the error of x^n K_n(x) up to 1."""
    grown = log(e) + _positive(e, order, False)[0] + e.mul()
    beside, _ = _positive(e, order, True)
    if order == 0:
        # K_0 falls to 0.4210 at 1.
        return grown + beside / 0.421 + e.add()
    # x K_1 is 1 minus x^2/2 times a sum, falls to 0.6019, and -x log(x) I_1 is below 0.4.
    return (0.4 * (grown + 2 * e.mul() + e.add()) + beside / 2) / 0.6 + e.add()
