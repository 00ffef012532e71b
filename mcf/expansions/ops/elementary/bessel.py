"""Implement Bessel and Airy functions and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import airy, bessel_slopes
from mcf.expansions.dispatch.recorded import transformed
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.ops.elementary.elementary import Unary, computed, differentiable
from mcf.expansions.ops.elementary.power_series import power_series
from mcf.expansions.ops.elementary.special import spherical_weight

aten = torch.ops.aten


def _over_x(name: str, one: Callable[[Any], Any], zero: Callable[[Any], Any], sign: int) -> Any:
    """Return the function f_1(x) / x of order 1, whose limit at 0 is 1/2.

    Its derivative is sign f_2(x) / x: for |x| < 1 the series sign x / 8 (1 + sign q / (1 3) + ...)
    with q = x^2 / 4, elsewhere (f_0 - 2 f_1 / x) / x.
    """

    def quotient(x: Any) -> Any:
        none = x == 0
        value = one(x) / torch.where(none, torch.ones_like(x), x)
        return torch.where(none, torch.full_like(x, 0.5), value)

    def slope(x: Any) -> Any:
        near = x.abs() < 1
        low, far = torch.where(near, x, 0), torch.where(near, 1, x)
        series = power_series(
            low * low / 4,
            lambda k: Fraction(sign ** (k + 1), 4 * math.factorial(k) * math.factorial(k + 2)),
            Fraction(1, 4),
        )
        return torch.where(near, low * series, (zero(far) - 2 * of(far)) / far)

    of: Any = differentiable(f"{name}_over_x", quotient, slope)
    return of


def _undifferentiated(torch_name: str, function: Unary) -> Unary:
    """Return a function that refuses torch.func's derivatives, which PyTorch takes to be zero."""

    def run(x: Any) -> Any:
        if transformed():
            raise UnsupportedError(
                f"torch.special.{torch_name} of an expansion tensor under torch.func.grad, vjp or "
                "jvp: there torch takes its derivative to be zero; use backward or "
                "torch.autograd.grad, which compute it"
            )
        return function(x)

    return run


def _of_order(kind: str, m: int, x: Any) -> Any:
    """Return the m-th derivative of a scaled Bessel function.

    Orders above `bessel_slopes.LAST` use the differential equation, which cancels for large x:
    |x| f^(m) + (2 |x| + m - 1) s f^(m-1) + (2 m - 3) f^(m-2) = 0 with s = sign(x). For
    exp(x) K_0(x) the terms 2 |x| and (2 m - 3) have the other sign.
    """
    if m <= bessel_slopes.LAST:
        return _slopes[kind, m](x)
    if kind == "i1e":
        return x.sign() * _of_order("i0e", m, x) + _of_order("i0e", m + 1, x)
    near, far = _of_order(kind, m - 1, x), (2 * m - 3) * _of_order(kind, m - 2, x)
    if kind == "k0e":
        return ((2 * x - (m - 1)) * near + far) / x
    return -((2 * x.abs() + (m - 1)) * x.sign() * near + far) / x.abs()


def _slope(kind: str, m: int) -> Any:
    name = f"{kind}_{m}"
    function = computed(name, bessel_slopes.slope(kind, m))
    return differentiable(name, function, lambda x: _of_order(kind, m + 1, x))


# Derivatives that would lose a factor of x per order as differences of the functions.
_slopes: dict[tuple[str, int], Any] = {
    (kind, m): _slope(kind, m)
    for kind in ("i0e", "i1e", "k0e")
    for m in range(1, bessel_slopes.LAST + 1)
}

# PyTorch's derivatives are constant for small arguments.
_i0 = differentiable("i0", computed("i0"), lambda x: torch.special.i1(x))
_i0e = differentiable("i0e", computed("i0e"), _slopes["i0e", 1])


def _i1_slope(x: Any) -> Any:
    """Return I_0(x) - I_1(x) / x; infinity if both terms are infinite."""
    value = torch.special.i0(x)
    return value - torch.where(value.isinf(), 0, _i1_over(x))


