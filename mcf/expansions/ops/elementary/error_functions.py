"""Implement `erfcx`, `log_ndtr`, `erfinv` and `ndtri`, with derivatives."""

from __future__ import annotations

from typing import Any

import torch

from mcf.elementary import error_slopes, fixed
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.elementary.constants import constant
from mcf.expansions.ops.elementary.elementary import (
    Derivative,
    computed,
    differentiable,
    normal_cdf,
    normal_pdf,
)

aten = torch.ops.aten


def _special(name: str, derivative: Derivative) -> Any:
    """Register a torch.special function of the same name in `mcf.elementary`."""
    function = computed(name)
    ours = differentiable(name, function, derivative)
    implements(getattr(torch.special, name))(ours)
    implements(getattr(aten, f"special_{name}").default)(function)
    return ours


def _root(numerator: int, denominator: int) -> int:
    return fixed.root(fixed.quotient(numerator, denominator))


def _slope(m: int) -> Any:
    """Return the m-th derivative of erfcx; for the last one f' = 2 x f + 2 m f_(m-1)."""
    following: Any
    if m < error_slopes.LAST:
        following = lambda x: _slopes[m + 1](x)  # noqa: E731
    else:
        following = lambda x: 2 * x * _slopes[m](x) + 2 * m * _slopes[m - 1](x)  # noqa: E731
    name = f"erfcx_{m}"
    return differentiable(name, computed(name, error_slopes.slope(m)), following)


_slopes: dict[int, Any] = {m: _slope(m) for m in range(1, error_slopes.LAST + 1)}
_erfcx: Any = _special("erfcx", lambda x: _slopes[1](x))


def _sides(x: Any) -> tuple[Any, Any, Any]:
    """Return x > 0, max(x, 0) and sqrt(1/2) max(-x, 0)."""
    up, zero = x > 0, torch.zeros_like(x)
    below = torch.where(up, zero, -x) * constant(fixed.root(fixed.ONE // 2), x)
    return up, torch.where(up, x, zero), below


# Beyond -_FAR the term 2 / x^4 is below the last bit of four float64 components.
_FAR = 2.0**54


def _ratio(x: Any) -> Any:
    """Return r(x), the normal density divided by the distribution function.

    For x <= 0 it is sqrt(2 / pi) / erfcx(-x / sqrt(2)), free of exponentials. For x > 0 that would
    amplify the error of x / sqrt(2) by x^2, so the quotient is used.
    """
    up, a, z = _sides(x)
    beside = constant(_root(2 * fixed.ONE, fixed.pi()), x) / _erfcx(z)
    ratio = torch.where(up, normal_pdf(a) / normal_cdf(a), beside)
    # For large -x erfcx approaches underflow; the ratio is -x - 1 / x + 2 / x^3.
    far = x < -_FAR
    return torch.where(far, -x - 1 / torch.where(far, x, 1), ratio)


def _ratio_slope(x: Any) -> Any:
    """Return -r (x + r); for x <= 0, x + r = -erfcx'(z) / (sqrt(2) erfcx(z)) does not cancel."""
    up, a, z = _sides(x)
    share = constant(fixed.root(fixed.ONE // 2), x) * (_slopes[1](z) / _erfcx(z))
    return _log_slope(x) * torch.where(up, -(a + _log_slope(a)), share)


_log_slope: Any = differentiable("log_ndtr_1", lambda x: _ratio(x), _ratio_slope)
_special("log_ndtr", lambda x: _log_slope(x))


def _inverse_slope(x: Any) -> Any:
    """Return sqrt(pi)/2 exp(y^2), y = erfinv(|x|), as sqrt(pi)/2 erfcx(y) / (1 - |x|)."""
    size = x.abs()
    slope = _erfcx(torch.erfinv(size)) / ((1 - size) * constant(fixed.two_over_root_pi(), x))
    return torch.where(size == 1, torch.inf, slope)


_erfinv_slope: Any = differentiable(
    "erfinv_1",
    _inverse_slope,
    lambda x: 2 * torch.erfinv(x) * _erfinv_slope(x).square(),
)
_erfinv = computed("erfinv")
implements(aten.erfinv.default)(_erfinv)
implements(torch.erfinv, torch.Tensor.erfinv, torch.special.erfinv)(
    differentiable("erfinv", _erfinv, lambda x: _erfinv_slope(x))
)


def _quantile_slope(p: Any) -> Any:
    """Return sqrt(2 pi) exp(y^2 / 2) for y = ndtri(p).

    It is computed as sqrt(pi / 2) erfcx(|y| / sqrt(2)) / min(p, 1 - p), without y^2.
    """
    z = _ndtri(p).abs() * constant(fixed.root(fixed.ONE // 2), p)
    least = torch.where(p > 0.5, 1 - p, p)
    slope = constant(_root(fixed.pi(), 2 * fixed.ONE), p) * (_erfcx(z) / least)
    return torch.where(least == 0, torch.inf, slope)


_ndtri_slope: Any = differentiable(
    "ndtri_1", _quantile_slope, lambda p: _ndtri(p) * _ndtri_slope(p).square()
)
_ndtri: Any = _special("ndtri", lambda p: _ndtri_slope(p))
