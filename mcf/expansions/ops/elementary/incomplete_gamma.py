"""Compute the regularized incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x).

With D = x^a e^-x / Gamma(a + 1), computed with one more component than the result has,

    P = D (1 + x/(a + 1) + x^2/((a + 1)(a + 2)) + ...)                for x < a + 1 or x < 8
    Q = a D / (x + 1 - a - 1 (1 - a)/(x + 3 - a - 2 (2 - a)/(x + 5 - a - ...)))   elsewhere
    Q = -expm1(a log x - log Gamma(a + 1)) - a x^a / Gamma(a + 1) sum (-x)^k / (k! (a + k))

The last formula is for a < 1 in the first region, where P may be close to 1. The other function is
1 minus the computed one. Each element stops at its first negligible term (NIST's Digital Library of
Mathematical Functions, 8.7, 8.9 and 8.11, https://dlmf.nist.gov/8). There is no dedicated kernel.
Relative errors are at most u^n (1 + 2^-10) for up to three float64 components and for all narrower
formats, for arguments and results of at least 2^-800; `docs/numerics.md` has the proof. For four
float64 components they are measured.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary.gamma_series import Series
from mcf.expansions.conversion import promote
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.register_choice import refuse_float32

aten = torch.ops.aten

# For a larger first argument, sums have thousands of terms, whose errors add up.
LARGEST = 2.0**20
# Below this a, log Gamma(1 + a) is computed by its series, with a small relative error.
_SMALL = 2.0**-6
# Steps after which the continued fraction has converged to 2^-212 for all a <= LARGEST:
# 1610 for a <= 256, else 35 a^(1/3) + 5 (docs/numerics.md). Rounding may hide convergence.
_MOST = 3600


def _terms(x: Any) -> int:
    """Return the number of float64 components of the computation."""
    fmt = format_of(x.dtype)
    return int(min(4, -(-fmt.p * x.terms // FP64.p) + 1))


@functools.cache
def _coefficients() -> list[Fraction]:
    """Return the coefficients of a, a^2, ... in log Gamma(1 + a)."""
    bits = 448
    found = Series(bits).log_gamma(Fraction(1), Fraction(1), 42)
    return [Fraction(c, 1 << bits) for c in found[1:]]


def _log_gamma(a: Any) -> Any:
    """Return log Gamma(1 + a) with a small relative error, also for small a."""
    small = a < _SMALL
    near = torch.where(small, a, 0.0)
    total: Any = torch.zeros_like(a)
    for c in reversed(_coefficients()):
        total = near * (total + tensor(c, a.terms, a.dtype, a.device))
    return torch.where(small, total, torch.lgamma(1 + torch.where(small, 1.0, a)))


def _done(term: Any, total: Any) -> Any:
    least = 2.0 ** -(FP64.p * total.terms + 4)
    return term.components[0].abs() <= least * total.components[0].abs()


def _summed(first: Any, following: Any) -> Any:
    """Sum terms until they are negligible; term k is following(k, term k - 1)."""
    total, term = first, first
    active = torch.ones_like(first.components[0], dtype=torch.bool)
    k = 1
    while bool(active.any()):
        term = following(k, term)
        total = torch.where(active, total + term, total)
        active = active & ~_done(term, total)
        k += 1
    return total


def _series(a: Any, x: Any) -> Any:
    """Return 1 + x/(a + 1) + x^2/((a + 1)(a + 2)) + ..., all terms of which are positive."""
    return _summed(torch.ones_like(a), lambda k, term: term * (x / (a + k)))


def _alternating(a: Any, x: Any) -> Any:
    """Return the sum of (-x)^k / (k! (a + k)) over k >= 1, for x < 2."""
    power = -x

    def following(k: int, term: Any) -> Any:
        nonlocal power
        power = power * (x / -(k + 1))
        return power / (a + (k + 1))

    return _summed(-x / (a + 1), following)


def _fraction(a: Any, x: Any) -> Any:
    """Return 1 / (x + 1 - a - ...), the continued fraction, by Lentz's algorithm."""
    b = x + 1 - a
    d = 1 / b
    total = c = d
    active = torch.ones_like(b.components[0], dtype=torch.bool)
    least = 2.0 ** -(FP64.p * b.terms - 2)
    for k in range(1, _MOST):
        numerator = (a - k) * k
        b = b + 2
        d = 1 / (b + numerator * d)
        c = b if k == 1 else b + numerator / c
        change = c * d
        total = torch.where(active, total * change, total)
        active = active & ((change - 1).components[0].abs() > least)
        if not bool(active.any()):
            break
    return total


