"""Implement polygamma functions and Hurwitz's zeta function.

Integer s from 2 to 33 have a kernel. Any other s > 1 uses Euler-Maclaurin summation.

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
from torch import Tensor

from mcf.elementary import polygamma as orders
from mcf.elementary.gamma_series import bernoulli
from mcf.expansions.conversion import promote
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.ops.arithmetic.constants import in_format
from mcf.expansions.ops.elementary.elementary import Unary, computed, differentiable, of
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.register_choice import refuse_float32

aten = torch.ops.aten

LAST = orders.LAST
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


@functools.cache
def _of_order(n: int) -> Unary:
    if n < 2:
        return computed(("digamma", "trigamma")[n])
    orders.polygamma(n)
    return computed(f"polygamma_{n}")


@implements(aten.polygamma.default)
def polygamma(n: int, x: MCFTensor) -> MCFTensor:
    """Return the n-th derivative of digamma, for n from 0 to 32."""
    if not 0 <= n <= LAST:
        raise UnsupportedError(
            f"torch.polygamma of an mcf.MCFTensor: n must be 0 to {LAST}, got {n}; the derivative "
            f"of order {n + 1} of torch.lgamma needs it too"
        )
    return _of_order(n)(x)


@functools.cache
def _zeta(s: int) -> Any:
    if s == 2:
        # zeta(2, x) is trigamma.
        return differentiable("zeta_2", _of_order(1), lambda x: -2 * zeta(3, x))
    orders.zeta(s)
    return getattr(of, f"zeta_{s}")


def _any(s: Any) -> Any:
    """Return the function x -> zeta(s, x) for an expansion s, by `hurwitz`."""
    return differentiable("zeta", lambda x: hurwitz(s, x), lambda x: -s * _any(s + 1)(x))


def _is_made(s: float) -> bool:
    """Return whether zeta(s, x) has a kernel."""
    return 2 <= s <= LAST + 1 and s == round(s)


@implements(
    torch.special.zeta,
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
)
def zeta(input: Any, other: Any) -> Any:
    """Return Hurwitz's zeta function 1/x^s + 1/(x + 1)^s + ... for s > 1.

    Integers s from 2 to 33 have a kernel; others use `hurwitz`.
    """
    if isinstance(input, Tensor) and input.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "torch.special.zeta(s, x) has no derivative by s, and s requires grad"
        )
    x = in_format(other, input) if isinstance(input, MCFTensor) else other
    if not isinstance(x, MCFTensor):
        # x is a plain tensor and s an expansion, whose format the result has.
        x = promote(x) + torch.zeros_like(input)
    if not isinstance(input, Tensor):
        if _is_made(input):
            return _zeta(int(input))(x)
        return _any(in_format(input, x) + torch.zeros_like(x.detach()))(x)
    s_of: Any = input.detach()
    # Exclude values that differ from an integer only in trailing components.
    if isinstance(s_of, MCFTensor):
        whole: Any = torch.where(s_of == s_of.round(), s_of, torch.nan)
        s_of = whole.to_plain(torch.float64)
    found, rest = None, False
    # An empty s needs some order; any will do.
    for s in s_of.unique().tolist() or [2]:
        if not _is_made(s):
            rest = True
            continue
        value = _zeta(int(s))(x)
        # `torch.where` broadcasts to the shape of both.
        found = torch.where(input == int(s), value, value if found is None else found)
    if not rest:
        return found
    made = (s_of >= 2) & (s_of <= LAST + 1) & (s_of == s_of.round())
    wide: Any = x + torch.zeros_like(promote(input.detach()))
    s_all = torch.where(made, 2.5, promote(input.detach())) + torch.zeros_like(wide.detach())
    value = _any(s_all)(torch.where(made, torch.ones_like(wide), wide))
    return value if found is None else torch.where(made, found, value)
