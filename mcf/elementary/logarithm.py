"""Logarithms of expansions, by a table of log(j/256) and the series of atanh."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import series
from mcf.elementary.ordered_sums import gathered
from mcf.elementary.tables import (
    LOG_EXPONENTS,
    LOG_FIRST,
    LOG_STEPS,
    TERMS,
    Components,
    constant,
    log_base,
    lookup,
)
from mcf.elementary.working import (
    collected,
    exponent,
    integer,
    power,
    scale_all,
    select,
    two_prod,
    two_sum,
)

# -log2 of the square of (m - f) / (m + f), with |m - f| <= 1/512 and m + f >= sqrt(2).
_BITS = 18.9
# Below _TINY, log(1 + d) = d to 4 components; it is scaled by 2**600 so that no bits are lost.
_TINY = 2.0**-250
_TINY_SHIFT = 600
_TINY_SCALE = 2.0**_TINY_SHIFT
# Shifts for float32, where a quotient d of about 2**-149 has bits below the range.
_NEAR_SHIFT = 120
_SPLIT_SHIFT = 149


def _coefficient(k: int) -> Fraction:
    """Return the k-th coefficient of (atanh(s)/s - 1) * 3 / s^2 in s^2."""
    return Fraction(3, 2 * k + 3)


def normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return exponent e and m = x / 2**e from sqrt(1/2) to sqrt(2), for positive normal numbers."""
    e = exponent(x)
    most = 1000 if x.dtype is torch.float64 else 100
    m = x * power(-e.clamp(-most, most)) * power(e.clamp(-most, most) - e)
    high = m > math.sqrt(2)
    return e + high.to(torch.int64), torch.where(high, m * 0.5, m)


def parts(
    x: Components, lead: Tensor, terms: int, base: int, shift: Tensor | None = None
) -> tuple[tuple[Components, Components, Components], Tensor]:
    """Return three expansions and an exponent k: log(sum(x) * 2**shift) = (a + b + c) * 2**k.

    They are 2 atanh((m - f)/(m + f)) and, from tables, the logarithms of the node f nearest to the
    mantissa m and of the power of two; all divided by log(base).

    Args:
        x: floats in descending order, except that their sum may cancel with that of 1.
        lead: the float nearest to their sum, positive and normal.
        terms: components wanted.
        base: 0 for e, 2 or 10.
        shift: int64; it enters the second and third expansion.
    """
    e, m0 = normalized(lead)
    node = (m0 * LOG_STEPS).round()
    f = node * (1 / LOG_STEPS)
    # Scale by 2**-e in two steps, since one factor may not be representable.
    half = e >> 1
    first, second = power(-half), power(half - e)
    m = tuple(c * first * second for c in x)
    # m - f is exact except for its last component, so a tiny logarithm does not cancel.
    top, rest = two_sum(m[0], -f)
    difference = collected((top, *m[1:], rest), terms)
    near = (e == 0) & (f == 1.0)
    if shift is not None:
        # Terms next to the logarithm of a power of two are not scaled.
        near = near & (shift == 0)
    total = collected((*m, f), terms)
    third = constant(Fraction(1, 3), terms, f.device)
    if f.dtype is torch.float64:
        # log(1 + d) is d to the last bit, and its powers underflow.
        tiny = near & (difference[0].abs() < _TINY)
        s = ex.div(difference, total)
        atanh = _atanh(s, s, third)
        atanh = select(tiny, series.scaled(difference, _TINY_SCALE), atanh)
        lift = torch.where(tiny, _TINY_SHIFT, 0)
    else:
        # Near 1 everything is scaled except the square, which is compared with 1 and may underflow.
        lift = torch.where(near, _NEAR_SHIFT, 0)
        s = ex.div(scale_all(difference, lift), total)
        atanh = _atanh(s, scale_all(s, -lift), third)
    if base:
        atanh = ex.mul(atanh, constant(1 / log_base(base), terms, f.device))
    if shift is not None:
        e = e + shift
    whole = lookup(f"log_exponents_{base}", e - LOG_EXPONENTS[0], terms)
    nodes = lookup(f"log_nodes_{base}", integer(node) - LOG_FIRST, terms)
    return (atanh, nodes, whole), -lift