def _computed(a: Any, x: Any, upper: bool, spare: bool) -> Any:
    """Compute P or Q (`upper`) for 0 < a <= LARGEST and x > 0, one-dimensional, in float64.

    `spare` tells whether the computation has at least 53 bits more than the result.
    """
    power = a * torch.log(x) - _log_gamma(a)
    scale = torch.exp(power - x)
    out = torch.zeros_like(a)
    # Near 0 the fraction needs hundreds of steps; for x < 8 the sum loses 26 spare bits.
    low = (x < a + 1) | (x < 8) if spare else x < a + 1
    small = low & (a < 1) if upper else torch.zeros_like(low)
    for where, kind in ((~low, "fraction"), (low & ~small, "series"), (small, "small")):
        if not bool(where.any()):
            continue
        b, y, d = a[where], x[where], scale[where]
        if kind == "small":
            grown = power[where]
            out[where] = -torch.expm1(grown) - b * torch.exp(grown) * _alternating(b, y)
            continue
        value = d * b * _fraction(b, y) if kind == "fraction" else d * _series(b, y)
        out[where] = value if upper == (kind == "fraction") else 1 - value
    return out


def _value(a: Any, x: Any, upper: bool) -> Any:
    """Return P or Q (`upper`) of expansions of one shape and format."""
    refuse_float32("torch.special.gammainc", format_of(x.dtype), x.device)
    first, second = a.components[0], x.components[0]
    good = (first > 0) & (second > 0) & first.isfinite() & second.isfinite()
    if bool((good & (first > LARGEST)).any()):
        raise UnsupportedError(
            "torch.special.gammainc and gammaincc of mcf.MCFTensor: the first argument must be "
            f"at most 2**20, got {float(first[good].max())}"
        )
    terms = _terms(x)
    b, y = (v[good].to(torch.float64, terms=terms) for v in (a, x))
    spare = FP64.p * (terms - 1) >= format_of(x.dtype).p * x.terms
    found = _computed(b, y, upper, spare).to(x.dtype, terms=x.terms)
    # Special values in PyTorch's order of precedence, last one wins.
    zero = torch.where(second == 0, 0.0, torch.where(second.isinf(), 1.0, torch.nan))
    zero = torch.where(first.isinf(), torch.where(second.isinf(), torch.nan, 0.0), zero)
    zero = torch.where(first == 0, torch.where(second > 0, 1.0, torch.nan), zero)
    unknown = (first < 0) | (second < 0) | first.isnan() | second.isnan()
    zero = torch.where(unknown, torch.nan, zero)
    out: Any = torch.where(good, torch.zeros_like(x), (1 - zero if upper else zero).to(x.dtype))
    out[good] = found
    return out


def _density(a: Any, x: Any) -> Any:
    """Return x^(a - 1) e^-x / Gamma(a), the derivative of P by x."""
    terms = _terms(x)
    b, y = (v.to(torch.float64, terms=terms) for v in (a, x))
    found: Any = torch.exp(torch.xlogy(b - 1, y) - y - torch.lgamma(b))
    return found.to(x.dtype, terms=x.terms)


def _of(name: str, upper: bool) -> Any:
    def call(input: Any, other: Any) -> Any:
        if isinstance(input, Tensor) and input.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"torch.special.{name}(a, x) has no derivative by a, and a requires grad"
            )
        a: Any = promote(input)
        x: Any = promote(other)
        a, x = a.detach() + torch.zeros_like(x.detach()), x + torch.zeros_like(a.detach())
        sign = -1 if upper else 1
        return differentiable(name, lambda v: _value(a, v, upper), lambda v: sign * _density(a, v))(
            x
        )

    return call


for _name, _short, _upper in (("gammainc", "igamma", False), ("gammaincc", "igammac", True)):
    _function = _of(_name, _upper)
    implements(getattr(torch.special, _name), getattr(torch, _short), getattr(Tensor, _short))(
        _function
    )
    implements(getattr(aten, _short).default)(_function)
