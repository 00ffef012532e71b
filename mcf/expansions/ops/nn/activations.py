"""Implement piecewise activations; smooth ones are in `smooth_activations`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.dispatch.recorded import kept, recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.roomy import fitted, roomy
from mcf.expansions.ops.arithmetic.composed import composed
from mcf.expansions.ops.elementary.constants import in_format
from mcf.expansions.ops.shape.movement import where
from mcf.kernels.operators import LT, MUL, WHERE

aten = torch.ops.aten


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


@implements(F.hardtanh, aten.hardtanh.default)
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Clamp the input; the derivative is 0 at the ends too."""
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val, got {min_val} and {max_val}")
    if not recorded(input):
        out = input.clamp(min_val, max_val)
        return input.copy_(out) if inplace else out
    inside = (input > min_val) & (input < max_val)
    out = torch.where(inside | input.isnan(), input, input.detach().clamp(min_val, max_val))
    return input.copy_(out) if inplace else out


@implements(F.relu6)
def relu6(input: Any, inplace: bool = False) -> Any:
    """Clamp the input to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


@implements(F.hardsigmoid)
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """Return (x + 3) / 6 clamped to [0, 1]."""
    out = hardtanh(input + 3, 0.0, 6.0) / 6
    return input.copy_(out) if inplace else out


@implements(F.hardswish)
def hardswish(input: Any, inplace: bool = False) -> Any:
    """Return x hardsigmoid(x)."""
    # NaN counts as inside and propagates.
    x = kept(input, inplace)
    outside = (x <= -3) | (x >= 3)
    inner = torch.where(outside, 0, x)
    out = torch.where(outside, torch.where(x >= 3, x, 0), inner * (inner + 3) / 6)
    return input.copy_(out) if inplace else out


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


@implements(F.threshold, torch.threshold, aten.threshold.default)
def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """Return the input where it exceeds the threshold, else `value`."""
    out = torch.where(input <= threshold, value, input)
    return input.copy_(out) if inplace else out


@implements(F.celu, torch.celu)
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return the input where positive, else alpha (exp(x / alpha) - 1)."""
    low = torch.expm1(torch.where(input > 0, 0, input) / alpha) * alpha
    out = torch.where(input > 0, input, low)
    return input.copy_(out) if inplace else out


@implements(F.selu, torch.selu)
def selu(input: Any, inplace: bool = False) -> Any:
    """Return scale x where positive, else scale alpha (exp(x) - 1)."""
    below: Any = torch.expm1(torch.where(input > 0, 0, input))
    out: Any = torch.where(input > 0, input, below * _SELU_ALPHA)
    return input.copy_(out * _SELU_SCALE) if inplace else out * _SELU_SCALE


@implements(torch.celu_)
def celu_(input: Any, alpha: float = 1.0) -> Any:
    """Apply `celu` in place."""
    return celu(input, alpha, inplace=True)


@implements(torch.selu_)
def selu_(input: Any) -> Any:
    """Apply `selu` in place."""
    return selu(input, True)


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
