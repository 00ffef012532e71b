"""Implement activations; derivatives of smooth ones have small relative errors near their zeros.

silu, mish and gelu have a minimum x0 < 0. With d = x - x0 their derivatives for x < 0 are products
of positive factors and of sums whose terms all have the sign of d:

    silu'  = s t (d + e^x0 (e^d - 1)),  s = sigmoid(x), t = sigmoid(-x)
    mish'  = e^x w / (2 + 2 e^x + e^2x)^2,  w = d (4 + 4 e^x) + (4 x0 + 6) e^x0 (e^d - 1)
             + 4 e^2x0 (e^2d - 1) + e^3x0 (e^3d - 1)
    gelu'  = s t (e^z0 (e^(z - z0) - 1) + r d (1 + 3 a (x^2 + x x0 + x0^2))),  approximate="tanh",
             s and t of z = r (x + a x^3), z - z0 = r d (1 + a (x^2 + x x0 + x0^2))

The exact gelu' is `mcf.elementary.gelu_forms.gelu_1`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.series import power_series
from mcf.expansions.dispatch.recorded import kept, recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.launch.fused_formulas import composed
from mcf.expansions.ops.arithmetic.constants import constant, difference, in_format
from mcf.expansions.ops.elementary.elementary import computed, differentiable, of
from mcf.expansions.ops.forms.natives import of_first
from mcf.expansions.ops.random.draws import uniform
from mcf.expansions.ops.shape.movement import where
from mcf.kernels.operators import LT, MUL, WHERE

aten = torch.ops.aten


# Zeros of the derivatives of silu, mish and gelu (approximate="tanh"), which are those of
# 1 + x + e^x, 4 (x + 1) + (4 x + 6) e^x + 4 e^2x + e^3x, and 1 + e^z + x z', to 160 decimals: more
# than twice those of four float64 components, since differences from them may cancel.
_SILU_ZERO = Fraction(
    "-1.2784645427610737951093587390229801554394774886197457654531781055350293754599498981920498428"
    "112994285870238739722706340630290176715962206848019293648240042682591"
)
_MISH_ZERO = Fraction(
    "-1.1924312145154952121375883404207394056006864093225293145516582607802921382908171310201102864"
    "296776377230048293833341003953285973244883120710662547382995514597077"
)
_GELU_TANH_ZERO = Fraction(
    "-0.7524614220710162584879544432889160906053921780376292706417733926836925223675980102654847291"
    "632757689343138985470436969208608005225317253723308918475864171942972"
)


def _exp(x: Fraction) -> Fraction:
    """Return e^x for -5 <= x <= 0."""
    return fixed.to_fraction(fixed.exp(fixed.to_fixed(x / 8))) ** 8


def _rounded(x: Fraction) -> Fraction:
    return fixed.to_fraction(fixed.to_fixed(x))


def activation(
    *names: Any, in_place: Any = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an activation, which also takes `inplace` then.

    Args:
        *names: PyTorch's functions and operators.
        in_place: PyTorch's function that writes the result to the input, or None.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(input: Any, *args: Any, inplace: bool = False, **named: Any) -> Any:
            out = function(kept(input, inplace), *args, **named)
            return input.copy_(out) if inplace else out

        own = inspect.signature(function)
        more = inspect.Parameter("inplace", inspect.Parameter.KEYWORD_ONLY, default=False)
        call.__signature__ = own.replace(parameters=[*own.parameters.values(), more])  # type: ignore[attr-defined]
        implements(*names)(call)
        if in_place is not None:
            implements(in_place)(functools.partial(call, inplace=True))
        return call

    return register


def _silu_slope_of(x: Any) -> Any:
    s, t, zero = torch.sigmoid(x), torch.sigmoid(-x), _SILU_ZERO
    d = difference(torch.where(x > 0, torch.zeros_like(x), x), zero)
    below = t * (d + in_format(-1 - zero, x) * torch.expm1(d))
    return s * torch.where(x > 0, 1 + x * t, below)


_silu_slope: Any = differentiable(
    "silu_1",
    _silu_slope_of,
    lambda x: torch.sigmoid(x) * torch.sigmoid(-x) * (2 - x * torch.tanh(x / 2)),
)
activation(F.silu)(differentiable("silu", lambda x: x * x.sigmoid(), lambda x: _silu_slope(x)))


def _softplus_of(z: Any) -> Any:
    return z.clamp_min(0) + (-z.abs()).exp().log1p()


# PyTorch's second derivative is 0 beyond its threshold.
_softplus = differentiable("softplus", _softplus_of, lambda z: torch.sigmoid(z))


@implements(F.softplus)
def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """Return log(1 + exp(beta x)) / beta; `threshold` is ignored, no approximation is needed."""
    return _softplus(input * beta) / beta


implements(F.logsigmoid)(lambda input: -_softplus(-input))


@implements(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(sigmoid(x)), and PyTorch's buffer, which is empty."""
    return -_softplus_of(-x), x.new_empty((0,))


