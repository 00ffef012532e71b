"""Implement comparisons by value, `isclose`, and selections such as maximum and clamp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.fused import NO_SCALARS
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.fused_formulas import MANY, composed
from mcf.expansions.launch.operations import compared, selected
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, MCFTensor, fresh, wrap
from mcf.kernels import registry
from mcf.kernels.algorithms.order import closeness
from mcf.kernels.formats import FORMATS, FP32, FP64, INT8
from mcf.kernels.operators import (
    ABS,
    ADD,
    CLAMP,
    EQ,
    FMAX,
    FMIN,
    LE,
    LT,
    MAXIMUM,
    MINIMUM,
    MUL,
    NE,
    SUB,
    WHERE,
    Operation,
    kernel,
)

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


# Powers of two near both ends of a format's range.
_FACTORS = {dtype: (2.0**fmt.emin, 2.0**fmt.emax) for dtype, fmt in FORMATS.items()}
_unasked = torch._C.DisableTorchFunctionSubclass


@implements(torch.isclose, Tensor.isclose)
def isclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Return |input - other| <= atol + rtol |other| for each element, by value."""
    if _is_one_formula(input, other, rtol, atol, equal_nan):
        with _unasked(), torch.no_grad():
            found = _by_first(input, other, rtol, atol)
            return composed(_close, input, other, rtol, atol) if found is None else found
    return forward(torch.isclose, (input, other, rtol, atol, equal_nan), {})


@implements(torch.allclose, Tensor.allclose, torch.ops.aten.allclose.default)
def allclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether `isclose` holds for all elements."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def _is_one_formula(x: Any, y: Any, rtol: Any, atol: Any, equal_nan: Any) -> bool:
    """Return whether `_close` applies and gives the same result as PyTorch's own steps."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor or equal_nan is not False:
        return False
    if type(rtol) is not float or type(atol) is not float or watched():
        return False
    if x.shape != y.shape or x.dtype is not y.dtype or torch.compiler.is_compiling():
        return False
    # A tolerance that rounds to 0 or infinity in the format gives NaN for infinite elements.
    least, largest = _FACTORS[x.dtype]
    return least <= rtol <= largest and 0 <= atol < math.inf


def _close(o: Any, x: Any, y: Any, rtol: Any, atol: Any) -> Any:
    """Return |x - y| <= atol + rtol |y|; True for equal numbers, False for an infinite gap."""
    error = o(WHERE, o(EQ, x, y), 0.0, o(ABS, o(SUB, x, y)))
    allowed = o(ADD, o(ABS, o(MUL, y, rtol)), atol)
    return o(LE, error, o(WHERE, o(LT, error, math.inf), allowed, -1.0))


def _by_first(x: MCFTensor, y: MCFTensor, rtol: float, atol: float) -> Tensor | None:
    """Return `_close` of large CPU tensors from first components, or None if unsupported.

    First components decide most elements; only the others are compared in full. For two components
    that reads half the memory and needs a tenth of the operations.
    """
    a, b = x.__dict__["_c0"], y.__dict__["_c0"]
    fmt, device = FORMATS[a.dtype], a.device
    if a.numel() < MANY or device.type != "cpu" or fmt not in (FP64, FP32):
        return None
    if type(a) is not Tensor or type(b) is not Tensor or registry.executor_for(device) != "numba":
        return None
    if not (a.is_contiguous() and b.is_contiguous()):
        return None
    spec = kernel(_CLOSENESS, fmt, 1, 1, 1, 1, 1, 1, uniform=_UNIFORM)
    margins = 2.0 ** (4 - fmt.p), 2.0 ** (fmt.emin + 2)
    numbers = [torch.tensor(v, dtype=a.dtype, device=device) for v in (rtol, atol, *margins)]
    codes = torch.empty(a.shape, dtype=torch.int8, device=device)
    registry.run(spec, [[codes, a, b, *numbers]], NO_SCALARS)
    each = codes.numpy()
    if each.max() > 1:
        left = torch.from_numpy(np.flatnonzero(each > 1))
        if left.numel() > a.numel() // 8:
            return None
        some, others = (wrap([c.reshape(-1)[left] for c in t.components]) for t in (x, y))
        codes.view(-1)[left] = isclose(some, others, rtol, atol).to(torch.int8)
    return codes.view(torch.bool)


_UNIFORM = frozenset({"rtol", "atol", "margin", "least"})
_CLOSENESS = Operation(
    "closeness",
    ("x", "y", "rtol", "atol", "margin", "least"),
    {1: closeness},
    results=1,
    result=INT8,
)