_i1 = differentiable("i1", computed("i1"), _i1_slope)
_i1_over: Any = _over_x("i1", lambda x: _i1(x), lambda x: _i0(x), 1)
_i1e = differentiable("i1e", computed("i1e"), _slopes["i1e", 1])

implements(torch.i0, Tensor.i0, torch.special.i0, torch.special.modified_bessel_i0)(_i0)
implements(torch.special.i0e)(_i0e)
implements(torch.special.i1, torch.special.modified_bessel_i1)(_i1)
implements(torch.special.i1e)(_i1e)
implements(aten.i0.default)(computed("i0"))
implements(aten.special_i0e.default)(computed("i0e"))
implements(aten.special_i1.default)(computed("i1"))
implements(aten.special_i1e.default)(computed("i1e"))
for _name in ("i0", "i1"):
    _operator = getattr(aten, f"special_modified_bessel_{_name}").default
    implements(_operator)(_undifferentiated(f"modified_bessel_{_name}", computed(_name)))


def _special(name: str, torch_name: str, derivative: Callable[[Any], Any]) -> Any:
    """Register a function that torch.special does not differentiate, with its derivative."""
    function = computed(name)
    ours = differentiable(name, function, derivative)
    implements(getattr(torch.special, torch_name))(ours)
    operator = getattr(aten, f"special_{torch_name}").default
    implements(operator)(_undifferentiated(torch_name, function))
    return ours


_k0: Any = _special("k0", "modified_bessel_k0", lambda x: -_k1(x))
_k1: Any = _special("k1", "modified_bessel_k1", lambda x: -_k0(x) - _k1(x) / x)
_k0e: Any = _special("k0e", "scaled_modified_bessel_k0", _slopes["k0e", 1])
# exp(x) K_1(x) = f(x) - f'(x) with f(x) = exp(x) K_0(x).
_k1e: Any = _special(
    "k1e", "scaled_modified_bessel_k1", lambda x: _slopes["k0e", 1](x) - _slopes["k0e", 2](x)
)


_j0: Any = _special("j0", "bessel_j0", lambda x: -_j1(x))
_j1: Any = _special("j1", "bessel_j1", lambda x: _j0(x) - _j1_over(x))
_j1_over: Any = _over_x("j1", lambda x: _j1(x), lambda x: _j0(x), -1)
_y0: Any = _special("y0", "bessel_y0", lambda x: -_y1(x))
_y1: Any = _special(
    "y1", "bessel_y1", lambda x: torch.where(x == 0, torch.inf, _y0(x) - _y1(x) / x)
)


def _weight(x: Any) -> Any:
    """Return (j_0(x) - cos(x)) / x^2, by a series for |x| < 1."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    return torch.where(near, spherical_weight(low * low), (_spherical(far) - far.cos()) / far / far)


def _spherical_slope_of(x: Any) -> Any:
    """Return -j_1(x); for |x| >= 1 as (cos(x) - j_0(x)) / x, since x^2 may overflow."""
    near = x.abs() < 1
    low, far = torch.where(near, x, 0), torch.where(near, 1, x)
    beyond = (far.cos() - _spherical(far)) / far
    return torch.where(near, -(low * spherical_weight(low * low)), beyond)


# The second derivative follows from the differential equation.
_spherical_slope = differentiable(
    "spherical_bessel_j0_1",
    _spherical_slope_of,
    lambda x: 2 * _weight(x) - _spherical(x),
)
_spherical: Any = _special("spherical_bessel_j0", "spherical_bessel_j0", _spherical_slope)


# Airy's equation: Ai''(x) = x Ai(x).
_airy_slope: Any = differentiable(
    "airy_ai_1", computed("airy_ai_1", airy.airy_ai_1), lambda x: x * _airy(x)
)
_airy: Any = _special("airy_ai", "airy_ai", _airy_slope)
