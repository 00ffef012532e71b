"""Error bounds of J and Y: relative to the result up to 256, then to the modulus."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from mcf.elementary import bessel_jy, bessel_zeros, tables
from mcf.elementary.error_bounds import log, sin_cos
from mcf.elementary.error_steps import Steps
from mcf.kernels.formats import FP32, FP64

_POINTS = 128


class _Row(NamedTuple):
    """An interval about a zero."""

    zero: float
    low: float
    high: float


class _Series(NamedTuple):
    """Largest error of a series on one interval, and its least value with the first's sign."""

    error: float
    least: float


def _rows(e: Steps, kind: str, order: int) -> list[_Row]:
    zeros = tables.table(f"{kind}{order}_zeros", torch.device("cpu"))[0].tolist()
    left = bessel_jy._LEFT[kind, order]
    edges = [max(0.0, (k - left) * math.pi) for k in range(len(zeros) + 1)]
    # Margin for the rounding error of the float that selects a row.
    margin = 2.0**-40 if e.fmt is FP64 else 2.0**-20
    found = []
    for k, zero in enumerate(zeros):
        if edges[k] < bessel_jy.FAR:
            high = min(edges[k + 1], bessel_jy.FAR)
            found.append(_Row(zero, edges[k] * (1 - margin), high * (1 + margin)))
    return found


def _least(row: list[float], low: float, high: float) -> float:
    """Return a lower bound of a polynomial, from its values at points and its steepest slope."""
    sign, limit = math.copysign(1.0, row[0]), max(-low, high)
    slope = sum(k * abs(c) * limit ** (k - 1) for k, c in enumerate(row) if k)
    step, least = (high - low) / _POINTS, math.inf
    for j in range(_POINTS + 1):
        value, v = 0.0, low + j * step
        for c in reversed(row):
            value = value * v + c
        least = min(least, sign * value)
    return least - slope * step / 2


def _series(
    e: Steps,
    name: str,
    rows: list[_Row],
    fall: bessel_jy.Fall = bessel_jy._fall,
    degrees: int = bessel_zeros.DEGREES,
) -> list[_Series]:
    table = tables.table(name, torch.device("cpu"))[0].reshape(-1, degrees)
    degree = bessel_jy.degree_needed(e.terms, fall, degrees)
    needed = [bessel_jy.components_needed(e.terms, k, fall) for k in range(degree)]
    found = []
    for given, row in zip(table.tolist(), rows, strict=False):
        low, high = row.low - row.zero, row.high - row.zero
        limit = max(-low, high)
        sizes = [abs(c) for c in given]
        error, _ = e.horner(
            [*zip(sizes, needed, strict=False), (sizes[degree], 1)], limit, _offset(e)
        )
        # Terms beyond the table fall at least by half, too.
        error += 2 * sum(c * limit**k for k, c in enumerate(sizes) if k > degree)
        error += 2 * max(sizes[-1], sizes[-2]) * limit ** len(sizes) + _underflow(e, limit, degree)
        found.append(_Series(error, _least(given, low, high)))
    return found


def _underflow(e: Steps, limit: float, degree: int) -> float:
    """Return the underflow error of Horner's rule in float32: 16 smallest numbers per step."""
    if e.fmt is FP64:
        return 0.0
    return 16 * float(FP32.min_subnormal) * sum(limit**k for k in range(degree + 1))


def _offset(e: Steps) -> float:
    """Return the error of x - z, where z has `bessel_jy.parts_needed` floats."""
    return e.collect() + e.constant()


def _far(e: Steps, order: int) -> float:
    """Return the error of P times one side plus Q times the other, over a root.

    It is relative to the modulus. The errors of the sides, sums of sine and cosine, are relative to
    sqrt(2).
    """
    square = 2 * e.div() + e.mul()
    limit = 2.0**-bessel_jy.BITS
    p = e.polynomial(limit, bessel_jy.BITS, bessel_jy._hankel(order, 0), 0.0, square)
    q = e.polynomial(limit, bessel_jy.BITS, bessel_jy._hankel(order, 1), 9.0, square)
    side = max(sin_cos(e)) + e.add()
    # |P cos| + |Q sin| is at most the modulus; Q is at most 3/8 of 1/256.
    value = p + side + e.mul() + 3 / 2048 * (q + side + 2 * e.mul() + e.div()) + e.add()
    return 1.01 * value + e.sqrt() + (e.mul() + e.constant()) / 2 + e.div()


def first(e: Steps, order: int) -> tuple[float, float]:
    """Return the errors of J_n: (x - z) times a series, and Hankel's."""
    series = _series(e, f"j{order}_series", _rows(e, "j", order))
    near = max(s.error / s.least for s in series)
    return near + _offset(e) + e.mul(), _far(e, order)


def second(e: Steps, order: int) -> tuple[float, float]:
    """Return the errors of Y_n: log(x/z) times a series plus (x - z) times another; Hankel's."""
    rows, c = _rows(e, "y", order), 2 / math.pi
    j_n = _series(e, f"y{order}_first", rows)
    rest = _series(e, f"y{order}_series", rows)
    t = _offset(e) + e.constant() + e.mul()
    # t / ((1 + t) log(1 + t)) is at most 1.45 for |t| <= 1/2, and 1 / log(3/2) is 2.47.
    common = log(e) + 2.5 * t + 2 * e.mul() + e.constant() + e.add() + _offset(e)
    worst = 0.0
    for k, (row, j, g) in enumerate(zip(rows, j_n, rest, strict=True)):
        # All terms are divided by x - z. If J_n has passed its zero, the first term changes sign.
        most = math.log(row.low / row.zero) / (row.low - row.zero) if row.low else 1.06
        least = g.least - c * most * max(0.0, -j.least) * (k > 0)
        grown = c * most * j.error / least
        if order == 0 and k == 0:
            # From 0 to 1, where J_0 is above 0.765, relative to the first term; then as for other
            # rows.
            grown = max(grown, j.error / 0.765)
        if order:
            # For order 1 terms are multiplied by x, and x log(x / z) / (x - z) grows with x; 2/(pi
            # z) is added.
            most = row.high * math.log(row.high / row.zero) / (row.high - row.zero)
            grown = c * most * j.error / (row.low * least if k else c / row.zero)
        worst = max(worst, grown + g.error / least)
    more = t + 2 * e.mul() + e.constant() + e.add() + e.div() if order else 0.0
    # Terms of opposite signs increase the error by at most a tenth.
    return 1.1 * (worst + common + more), _far(e, order)
