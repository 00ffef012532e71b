"""Error bounds of Airy's function: relative to the result above -64.

Below, they are relative to |x|^(3/2) times the modulus.
"""

from __future__ import annotations

import torch

from mcf.elementary import airy, airy_tables, bessel_jy_bounds, gamma, tables
from mcf.elementary.error_bounds import exp, sin_cos
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import computing_in


def phase(e: Steps) -> float:
    """Return the relative error of zeta: only its inexact part, at most 3d/s, contributes."""
    with computing_in(e.fmt):
        steps = airy.limits().steps
    share = 3 * 1.5 * 2.0**-steps * 1.01
    d = e.beside() + e.sqrt() / 2 + e.add() + e.div()
    # A third of d^2 is at most a thousandth of the other term.
    both = e.sqrt() + e.mul() + 2.0**-10 * (2 * d + 2 * e.mul() + e.constant()) + e.add()
    return share * (d + both + e.mul())


def _high(e: Steps, m: int) -> float:
    """Return the error of a table series in sqrt(x) multiplied by exp(-zeta)."""
    degrees = airy.DEGREES
    table = tables.table(f"{airy.NAMES[m]}_scaled", torch.device("cpu"))[0]
    degree = gamma.degree_needed(e.terms, 0.0, degrees)
    needed = [gamma.components_needed(e.terms, k) for k in range(degree)]
    steps = e.at_node([*needed, 1], degrees)
    worst = 0.0
    for row in table.abs().reshape(-1, degrees).tolist():
        found, size = e.horner(
            [*zip(row, needed, strict=False), (row[degree], 1)], 1.0, e.beside(), steps
        )
        # The root is below 128 half-widths of its interval.
        found += 128 * 2 * row[1] * e.sqrt() + 2 * row[degree + 1]
        worst = max(worst, found / (2 * row[0] - size))
    with computing_in(e.fmt):
        zeta: float = 2 / 3 * airy.limits().zero ** 1.5
    return worst + exp(e, zeta * phase(e)) + e.mul()


def _rows(e: Steps, m: int) -> list[bessel_jy_bounds._Row]:
    """Return the intervals about zeros, as `airy.row_of` selects them."""
    zeros = tables.table(f"{airy.NAMES[m]}_points", torch.device("cpu"))[0].tolist()
    step = 2.0**-10
    points = torch.arange(-(1 << 10), (64 << 10) + 1, dtype=torch.float64, device="cpu") * step
    # Count the points in each row; rows ascend.
    counts = torch.bincount(airy.row_of(m, points).to(torch.int64), minlength=len(zeros))
    ends = (counts.cumsum(0) * step - 1).tolist()
    # Extend to the next point on either side, which covers the error of the row's float.
    return [
        bessel_jy_bounds._Row(zero, max(-1.0, low - step), min(64.0, high) + step)
        for zero, low, high in zip(zeros, [-1.0, *ends], ends, strict=False)
    ]


def _near(e: Steps, m: int) -> float:
    """Return the error of x - z times a series about z."""
    name = f"{airy.NAMES[m]}_series"
    series = bessel_jy_bounds._series(e, name, _rows(e, m), airy.fall, airy_tables.DEGREES)
    offset = bessel_jy_bounds._offset(e)
    return max(s.error / s.least for s in series) + offset + e.mul()


def _far(e: Steps, m: int) -> float:
    """Return the error of P times one side plus Q times the other, over a root.

    It is relative to the modulus. The errors of the sides, sums of sine and cosine, are relative to
    sqrt(2).
    """
    square = 2 * (e.div() + phase(e) + e.collect()) + e.mul()
    limit = 2.0**-airy.BITS
    p = e.polynomial(limit, airy.BITS, airy.coefficients(m, 0), 0.0, square)
    q = e.polynomial(limit, airy.BITS, airy.coefficients(m, 1), airy.SMALLER, square)
    # The digits of the angle are truncated at 2^-15 u^n.
    side = max(sin_cos(e)) + e.add() + e.constant()
    share: float = 2.0**-airy.SMALLER
    value = p + side + e.mul() + share * (q + side + 2 * e.mul() + square + e.constant()) + e.add()
    root = e.sqrt() + (e.sqrt() + e.mul() + e.constant()) / 2 + max(e.div(), e.mul())
    return 1.01 * value + root


def airy_ai(e: Steps, m: int) -> tuple[float, float]:
    """Return the error bounds of the derivative of order m.

    Below -64, zeta is 2/3 of |x|^(3/2), which is at least 512.
    """
    least: float = airy.FAR**1.5
    return max(_high(e, m), _near(e, m)), _far(e, m) / least + 2 / 3 * 1.01 * phase(e)
