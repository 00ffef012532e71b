"""The regularized incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x).

With D = x^a e^-x / Gamma(a + 1), computed in a component more than the result has,

    P = D (1 + x/(a + 1) + x^2/((a + 1)(a + 2)) + ...)                for x < a + 1 or x < 8
    Q = a D / (x + 1 - a - 1 (1 - a)/(x + 3 - a - 2 (2 - a)/(x + 5 - a - ...)))   elsewhere
    Q = -expm1(a log x - log Gamma(a + 1)) - a x^a / Gamma(a + 1) sum (-x)^k / (k! (a + k))

the last for a < 1 and such x, where P may be next to 1, and the others are 1 less these. Terms
are taken until none counts, each element's by itself (NIST's Digital Library of Mathematical
Functions, 8.7, 8.9 and 8.11, https://dlmf.nist.gov/8). No kernel of their own. Errors are at most
u^n (1 + 2^-10) of results of up to three float64 components and of all narrower ones, for arguments
and results from 2^-800 on, where the format has them; `docs/numerics.md` has the proof. Of four
they are observed.
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

# Of a larger first argument sums have thousands of terms, of which errors add up.
LARGEST = 2.0**20
# Below it log Gamma(1 + a) is its series, which knows all of a.
_SMALL = 2.0**-6
# Steps after which the fraction is off by less than 2^-212, for all first arguments to LARGEST:
# 1610 up to 256, else 35 a^(1/3) + 5 (docs/numerics.md). Rounding errors may hide that it is.
_MOST = 3600


def _terms(x: Any) -> int:
    """Components of float64 that are computed with."""
    fmt = format_of(x.dtype)
    return int(min(4, -(-fmt.p * x.terms // FP64.p) + 1))


@functools.cache
def _coefficients() -> list[Fraction]:
    """Of a, a^2, ... in log Gamma(1 + a)."""
    bits = 448
    found = Series(bits).log_gamma(Fraction(1), Fraction(1), 42)
    return [Fraction(c, 1 << bits) for c in found[1:]]


def _log_gamma(a: Any) -> Any:
    """log Gamma(1 + a), relative to the result also for a small a."""
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
    """A sum of terms, each a function of its number and of the one before, until none counts."""
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
    """1 + x/(a + 1) + ..., all terms of which are positive."""
    return _summed(torch.ones_like(a), lambda k, term: term * (x / (a + k)))


def _alternating(a: Any, x: Any) -> Any:
    """The sum of (-x)^k / (k! (a + k)) from 1 on, for x < 2."""
    power = -x

    def following(k: int, term: Any) -> Any:
        nonlocal power
        power = power * (x / -(k + 1))
        return power / (a + (k + 1))

    return _summed(-x / (a + 1), following)


def _fraction(a: Any, x: Any) -> Any:
    """The continued fraction's inverse by Lentz's algorithm."""
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
    """P or Q of 0 < a <= LARGEST and 0 < x, one-dimensional, in float64 components.

    `spare` says whether there are 53 bits more than the result has.
    """
    power = a * torch.log(x) - _log_gamma(a)
    scale = torch.exp(power - x)
    out = torch.zeros_like(a)
    # Next to 0 the fraction takes hundreds of steps; up to 8 sums lose 26 bits of those to spare.
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
    """Of expansions of one shape and format."""
    refuse_float32("torch.special.gammainc", format_of(x.dtype), x.device)
    first, second = a.components[0], x.components[0]
    good = (first > 0) & (second > 0) & first.isfinite() & second.isfinite()
    if bool((good & (first > LARGEST)).any()):
        raise UnsupportedError(
            "torch.special.gammainc and gammaincc of mcf.MCFTensor have a first argument up to "
            f"2**20, got {float(first[good].max())}"
        )
    terms = _terms(x)
    b, y = (v[good].to(torch.float64, terms=terms) for v in (a, x))
    spare = FP64.p * (terms - 1) >= format_of(x.dtype).p * x.terms
    found = _computed(b, y, upper, spare).to(x.dtype, terms=x.terms)
    # As torch: 0 and infinities one after the other.
    zero = torch.where(second == 0, 0.0, torch.where(second.isinf(), 1.0, torch.nan))
    zero = torch.where(first.isinf(), torch.where(second.isinf(), torch.nan, 0.0), zero)
    zero = torch.where(first == 0, torch.where(second > 0, 1.0, torch.nan), zero)
    unknown = (first < 0) | (second < 0) | first.isnan() | second.isnan()
    zero = torch.where(unknown, torch.nan, zero)
    out: Any = torch.where(good, torch.zeros_like(x), (1 - zero if upper else zero).to(x.dtype))
    out[good] = found
    return out


def _density(a: Any, x: Any) -> Any:
    """The derivative of P by x: x^(a - 1) e^-x / Gamma(a)."""
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