def _atanh(s: Components, t: Components, third: Components) -> Components:
    """Return 2 s atanh(t) / t for |t| below 1/700."""
    z = ex.mul(t, t)
    tail = ex.mul(z, series.polynomial(z, _BITS, _coefficient, _BITS + 1))
    return series.scaled(ex.add(s, ex.mul(s, ex.mul(tail, third))), 2.0)


def log(
    x: Components, lead: Tensor, terms: int, base: int = 0, shift: Tensor | None = None
) -> tuple[Components, Tensor]:
    """Return components y and an exponent k of the logarithm, y * 2**k; see `parts`."""
    (small, node, whole), k = parts(x, lead, terms, base, shift)
    return ex.add(ex.add(small, node), whole), k


def split(m: Components, e: Tensor, terms: int) -> tuple[Components, tuple[Tensor, Tensor], Tensor]:
    """Return log(m * 2**e) 2**lift as an expansion and two floats, with 8 to 18 bits to spare.

    The floats are about the logarithms of the power of two and the node, and 2 (m - f)/(m + f); the
    expansion is the rest. m is between sqrt(1/2) and sqrt(2). lift is 0, or 600 if the logarithm is
    below 2**-250 and its last components may underflow. In float32 it scales a logarithm of a
    number near 1 to about 1.
    """
    node = (m[0] * LOG_STEPS).round()
    f = node * (1 / LOG_STEPS)
    near, wide = (e == 0) & (f == 1.0), f.dtype is torch.float64
    if wide:
        difference = gathered(m[0] - f, [(0, m[1:])], terms)
        total = gathered(m[0], [(0, (f,)), (1, m[1:])], terms)
        tiny = near & (difference[0].abs() < _TINY)
        lift = torch.where(tiny, _TINY_SHIFT, 0)
        lifted = difference
    else:
        difference = collected((m[0] - f, *m[1:]), terms)
        total = collected((*m, f), terms)
        lift = torch.where(near, (-exponent(difference[0])).clamp(0, _SPLIT_SHIFT), 0)
        lifted = scale_all(difference, lift)
    # The leading float of the quotient, and the exact remainder of the numerator.
    s0 = lifted[0] / total[0]
    taken = tuple(t for c in (*m, f) for t in two_prod(c, -s0))
    if wide:
        # Nearly all of the first three cancels.
        ordered = (taken[0], taken[-2], *lifted[1:], *taken[1:-2], taken[-1])
        numerator = gathered(lifted[0], [(0, (c,)) for c in ordered], terms, spare=True)
    else:
        numerator = collected((*lifted, *taken), terms)
    left = ex.div(numerator, total)
    s = ex.add(left, s0)
    t = s if wide else scale_all(s, -lift)
    z = ex.mul(t, t)
    tail = ex.mul(z, series.polynomial(z, _BITS, _coefficient, _BITS + 1))
    third = constant(Fraction(1, 3), terms, f.device)
    rest = ex.add(left, ex.mul(s, ex.mul(tail, third)))
    whole = lookup("log_exponents_0", e - LOG_EXPONENTS[0], TERMS + 1)
    nodes = lookup("log_nodes_0", integer(node) - LOG_FIRST, TERMS + 1)
    if wide:
        tables, over = two_sum(whole[0], nodes[0])
        # `over` and the second components are below 2**-43, the third below 2**-96; the rest
        # 2**-28.
        rest = series.scaled(rest, 2.0)
        firsts = (over, whole[1], nodes[1])
        groups = [*((0, (c,)) for c in firsts), (1, rest[1:]), (1, whole[2:]), (1, nodes[2:])]
        rest = gathered(rest[0], groups, terms)
    else:
        tables = collected((*whole, *nodes), 1)[0]
        rest = collected((*whole, *nodes, -tables, *series.scaled(rest, 2.0)), terms)
    first, second = two_sum(tables, 2.0 * s0)
    if wide:
        # Where log(1 + d) is d to the last bit.
        scaled = series.scaled((*difference, torch.zeros_like(f)), _TINY_SCALE)
        first, second = torch.where(tiny, scaled[0], first), torch.where(tiny, 0.0, second)
        rest = select(tiny, scaled[1:], rest)
    return rest, (first, second), lift
