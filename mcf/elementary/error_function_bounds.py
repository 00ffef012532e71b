"""Error bounds of the error functions, as in `mcf.elementary.error_bounds`."""

from __future__ import annotations

import functools
import math

import torch

from mcf.elementary import error, error_slopes, scaled_error, tables
from mcf.elementary.bessel_bounds import at_nodes
from mcf.elementary.error_bounds import exp, log, sigmoid
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import WORKING
from mcf.elementary.series import FALL
from mcf.kernels.formats import FP64


def scaled(
    e: Steps, name: str = "erfcx_series", degrees: int = tables.ERFCX_DEGREES, spare: float = 0.0
) -> float:
    """Return the error of exp(z^2) erfc(z), or a derivative, for an exact z."""
    table = tables.table(name, torch.device("cpu"))[0].reshape(-1, degrees)
    degree = error.degree_needed(e.terms, degrees, spare)
    needed = [error.components_needed(e.terms, k, spare) for k in range(degree)]
    steps = e.at_node([*needed, 1])
    worst = 0.0
    for row in table.abs().tolist():
        rows = [*zip(row, needed, strict=False), (row[degree], 1)]
        found, size = e.horner(rows, 1.0, e.beside(), steps)
        left = 2 * row[degree] * 2.0**-FALL
        # The value is at least its first coefficient minus all others.
        worst = max(worst, (found + left) / (2 * row[0] - size))
    return worst


def _gauss(e: Steps, halves: int) -> float:
    """Return the error of exp(-x^2) or exp(-x^2 / 2); only u of the square is inexact."""
    limits = WORKING[e.fmt]
    largest = limits.erf_far**2 if halves == 0 else limits.gauss_far**2 / 2
    # More floats are added to the argument than elsewhere, at most nine.
    added = 2.0**-2 * e.constant()
    return exp(e, largest * 2 * e.u * (e.collect() + e.mul()) + added)


def erfc(e: Steps) -> float:
    """Return the error of the Gaussian times erfcx, or 2 minus that."""
    return _gauss(e, 0) + scaled(e) + e.mul() + e.add()


def erf(e: Steps) -> float:
    """Return the error of erf: its series up to 1/4, then 1 - erfc."""
    z = e.mul()
    p = e.polynomial(1 / 16, 4.0, error._erf_series, 0.0, z)
    series_error = p + 2 * e.mul() + e.constant()
    share = math.erfc(0.25) / math.erf(0.25)
    return max(series_error, share * (_gauss(e, 0) + scaled(e) + e.mul()) + e.add())


def _tail(e: Steps) -> float:
    """Return the error of erfc(x / sqrt(2)) / 2; z erfcx'(z) / erfcx(z) is at most 1."""
    return _gauss(e, 1) + scaled(e) + 2 * e.mul() + e.constant()


def normal_cdf(e: Steps) -> float:
    """Return the error of the tail, or of 1 minus it."""
    return _tail(e) + e.add()


def normal_pdf(e: Steps) -> float:
    """Return the error of the Gaussian times a constant."""
    return _gauss(e, 1) + e.mul() + e.constant()


def gelu(e: Steps) -> float:
    """Return the error of x times the distribution function."""
    return normal_cdf(e) + e.mul()


def gelu_tanh(e: Steps) -> float:
    """Return the error of x times the logistic function of a cubic, exact up to 2**-15 (2**-5)."""
    steps = 4 * e.mul() + 5 * e.add() + 2 * e.constant() + 2 * e.collect()
    rest = 2.0 ** (-15 if e.fmt is FP64 else -5)
    return sigmoid(e, WORKING[e.fmt].exp_limit * rest * steps) + e.mul()


def erfcx(e: Steps) -> tuple[float, float]:
    """Return the error of erfcx: table, asymptotic series from 32 on, reflection below 0."""
    up = _from_zero(e)
    # At 0 it is 2 minus 1; from there on both ratios fall.
    return max(up, 2 * _gauss(e, 0) + up + e.add()), 0.0


def _from_zero(e: Steps) -> float:
    """Return the error of erfcx of a positive number."""
    limit = 2.0**-scaled_error.BITS
    far = e.polynomial(
        limit, scaled_error.BITS, scaled_error.asymptotic, 0.0, 2 * e.div() + e.mul()
    )
    return max(scaled(e), far + e.div() + 2 * e.mul() + e.constant())


def erf_1(e: Steps) -> tuple[float, float]:
    """Return the error of the Gaussian times a constant."""
    return _gauss(e, 0) + e.mul() + e.constant(), 0.0


def erfcx_slope(e: Steps, m: int) -> tuple[float, float]:
    """Return the error of a derivative of erfcx; below 0 a polynomial is a factor."""
    near = scaled(e, f"erfcx_{m}_series", error_slopes.DEGREES, error_slopes.SPARE)
    limit, bits = 2.0**-scaled_error.BITS, scaled_error.BITS
    coefficient = functools.partial(error_slopes.asymptotic, m)
    tail = e.polynomial(limit, bits, coefficient, 0.0, 2 * e.div() + e.mul())
    far = tail + (m + 1) * e.div() + (m + 2) * e.mul() + e.constant()
    up = max(near, far)
    grown = _gauss(e, 0) + (m // 2) * (2 * e.mul() + e.add()) + 3 * e.mul()
    # At least half of the difference remains.
    down = grown + e.add() if m % 2 else 2 * grown + up + e.add()
    return max(up, down), 0.0


def gelu_1(e: Steps) -> tuple[float, float]:
    """Return the error of the slope of gelu: (x - z) times a series; 1 minus that."""
    series = scaled(e, "gelu_1_series") + e.mul() + e.constant() + e.mul() + e.collect()
    return series + _gauss(e, 1) + 2 * e.mul() + e.constant() + e.add(), 0.0


def log_ndtr(e: Steps) -> tuple[float, float]:
    """Return the error of log(1 - c), c <= 1/2, and of two terms below.

    c / ((1 - c) |log(1 - c)|) is at most 1 / log(2), and log(erfcx / 2) at most -log(2). Truncating
    the argument to the working components loses twice the truncated part in the square.
    """
    up = log(e) + _tail(e) / math.log(2) + 2.0 ** -WORKING[e.fmt].thin
    half = log(e) + (_from_zero(e) + e.mul() + 2 * e.constant()) / math.log(2)
    return max(up, max(half, e.mul() + 2 * e.constant()) + e.add()), 0.0


def _inverted(e: Steps) -> float:
    """Return the error of x0 + d + ... with d = sqrt(pi)/2 (w(x0) - q exp(x0^2))."""
    # Both are w(x0), and sqrt(pi)/2 w(x) / x is at most 1.15, at y = 1/2. The error of d itself and
    # the truncated series are 2**-30 of the steps' errors, 2**-6 in float32.
    both = scaled(e) + exp(e) + e.collect() + e.mul() + e.add()
    return 1.15 * both * (1 + 2.0 ** (8 - WORKING[e.fmt].start_bits)) + e.add()


def erfinv(e: Steps) -> tuple[float, float]:
    """Return the error of erfinv: a series up to 1/2, beyond it a step from a float."""
    return max(at_nodes(e, "erfinv_series") + e.mul(), _inverted(e)), 0.0


def ndtri(e: Steps) -> tuple[float, float]:
    """Return the error of ndtri, sqrt(2) times erfinv of 2 x - 1."""
    # a erfinv'(a) / erfinv(a) is at most 1.17 up to a = 1/2.
    near = at_nodes(e, "erfinv_series") + e.mul() + 1.17 * e.collect()
    return max(near, _inverted(e)) + e.mul() + e.constant(), 0.0
