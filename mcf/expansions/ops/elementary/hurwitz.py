"""Compute Hurwitz's zeta function 1/q^s + 1/(q + 1)^s + ... for s > 1 by Euler-Maclaurin.

With a = q + N and B_2j Bernoulli's numbers

    zeta(s, q) = sum over k < N of 1/(q + k)^s + a^-s (a/(s - 1) + 1/2
                 + sum of B_2j/(2 j)! s (s + 1) ... (s + 2 j - 2) / a^(2 j - 1))

N is the first with a >= 48 + s, or with negligible further terms (NIST's Digital Library of
Mathematical Functions, 25.11.28, https://dlmf.nist.gov/25.11). It is computed with one more float64
component than the result has, in hundreds of launches. Its errors have no proven bound; they are
measured (`docs/numerics.md`).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import torch

from mcf.elementary.gamma_series import bernoulli
from mcf.expansions.creation import tensor
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.register_choice import refuse_float32

# For a >= _FROM + s, 34 terms of the series give 230 bits.
_FROM = 48
_COUNT = 34
# For q < 0 and s > 33 only this many terms before zero exceed 2^-230 of the largest.
_NEAR = 72


@functools.cache
def _weight(j: int) -> Fraction:
    """Return B_2j / (2 j)! for j >= 1."""
    return bernoulli(_COUNT)[j - 1] / math.factorial(2 * j)


def _power(base: Any, s: Any, odd: Any) -> Any:
    """Return 1 / base^s; a negative base needs an integer s, which `odd` describes."""
    value = torch.pow(base.abs(), -s)
    return torch.where((base.components[0] < 0) & odd, -value, value)


def _computed(s: Any, q: Any, odd: Any) -> Any:
    """Compute zeta(s, q) for one-dimensional expansions of float64, with no q at a pole."""
    # Terms further below zero are negligible next to those near zero.
    skipped = (-q.components[0] - _NEAR).floor().clamp(min=0)
    x: Any = q + skipped
    least = 2.0 ** -(FP64.p * q.terms + 8)
    total: Any = torch.zeros_like(x)
    active = torch.ones_like(x.components[0], dtype=torch.bool)
    counted = active
    while bool(active.any()):
        term: Any = torch.where(active, _power(x, s, odd), 0.0)
        short = (x.components[0] >= _FROM + s.components[0]) & active
        # Terms decrease for q >= 1; the rest is at most q/(s - 1) + 1 times the current one.
        size = term.components[0].abs()
        rest = size * (1 + x.components[0].abs() / (s.components[0] - 1))
        small = (x.components[0] > 1) & (rest <= least * total.components[0].abs())
        none = active & ~short & small
        counted = counted & ~none
        active = active & ~short & ~none
        total = torch.where(active, total + term, total)
        x = torch.where(active, x + 1, x)
    tail = _tail(torch.where(counted, s, 2.0), torch.where(counted, x, 64.0))
    return torch.where(counted, total + tail, total)


def _tail(s: Any, a: Any) -> Any:
    inverse = 1 / a
    square = inverse * inverse
    # (s)_(2j-1) / a^(2j-1)
    rising: Any = s * inverse
    rest: Any = 0.5 + tensor(_weight(1), a.terms, a.dtype, a.device) * rising
    for j in range(2, _COUNT + 1):
        rising = rising * ((s + (2 * j - 3)) * (s + (2 * j - 2))) * square
        rest = rest + tensor(_weight(j), a.terms, a.dtype, a.device) * rising
    return torch.pow(a, 1 - s) / (s - 1) + torch.pow(a, -s) * rest


def hurwitz(s: Any, q: Any) -> Any:
    """Return zeta(s, q) for expansions of one shape and format, with PyTorch's special values."""
    refuse_float32("torch.special.zeta", format_of(q.dtype), q.device)
    first, base = s.components[0], q.components[0]
    over = (s > 1) & s.isfinite()
    pole = (q <= 0) & (q == q.floor())
    below = q < 0
    whole = s == s.round()
    good = over & (q.isfinite()) & ~pole & (whole | ~below)
    half = (s * 0.5).round() * 2.0
    odd = whole & (half != s)
    fmt = format_of(q.dtype)
    terms = int(min(4, -(-fmt.p * q.terms // FP64.p) + 1))
    b, y = (v[good].to(torch.float64, terms=terms) for v in (s, q))
    found = _computed(b, y, odd[good]).to(q.dtype, terms=q.terms)
    # As in PyTorch: s decides first, then poles; for infinite s zeta is 1 at q = 1, 0 beyond.
    endless = torch.where(q == 1, 1.0, torch.where(q < 1, torch.inf, torch.nan))
    beyond = torch.where(first == torch.inf, endless, torch.nan)
    beyond = torch.where(pole | (base == -torch.inf), torch.inf, beyond)
    beyond = torch.where(s == 1, torch.inf, torch.where(s < 1, torch.nan, beyond))
    out: Any = torch.where(good, torch.zeros_like(q), beyond.to(q.dtype))
    out[good] = found
    return out
