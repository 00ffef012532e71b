"""How large the errors of Airy's function can be: relative to the result above -64.

Below, relative to |x|^(3/2) times the modulus.
"""

from __future__ import annotations

import torch

from mcf.elementary import airy, airy_tables, bessel_jy_bounds, gamma, tables
from mcf.elementary.error_bounds import exp, sin_cos
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import computing_in


def phase(e: Steps) -> float:
    """Of zeta, relative: of what is beside the exact part, at most 3 d / s of it."""
    with computing_in(e.fmt):
        steps = airy.limits().steps
    share = 3 * 1.5 * 2.0**-steps * 1.01
    d = e.beside() + e.sqrt() / 2 + e.add() + e.div()
    # The third of d^2 is a thousandth of what it is added to, and less.
    both = e.sqrt() + e.mul() + 2.0**-10 * (2 * d + 2 * e.mul() + e.constant()) + e.add()
    return share * (d + both + e.mul())


def _high(e: Steps, m: int) -> float:
    """A series at nodes, of a root, times exp(-zeta)."""
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
        # The root is below 128 halves of its interval.
        found += 128 * 2 * row[1] * e.sqrt() + 2 * row[degree + 1]
        worst = max(worst, found / (2 * row[0] - size))
    with computing_in(e.fmt):
        zeta: float = 2 / 3 * airy.limits().zero ** 1.5
    return worst + exp(e, zeta * phase(e)) + e.mul()


def _rows(e: Steps, m: int) -> list[bessel_jy_bounds._Row]:
    """Intervals about zeros, as `airy.row_of` has them."""
    zeros = tables.table(f"{airy.NAMES[m]}_points", torch.device("cpu"))[0].tolist()
    step = 2.0**-10
    points = torch.arange(-(1 << 10), (64 << 10) + 1, dtype=torch.float64, device="cpu") * step
    # How many points are in each row; rows ascend.
    counts = torch.bincount(airy.row_of(m, points).to(torch.int64), minlength=len(zeros))
    ends = (counts.cumsum(0) * step - 1).tolist()
    # To the next point on either side, which is more than floats may be off.
    return [
        bessel_jy_bounds._Row(zero, max(-1.0, low - step), min(64.0, high) + step)
        for zero, low, high in zip(zeros, [-1.0, *ends], ends, strict=False)
    ]


def _near(e: Steps, m: int) -> float:
    """x - z times a series about z."""
    name = f"{airy.NAMES[m]}_series"
    series = bessel_jy_bounds._series(e, name, _rows(e, m), airy.fall, airy_tables.DEGREES)
    offset = bessel_jy_bounds._offset(e)
    return max(s.error / s.least for s in series) + offset + e.mul()


def _far(e: Steps, m: int) -> float:
    """P times one side and Q times the other, over a root, relative to the modulus.

    Of the sides, sums of sine and cosine, the errors are relative to sqrt(2).
    """
    square = 2 * (e.div() + phase(e) + e.collect()) + e.mul()
    limit = 2.0**-airy.BITS
    p = e.polynomial(limit, airy.BITS, airy.coefficients(m, 0), 0.0, square)
    q = e.polynomial(limit, airy.BITS, airy.coefficients(m, 1), airy.SMALLER, square)
    # The angle's digits are cut at 2^-15 u^n.
    side = max(sin_cos(e)) + e.add() + e.constant()
    share: float = 2.0**-airy.SMALLER
    value = p + side + e.mul() + share * (q + side + 2 * e.mul() + square + e.constant()) + e.add()
    root = e.sqrt() + (e.sqrt() + e.mul() + e.constant()) / 2 + max(e.div(), e.mul())
    return 1.01 * value + root


def airy_ai(e: Steps, m: int) -> tuple[float, float]:
    """Of the derivative of order m.

    zeta is 2/3 of |x|^(3/2), and that is 512 and more.
    """
    least: float = airy.FAR**1.5
    return max(_high(e, m), _near(e, m)), _far(e, m) / least + 2 / 3 * 1.01 * phase(e)
