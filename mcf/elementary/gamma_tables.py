"""Taylor series of the gamma functions at 224 nodes, and their divisors.

All series converge up to the pole at 0: with 32 nodes per octave coefficients fall by 6 bits per
degree.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from torch import Tensor

from mcf.elementary import gamma_series
from mcf.elementary.tables import _rows, _table

# 32 nodes in each of [1/2, 1), [1, 2), ..., [32, 64).
STEPS = 32
OCTAVES = 7
FIRST = -1
DEGREES = 40
_BITS = 400


def nodes() -> list[tuple[Fraction, Fraction]]:
    """Return (node, half-width of its interval), ascending."""
    found = []
    for octave in range(FIRST, FIRST + OCTAVES):
        half = Fraction(2) ** octave / (2 * STEPS)
        found += [(Fraction(2) ** octave + half * (2 * j + 1), half) for j in range(STEPS)]
    return found


@functools.cache
def _series() -> list[list[int]]:
    """Return coefficients of log Gamma at each node, in v = (x - node) / half."""
    series = gamma_series.Series(_BITS)
    return [series.log_gamma(c, half, DEGREES + 2) for c, half in nodes()]


def _table_of(rows: list[list[int]]) -> Tensor:
    return _rows([(c, 1 << _BITS) for row in rows for c in row[:DEGREES]])


def _units(x: Fraction) -> int:
    return round(x * (1 << _BITS))


@_table
def lgamma_series() -> Tensor:
    """Return coefficients of log Gamma(x) / ((x - 1) (x - 2)), which has no zero."""
    rows = []
    for series, (c, half) in zip(_series(), nodes(), strict=True):
        rows.append(series)
        for zero in (1, 2):
            rows[-1] = gamma_series.quotient(rows[-1], _units(c - zero), half, _BITS)
    return _table_of(rows)


@_table
def digamma_series() -> Tensor:
    """Return coefficients of digamma(x) / (x - x0), with x0 its positive zero."""
    rows = []
    for series, (c, half) in zip(_series(), nodes(), strict=True):
        slope = [int(k * s / half) for k, s in enumerate(series)][1:]
        at = _units(c - gamma_series.digamma_zero())
        rows.append(gamma_series.quotient(slope, at, half, _BITS))
    return _table_of(rows)


@_table
def trigamma_series() -> Tensor:
    """Return coefficients of trigamma(x)."""
    rows = []
    for series, (_, half) in zip(_series(), nodes(), strict=True):
        rows.append([int(k * (k - 1) * s / half**2) for k, s in enumerate(series)][2:])
    return _table_of(rows)


@_table
def digamma_zero() -> Tensor:
    """Return the positive zero of digamma as 8 floats."""
    zero = gamma_series.digamma_zero()
    return _rows([zero.as_integer_ratio()], 8)[:, 0]
