"""Implement functions composed of others: angles, sinc, xlogy, entr, logit, mvlgamma, polynomials.

Orthogonal polynomials are evaluated by recurrences: from p_0 = 1 and p_{-1} = 0,
p_{k+1} = (a_k x + b_k) p_k - c_k p_{k-1} (Abramowitz and Stegun 1964, table 22.7). The recurrences
run upwards, which is stable where the polynomials oscillate and where they grow.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.series import spherical_weight
from mcf.expansions.conversion import promote
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import DERIVATIVES
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import constant, difference, in_format
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.expansions.ops.forms.natives import valued
from mcf.expansions.tensor import MCFTensor

aten = torch.ops.aten


@implements(torch.deg2rad, Tensor.deg2rad, aten.deg2rad.default)
def deg2rad(x: Any) -> Any:
    """Return x pi / 180."""
    wide = roomy(x)
    return fitted(wide * constant(fixed.pi() // 180, wide), x)


@implements(torch.rad2deg, Tensor.rad2deg, aten.rad2deg.default)
def rad2deg(x: Any) -> Any:
    """Return 180 x / pi."""
    wide = roomy(x)
    return fitted(wide * constant(180 * fixed.quotient(fixed.ONE, fixed.pi()), wide), x)


@implements(torch.angle, Tensor.angle, aten.angle.default)
def angle(x: Any) -> Any:
    """Return pi for negative x, else 0; NaN for NaN."""
    flat = torch.where(x < 0, constant(fixed.pi(), x), 0)
    return torch.where(x.isnan(), x, flat)


def _half_turns(x: Any) -> tuple[Any, Any]:
    """Return x minus its nearest integer, and whether that integer is odd."""
    whole = x.detach().round()
    half = whole * 0.5
    # For infinity and NaN the result is False.
    odd = (half - half.round()).square() == 0.25
    return x - torch.where(x == 0, 0, whole), odd


def _sinc(x: Any) -> Any:
    zero = x == 0
    safe = torch.where(zero, 1, x)
    rest, odd = _half_turns(safe)
    pi = constant(fixed.pi(), x)
    wave = torch.sin(pi * rest) / (pi * safe)
    near_zero = torch.where(zero, 1, torch.where(odd, -wave, wave))
    return torch.where(x.isinf(), 0, near_zero)


def _sinc_weight(x: Any) -> Any:
    """Return (sinc(x) - cos(pi x)) / (pi x)^2, by a series for small x."""
    pi, near = constant(fixed.pi(), x), x.abs() < 0.25
    angle = pi * torch.where(near, x, 0)
    far = torch.where(near, 1, x)
    rest, odd = _half_turns(far)
    cosine = torch.cos(pi * rest)
    part = (_sinc(far) - torch.where(odd, -cosine, cosine)) / (pi * far) / (pi * far)
    return torch.where(near, spherical_weight(angle * angle), part)


def _sinc_slope_of(x: Any) -> Any:
    """Return (cos(pi x) - sinc(x)) / x; near 0 as -pi^2 x times the series of `_sinc_weight`."""
    pi, near = constant(fixed.pi(), x), x.abs() < 0.25
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    angle = pi * low
    rest, odd = _half_turns(far)
    cosine = torch.cos(pi * rest)
    beyond = (torch.where(odd, -cosine, cosine) - _sinc(far)) / far
    slope = torch.where(near, -(pi * pi) * (low * spherical_weight(angle * angle)), beyond)
    return torch.where(x.isinf(), 0, slope)


_sinc_slope = differentiable(
    "sinc_1",
    _sinc_slope_of,
    lambda x: (
        -constant(fixed.pi() * fixed.pi() >> fixed.BITS, x) * (_sinc_of(x) - 2 * _sinc_weight(x))
    ),
)
# sin(pi x) / (pi x); x is reduced before the product with pi.
_sinc_of: Any = differentiable("sinc", _sinc, lambda x: _sinc_slope(x))
implements(torch.sinc, Tensor.sinc, torch.special.sinc, aten.sinc.default)(_sinc_of)


def _multiple_of_log(x: Any, y: Any, log: Any, least: int) -> Any:
    """Return x log(y); 0 for x = 0 unless y is NaN. The logarithm is of numbers above `least`."""
    a, b = map(promote, _tensors(x, y))
    idle = (a == 0) & ((b <= least) | (b == torch.inf))
    return a * log(torch.where(idle, least + 1, b))


@implements(torch.xlogy, Tensor.xlogy, torch.special.xlogy, aten.xlogy.Tensor)
def xlogy(x: Any, y: Any) -> Any:
    """Return x log(y)."""
    return _multiple_of_log(x, y, torch.log, 0)


@implements(torch.special.xlog1py, aten.special_xlog1py.default)
def xlog1py(x: Any, y: Any) -> Any:
    """Return x log(1 + y)."""
    return _multiple_of_log(x, y, torch.log1p, -1)


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    like = x if isinstance(x, MCFTensor) else y

    def floats(v: Any) -> Any:
        whole = isinstance(v, Tensor) and not v.is_floating_point()
        return tensor(v, like.terms, like.dtype, v.device) if whole else in_format(v, like)

    return floats(x), floats(y)


def _entr(x: Any) -> Any:
    """Return -x log(x); 0 for x = 0, -inf for x < 0."""
    inside = x > 0
    value = -x * torch.log(torch.where(inside | x.isnan(), x, 1))
    return torch.where(x < 0, -torch.inf, torch.where(x == 0, 0, value))


def _entr_slope(x: Any) -> Any:
    """Return -log(x) - 1; near 1/e as -log(1 + e d) with d = x - 1/e."""
    d = difference(x, fixed.to_fraction(fixed.exp(-fixed.ONE)))
    near = d.abs() < 0.125
    slope = torch.log1p(torch.where(near, d, 0) * constant(fixed.exp(fixed.ONE), x))
    return -torch.where(near, slope, torch.log(torch.where(near, 1, x)) + 1)


implements(torch.special.entr, aten.special_entr.default)(
    differentiable("entr", _entr, differentiable("entr_1", _entr_slope, lambda x: -1 / x))
)


def _logit(x: Any) -> Any:
    # Near 1/2 the quotient is near 1; its difference from 1 has an exact numerator.
    middle = (x - 0.5).abs() < 0.25
    safe, outer = torch.where(middle, x, 0.5), torch.where(middle, 0.75, x)
    return torch.where(
        middle, torch.log1p((2 * safe - 1) / (1 - safe)), torch.log(outer / (1 - outer))
    )


def _logit_slope_of(x: Any) -> Any:
    return torch.where((x < 0) | (x > 1), torch.nan, 1 / (x * (1 - x)))


_logit_slope: Any = differentiable(
    "logit_1", _logit_slope_of, lambda x: (2 * x - 1) * _logit_slope(x).square()
)
_logit_of = differentiable("logit", _logit, _logit_slope)


@implements(torch.logit, Tensor.logit, torch.special.logit, aten.logit.default)
def logit(x: Any, eps: float | None = None) -> Any:
    """Return log(x / (1 - x)), with x clamped to [eps, 1 - eps] unless eps is None.

    For eps > 1/2, as in PyTorch, x becomes eps where x < eps and at most 1 - eps elsewhere.
    """
    if eps is not None:
        low = in_format(Fraction(eps), x)
        high = 1 - low
        x = torch.where(x < low, low, x.clamp(max=high)) if eps > 0.5 else x.clamp(low, high)
    return fitted(_logit_of(roomy(x)), x)


@implements(torch.mvlgamma, Tensor.mvlgamma, torch.special.multigammaln)
def mvlgamma(input: Any, p: int) -> Any:
    """Return p (p - 1) / 4 log(pi) + sum of lgamma(x - j / 2) over j < p, for x > (p - 1) / 2."""
    if p < 1:
        raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1, got {p}")
    x = input if input.is_floating_point() else input.to(torch.get_default_dtype())
    log_pi: Any = constant(fixed.log(fixed.to_fraction(fixed.pi())), x)
    total = log_pi * Fraction(p * (p - 1), 4)
    inside = x > (p - 1) / 2
    # Outside the domain the derivative is NaN too.
    outside = torch.where(inside, 0, x) * torch.nan
    for j in range(p):
        total = total + torch.lgamma(torch.where(inside, x - j / 2, outside))
    return total


# Maps k to the integers a_k d_k, b_k d_k, c_k d_k and d_k.
Recurrence = Callable[[int], tuple[int, int, int, int]]


def _chebyshev(first: int, constant: int) -> Recurrence:
    return lambda k: (2, 0, 1, 1) if k else (first, constant, 0, 1)


_RECURRENCES: dict[str, Recurrence] = {
    "chebyshev_polynomial_t": _chebyshev(1, 0),
    "chebyshev_polynomial_u": _chebyshev(2, 0),
    "chebyshev_polynomial_v": _chebyshev(2, -1),
    "chebyshev_polynomial_w": _chebyshev(2, 1),
    "hermite_polynomial_h": lambda k: (2, 0, 2 * k, 1),
    "hermite_polynomial_he": lambda k: (1, 0, k, 1),
    "laguerre_polynomial_l": lambda k: (-1, 2 * k + 1, k, k + 1),
    "legendre_polynomial_p": lambda k: (2 * k + 1, 0, k, k + 1),
}


def _orders(n: Any) -> Any:
    """Return the orders n rounded towards zero as in PyTorch: an int, or an int64 tensor."""
    if not isinstance(n, Tensor):
        return int(n)
    whole = n.detach().trunc().to(torch.int64)
    return int(whole) if whole.dim() == 0 else whole


def _next(recurrence: Recurrence, k: int, x: Any, now: Any, before: Any) -> Any:
    a, b, c, d = recurrence(k)
    rising = now * (a * x + b) if b else now * x * a
    total = rising - before * c if c else rising
    return total / d if d > 1 else total


def _evaluated(recurrence: Recurrence, x: Any, n: Any) -> Any:
    order = _orders(n)
    if isinstance(order, int):
        if order < 0:  # as in PyTorch
            return torch.zeros_like(x)
        before, now = torch.zeros_like(x), torch.ones_like(x)
        for k in range(order):
            before, now = now, _next(recurrence, k, x, now, before)
        return now
    shape = torch.broadcast_shapes(x.shape, order.shape)  # type: ignore[no-untyped-call]
    x, order = x.expand(shape), order.expand(shape)
    before, now, result = torch.zeros_like(x), torch.ones_like(x), torch.zeros_like(x)
    for k in range(int(order.max()) + 1 if order.numel() else 0):
        result = torch.where(order == k, now, result)
        before, now = now, _next(recurrence, k, x, now, before)
    return result


def _register(name: str, recurrence: Recurrence, shifted: bool) -> None:
    function = getattr(torch.special, f"shifted_{name}" if shifted else name)

    def polynomial(input: Any, n: Any) -> Any:
        x = input if isinstance(input, MCFTensor) else in_format(input, n)
        return _evaluated(recurrence, 2 * x - 1 if shifted else x, n)

    polynomial.__doc__ = f"Return {function.__name__} of order n at the first argument."
    implements(function)(polynomial)
    packet = getattr(aten, f"special_{function.__name__.removeprefix('special_')}")
    # PyTorch takes the derivative to be zero.
    for operator in (packet.default, packet.n_scalar):
        valued(operator, function, DERIVATIVES)


for _name, _recurrence in _RECURRENCES.items():
    _register(_name, _recurrence, shifted=False)
    if _name.startswith("chebyshev"):
        _register(_name, _recurrence, shifted=True)
