"""Implement comparisons by value, and selections such as maximum and clamp."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.operations import compared, selected
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, MCFTensor, fresh, wrap
from mcf.kernels.operators import CLAMP, EQ, FMAX, FMIN, LE, LT, MAXIMUM, MINIMUM, NE

aten = torch.ops.aten


@implements(aten.lt.Tensor, aten.lt.Scalar)
def less(x: Any, y: Any) -> Tensor:
    """Return x < y by value."""
    return compared(LT, x, y)


@implements(aten.le.Tensor, aten.le.Scalar)
def less_equal(x: Any, y: Any) -> Tensor:
    """Return x <= y by value."""
    return compared(LE, x, y)


@implements(aten.gt.Tensor, aten.gt.Scalar)
def greater(x: Any, y: Any) -> Tensor:
    """Return x > y by value."""
    return compared(LT, y, x)


@implements(aten.ge.Tensor, aten.ge.Scalar)
def greater_equal(x: Any, y: Any) -> Tensor:
    """Return x >= y by value."""
    return compared(LE, y, x)


@implements(aten.eq.Tensor, aten.eq.Scalar)
def equal(x: Any, y: Any) -> Tensor:
    """Return x == y by value."""
    return compared(EQ, x, y)


@implements(aten.ne.Tensor, aten.ne.Scalar)
def not_equal(x: Any, y: Any) -> Tensor:
    """Return x != y by value; True if either is NaN."""
    return compared(NE, x, y)


@implements(aten.equal.default)
def all_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether shapes and all values are equal."""
    return x.shape == y.shape and bool(equal(x, y).all())


def _nan_or(x: Any, y: Any, x_wins: Tensor) -> Tensor:
    """Return x where `x_wins` or x is NaN, else y."""
    a, b = aligned(x, y)
    return where(a[0].isnan() | (x_wins & ~b[0].isnan()), wrap(a), wrap(b))


@implements(aten.maximum.default)
def maximum(x: Any, y: Any) -> Tensor:
    """Return the elementwise maximum; NaN if either operand is NaN."""
    found = selected(MAXIMUM, x, y)
    return _nan_or(x, y, less_equal(y, x)) if found is None else found


@implements(aten.minimum.default)
def minimum(x: Any, y: Any) -> Tensor:
    """Return the elementwise minimum; NaN if either operand is NaN."""
    found = selected(MINIMUM, x, y)
    return _nan_or(x, y, less_equal(x, y)) if found is None else found


@implements(aten.fmax.default)
def fmax(x: Any, y: Any) -> Tensor:
    """Return the elementwise maximum; the other operand if one is NaN."""
    found = selected(FMAX, x, y)
    if found is not None:
        return found
    a, b = aligned(x, y)
    return where(b[0].isnan() | less_equal(y, x), wrap(a), wrap(b))


@implements(aten.fmin.default)
def fmin(x: Any, y: Any) -> Tensor:
    """Return the elementwise minimum; the other operand if one is NaN."""
    found = selected(FMIN, x, y)
    if found is not None:
        return found
    a, b = aligned(x, y)
    return where(b[0].isnan() | less_equal(x, y), wrap(a), wrap(b))


@implements(aten.clamp.default, aten.clamp.Tensor)
def clamp(x: MCFTensor, min: Any = None, max: Any = None) -> Tensor:
    """Return min(max(x, lower), upper) by value."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    out: Tensor = x
    if min is not None and max is not None:
        found = selected(CLAMP, x, min, max)
        if found is not None:
            return found
    if min is not None:
        out = maximum(out, min)
    return out if max is None else minimum(out, max)


@implements(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x: MCFTensor, min: Any) -> Tensor:
    """Return max(x, lower)."""
    return maximum(x, min)


@implements(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: MCFTensor, max: Any) -> Tensor:
    """Return min(x, upper)."""
    return minimum(x, max)


@implements(aten.relu.default)
def relu(x: MCFTensor) -> Tensor:
    """Return x where it is positive, else 0; NaN for NaN."""
    return maximum(x, 0)


@implements(aten.threshold_backward.default)
def threshold_backward(grad: Tensor, x: Tensor, threshold: Any) -> Tensor:
    """Return the gradient where x exceeds the threshold, else 0."""
    dead = less_equal(x, threshold) if isinstance(x, MCFTensor) else x <= threshold
    return where(dead, 0, grad)


@implements(aten.nan_to_num.default)
def nan_to_num(
    x: MCFTensor, nan: float | None = None, posinf: float | None = None, neginf: Any = None
) -> Tensor:
    """Replace NaN by 0 and infinities by the format's largest numbers, or by the arguments."""
    own = x.__dict__
    first = own["_c0"]
    usual = type(first) is Tensor and first.device.type == "cpu" and first.is_contiguous()
    if usual and not watched():
        # Fast path for all-finite input: a finite sum proves it in less time than `isfinite`.
        if math.isfinite(first.sum().item()) or bool(first.isfinite().all()):
            parts = [c.clone() for c in COMPONENTS[own["_terms"]](own)]
            return fresh(parts, first.shape, first.dtype, first.device)
    top = torch.finfo(x.dtype).max
    out = where(first.isnan(), nan or 0.0, x)
    out = where(first == float("inf"), top if posinf is None else posinf, out)
    return where(first == -float("inf"), -top if neginf is None else neginf, out)


@implements(aten.is_same_size.default)
def is_same_size(x: Tensor, y: Tensor) -> bool:
    """Return whether the shapes are equal."""
    return x.shape == y.shape


@implements(aten._has_same_storage_numel.default)
def has_same_storage_numel(x: Tensor, y: Tensor) -> bool:
    """Return whether element counts agree; PyTorch calls this before it sets a tangent."""
    return x.numel() == y.numel()


@implements(torch.ops.prims.add.default)
def shape_of_sum(x: Tensor, y: Tensor) -> Tensor:
    """Return x + y; PyTorch calls this for the zero tangent of `sign`."""
    return x + y


@implements(torch.ops.prims.mul.default)
def shape_of_product(x: Tensor, y: Tensor) -> Tensor:
    """Return x * y; PyTorch calls this in forward-over-backward differentiation."""
    return x * y