@implements(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """Return grad sigmoid(-x)."""
    return grad * (-x).sigmoid()


def _gelu_curve(x: Any) -> Any:
    """Return (2 - x^2) times the normal density."""
    root = fixed.to_fraction(fixed.root(2 * fixed.ONE))
    return -(of.normal_pdf(x) * (difference(x, root) * difference(x, -root)))


_gelu_slope: Any = differentiable("gelu_1", computed("gelu_1"), _gelu_curve)
_gelu = differentiable("gelu", computed("gelu"), lambda x: _gelu_slope(x))

_CUBE = Fraction(44715, 1000000)


@functools.cache
def _tanh_root() -> Fraction:
    """Return 2 sqrt(2 / pi)."""
    return fixed.to_fraction(fixed.root(fixed.quotient(8 * fixed.ONE, fixed.pi())))


def _cubic(x: Any, factor: Any) -> Any:
    return x + factor * (x * x * x)


# For larger |x| the derivative is 1 or 0 in every format. The cube must be in float16's range.
_GELU_TANH_END = 32.0


def _gelu_tanh_slope_of(x: Any) -> Any:
    """Return s + x s t z'; for x < 0 by the module's formula, with s = gelu(x) / x."""
    x = x.clamp(-_GELU_TANH_END, _GELU_TANH_END)
    root, up = constant(fixed.to_fixed(_tanh_root()), x), x > 0
    z = root * _cubic(x, _CUBE)
    s, t = torch.sigmoid(z), torch.sigmoid(-z)
    above = s + x * (s * t) * (root * (1 + 3 * _CUBE * (x * x)))
    low, zero = torch.where(up, -torch.ones_like(x), x), _GELU_TANH_ZERO
    d, at = difference(low, zero), in_format(zero, x)
    q = low * low + low * at + in_format(zero**2, x)
    one, three = root * (d * (1 + _CUBE * q)), root * (d * (1 + 3 * _CUBE * q))
    growth = in_format(_exp(_rounded(_tanh_root() * _cubic(zero, _CUBE))), x)
    # At x = -0 the logistic function is 1/2.
    flat = low == 0
    share = torch.where(flat, s, _gelu_tanh(low) / torch.where(flat, -torch.ones_like(x), low))
    return torch.where(up, above, share * t * (growth * torch.expm1(one) + three))


def _gelu_tanh_curve(x: Any) -> Any:
    """Return s t (2 z' + x z'' - x z'^2 tanh(z / 2)); its terms may cancel."""
    x = x.clamp(-_GELU_TANH_END, _GELU_TANH_END)
    root = constant(fixed.to_fixed(_tanh_root()), x)
    z, square = root * _cubic(x, _CUBE), x * x
    first = root * (1 + 3 * _CUBE * square)
    rest = 2 * first + root * (6 * _CUBE * square) - x * (first * first) * torch.tanh(z / 2)
    return torch.sigmoid(z) * torch.sigmoid(-z) * rest


_gelu_tanh_slope = differentiable("gelu_tanh_1", _gelu_tanh_slope_of, _gelu_tanh_curve)
_gelu_tanh: Any = differentiable("gelu_tanh", computed("gelu_tanh"), lambda x: _gelu_tanh_slope(x))


@implements(F.gelu)
def gelu(input: Any, *, approximate: str = "none") -> Any:
    """Return x Phi(x), or the tanh approximation; the constants have all components."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return _gelu(input) if approximate == "none" else _gelu_tanh(input)


def _mish_of(x: Any) -> Any:
    return x * torch.tanh(F.softplus(x))


def _mish_slope_of(x: Any) -> Any:
    zero, nothing = _MISH_ZERO, torch.zeros_like(x)
    at = _exp(zero)
    low = torch.where(x > 0, nothing, x)
    d, e = difference(low, zero), torch.exp(low)
    weight = d * (4 + 4 * e)
    for k, c in enumerate(((4 * zero + 6) * at, 4 * at**2, at**3), 1):
        weight = weight + in_format(_rounded(c), x) * torch.expm1(k * d)
    below = e * weight / (2 + 2 * e + e * e).square()
    tangent, square = _tangent(x)
    return torch.where(x > 0, tangent + torch.where(x > 0, x, 0) * (square * x.sigmoid()), below)


def _tangent(x: Any) -> tuple[Any, Any]:
    """Return T = tanh(log(1 + e^x)) and 1 - T^2, without cancellation or overflow."""
    up = x > 0
    e = torch.exp(torch.where(up, -x, x))
    plus = 1 + 2 * e
    # (2 e^x + e^2x) / (2 + 2 e^x + e^2x), with both divided by e^2x where x > 0.
    whole = torch.where(up, plus + 2 * (e * e), 2 + 2 * e + e * e)
    root = torch.where(up, 2 * (e * (1 + e)), 2 * (1 + e)) / whole
    return torch.where(up, plus, e * (2 + e)) / whole, root * root


def _mish_curve(x: Any) -> Any:
    """Return (1 - T^2) s (2 + x (t - 2 T s)) with s = sigmoid(x) and t = sigmoid(-x)."""
    (tangent, square), s = _tangent(x), torch.sigmoid(x)
    return square * s * (2 + x * (torch.sigmoid(-x) - 2 * (tangent * s)))


_mish_slope = differentiable("mish_1", _mish_slope_of, _mish_curve)
activation(F.mish)(differentiable("mish", _mish_of, lambda x: _mish_slope(x)))


def _tanhshrink_of(x: Any) -> Any:
    """Return x - tanh(x); near 0 as (x cosh(x) - sinh(x)) / cosh(x), by a series of one sign."""
    near = x.abs() < 0.25
    low = torch.where(near, x, 0)
    square = low * low
    series = power_series(
        square, lambda k: Fraction(2 * k + 2, math.factorial(2 * k + 3)), Fraction(1, 16)
    )
    below = low * (square * series) / low.cosh()
    return torch.where(near, below, x - torch.tanh(x))


implements(F.softsign)(
    differentiable("softsign", lambda x: x / (x.abs() + 1), lambda x: (1 + x.abs()) ** -2)
)
implements(F.tanhshrink)(
    differentiable("tanhshrink", _tanhshrink_of, lambda x: torch.tanh(x).square())
)


# Constants with fixed point mean 0 and variance 1, to more digits than four float64 components
# have; Klambauer et al. 2017, arXiv:1706.02515, eq. 14.
_SELU_ALPHA = Fraction(
    "1.67326324235437728481704299167165203846115534828121627091524483424858611591"
)

_SELU_SCALE = Fraction(
    "1.0507009873554804934193349852946063519589812043764045469778783878019946204"
)
# The float64 constants that PyTorch passes to `elu` when it decomposes `selu`.
_SELU_DOUBLES = (float(_SELU_ALPHA), float(_SELU_SCALE))


def _factors(alpha: Any, scale: Any, like: Any) -> tuple[Any, Any, Any]:
    """Return alpha, scale and their product (or None); those of selu with all components."""
    if (alpha, scale) == _SELU_DOUBLES:
        both = (_SELU_ALPHA, _SELU_SCALE, _SELU_ALPHA * _SELU_SCALE)
        return tuple(in_format(v, like) for v in both)
    return alpha, scale, None


@implements(aten.elu.default)
def elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    """Return scale x where positive, else scale alpha (exp(input_scale x) - 1)."""
    alpha, scale, _ = _factors(alpha, scale, x)
    out: Tensor = where(x > 0, x, (x * input_scale).clamp_max(0).expm1() * alpha) * scale
    return out


@implements(aten.elu_backward.default)
def elu_backward(
    grad: Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Tensor
) -> Tensor:
    """Return grad times the derivative of elu; x is the input, or the result if `is_result`."""
    alpha, scale, product = _factors(alpha, scale, x)
    if is_result:
        low = (x + (scale * alpha if product is None else product)) * input_scale
    else:
        low = (x * input_scale).clamp_max(0).exp() * alpha * scale * input_scale
    out: Tensor = grad * where(x > 0, scale, low)
    return out


@implements(aten.leaky_relu.default)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where positive, else slope x."""
    return composed(_chosen_of_leaky, x, negative_slope)  # type: ignore[no-any-return]


def _chosen_of_leaky(o: Any, x: Any, slope: Any) -> Any:
    return o(WHERE, o(LT, 0, x), x, o(MUL, x, slope))


@implements(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, is_result: bool) -> Tensor:
    """Return the gradient, times the slope where x is not positive."""
    return where(x > 0, grad, grad * negative_slope)


@activation(F.hardtanh)
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Clamp the input; the derivative is 0 at the ends too."""
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val, got {min_val} and {max_val}")
    if not recorded(input):
        return input.clamp(min_val, max_val)
    inside = (input > min_val) & (input < max_val)
    return torch.where(inside | input.isnan(), input, input.detach().clamp(min_val, max_val))


activation(F.relu6)(lambda input: hardtanh(input, 0.0, 6.0))
activation(F.hardsigmoid)(lambda input: hardtanh(input + 3, 0.0, 6.0) / 6)


@activation(F.hardswish)
def hardswish(input: Any) -> Any:
    """Return x hardsigmoid(x)."""
    # NaN counts as inside and propagates.
    outside = (input <= -3) | (input >= 3)
    inner = torch.where(outside, 0, input)
    return torch.where(outside, torch.where(input >= 3, input, 0), inner * (inner + 3) / 6)


@implements(F.hardshrink, Tensor.hardshrink, torch.hardshrink)
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """Return the input, or 0 where |input| <= lambd."""
    return torch.where(input.abs() <= lambd, 0, input)


@implements(F.softshrink)
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """Move the input towards 0 by lambd; return 0 where |input| <= lambd."""
    # 0 * size propagates NaN.
    low = torch.where(input.abs() <= lambd, 0, input)
    size = in_format(lambd, input)
    return low - torch.where(low > 0, size, torch.where(low < 0, -size, 0 * size))


@activation(F.threshold, torch.threshold, aten.threshold.default)
def threshold(input: Any, threshold: float, value: float) -> Any:
    """Return the input where it exceeds the threshold, else `value`."""
    return torch.where(input <= threshold, value, input)


@activation(F.celu, torch.celu, in_place=torch.celu_)
def celu(input: Any, alpha: float = 1.0) -> Any:
    """Return the input where positive, else alpha (exp(x / alpha) - 1)."""
    low = torch.expm1(torch.where(input > 0, 0, input) / alpha) * alpha
    return torch.where(input > 0, input, low)


@activation(F.selu, torch.selu, in_place=torch.selu_)
def selu(input: Any) -> Any:
    """Return scale x where positive, else scale alpha (exp(x) - 1)."""
    below: Any = torch.expm1(torch.where(input > 0, 0, input))
    out: Any = torch.where(input > 0, input, below * _SELU_ALPHA)
    return out * _SELU_SCALE


@activation(torch.rrelu, F.rrelu, in_place=torch.rrelu_)
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Return x if positive, else x times a slope: random in training, else (lower + upper) / 2."""
    low, high = Fraction(lower), Fraction(upper)
    if low > high:
        raise RuntimeError(f"rrelu: lower must be at most upper, got {lower} and {upper}")
    slope: Any = (low + high) / 2
    if training:
        drawn: Any = uniform(input.detach(), generator)
        slope = drawn * (high - low) + low
    return torch.where(input > 0, input, input * slope)


@implements(F.glu)
def glu(input: Any, dim: int = -1) -> Any:
    """Return the first half of a dimension times the logistic function of the second."""
    if input.shape[dim] % 2:
        raise RuntimeError(f"glu: dimension {dim} must be even, got {input.shape[dim]}")
    first, second = roomy(input).chunk(2, dim)
    return fitted(first * torch.sigmoid(second), input)


@implements(F.prelu, Tensor.prelu, torch.prelu, aten._prelu_kernel.default)
def prelu(input: Any, weight: Any) -> Any:
    """Return the input where positive, else the input times its channel's weight."""
    if weight.numel() == 1:
        # A single weight must not add a dimension to a zero-dimensional input.
        weight = weight.reshape([1] * input.dim())
    elif weight.dim() == 1 and input.dim() > 1:
        weight = weight.reshape(-1, *(1 for _ in range(input.dim() - 2)))
    return torch.where(input > 0, input, input * weight)


for _name in ("silu", "softplus", "gelu", "mish", "hardtanh"):
    _forward, _backward = (getattr(aten, f"{_name}{form}").default for form in ("", "_backward"))
    of_first(_forward, _backward, getattr(F, _name), by_element=True)
