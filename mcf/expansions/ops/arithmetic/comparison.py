"""Implement comparisons, logic, classification (`isnan`, ...), signs, and the larger of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.elementary.fused import NO_SCALARS
from mcf.expansions.dispatch.recorded import recorded, watched
from mcf.expansions.dispatch.registry import implements, overloads
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.fused_formulas import MANY, composed
from mcf.expansions.launch.operations import compared, selected
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.expansions.ops.shape.movement import where
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, broadcast, fresh, wrap
from mcf.kernels import registry
from mcf.kernels.algorithms.order import closeness
from mcf.kernels.formats import FORMATS, FP32, FP64, INT8
from mcf.kernels.operators import (
    ABS,
    ADD,
    CLAMP,
    COPYSIGN,
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
from mcf.reductions.norms import absolute

aten = torch.ops.aten
Binary = Callable[[Any, Any], Tensor]


def _comparison(name: str, operation: Operation, exchanged: bool = False) -> Binary:
    """Register a comparison by value of x and y, or of y and x if `exchanged`."""

    def compare(x: Any, y: Any) -> Tensor:
        return compared(operation, y, x) if exchanged else compared(operation, x, y)

    packet = getattr(aten, name)
    return implements(packet.Tensor, packet.Scalar)(compare)


less, less_equal = _comparison("lt", LT), _comparison("le", LE)
greater, greater_equal = _comparison("gt", LT, True), _comparison("ge", LE, True)
# Unlike the others, `not_equal` is True for NaN.
equal, not_equal = _comparison("eq", EQ), _comparison("ne", NE)


@implements(aten.equal.default)
def all_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether shapes and all values are equal."""
    return x.shape == y.shape and bool(equal(x, y).all())


def _selection(operation: Operation, largest: bool, skips_nan: bool) -> Binary:
    """Register the elementwise maximum or minimum; it skips NaN, or returns it."""

    def select(x: Any, y: Any) -> Tensor:
        found = selected(operation, x, y)
        if found is not None:
            return found
        a, b = aligned(x, y)
        first = less_equal(y, x) if largest else less_equal(x, y)
        if skips_nan:
            first = first | b[0].isnan()
        else:
            first = a[0].isnan() | (first & ~b[0].isnan())
        return where(first, wrap(a), wrap(b))

    return implements(getattr(aten, operation.name).default)(select)


maximum, minimum = _selection(MAXIMUM, True, False), _selection(MINIMUM, False, False)
fmax, fmin = _selection(FMAX, True, True), _selection(FMIN, False, True)


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


implements(aten.clamp_min.default, aten.clamp_min.Tensor)(lambda x, min: maximum(x, min))
implements(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda x, max: minimum(x, max))
implements(aten.relu.default)(lambda x: maximum(x, 0))


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


implements(aten.is_same_size.default)(lambda x, y: x.shape == y.shape)
# PyTorch calls these before it sets a tangent, for the zero tangent of `sign`, and in
# forward-over-backward differentiation.
implements(aten._has_same_storage_numel.default)(lambda x, y: x.numel() == y.numel())
implements(torch.ops.prims.add.default)(lambda x, y: x + y)
implements(torch.ops.prims.mul.default)(lambda x, y: x * y)


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


# The first component decides these; the others are smaller, or 0.
for _func in overloads(
    "isnan isinf isfinite isposinf isneginf signbit logical_not nonzero count_nonzero "
    "count_nonzero.dim_IntList nonzero_static any any.dim any.dims all all.dim all.dims"
):
    implements(_func)(lambda x, *a, func=_func, **k: func(x.components[0], *a, **k))


def _flip_sign(x: Components, negative: Tensor) -> Components:
    return tuple(torch.where(negative, -c, c) for c in x)


def _sign(x: Components) -> Components:
    first = x[0].sgn()
    return first, *(torch.zeros_like(first) for _ in x[1:])


@implements(aten.abs.default)
def magnitude(x: MCFTensor) -> MCFTensor:
    """Return |x|."""
    found = selected(ABS, x)
    return wrap(absolute(x.components)) if found is None else found


@implements(aten.sign.default, aten.sgn.default)
def sign(x: MCFTensor) -> MCFTensor:
    """Return -1, 0 or 1: the sign of the first component."""
    return wrap(_sign(x.components))


# Above autograd too, since PyTorch's derivatives are plain zeros.
implements(torch.abs, Tensor.abs, Tensor.__abs__, torch.absolute, Tensor.absolute)(
    differentiable("abs", magnitude, torch.sign)
)
implements(torch.sign, Tensor.sign, torch.sgn, Tensor.sgn)(
    differentiable("sign", sign, torch.zeros_like)
)


@implements(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: Any, y: Any) -> Tensor:
    """Return |x| with the sign of y, exact."""
    found = selected(COPYSIGN, x, y)
    if found is not None:
        return found
    a, b = aligned(x, y)
    a = broadcast(*a, b[0])[:-1]
    return wrap(_flip_sign(a, a[0].signbit() ^ b[0].signbit()))


@implements(torch.copysign, Tensor.copysign)
def copysign_of(x: Any, y: Any) -> Any:
    """Return |x| with the sign of y; the gradient of y is zero."""
    if not recorded(x) and (type(y) in _NUMBERS or (isinstance(y, Tensor) and not y.requires_grad)):
        return copysign(x, y)
    signs = y.detach() if isinstance(y, Tensor) and y.requires_grad else y
    return forward(torch.copysign, (x, signs), {})


_NUMBERS = frozenset({int, float})


def _nonzero(x: Any) -> Tensor:
    result: Tensor = x != 0
    return result


implements(aten.logical_and.default)(lambda x, y: _nonzero(x) & _nonzero(y))
implements(aten.logical_or.default)(lambda x, y: _nonzero(x) | _nonzero(y))
implements(aten.logical_xor.default)(lambda x, y: _nonzero(x) ^ _nonzero(y))


@implements(aten.heaviside.default)
def heaviside(x: Any, values: Any) -> Tensor:
    """Return 0 for x < 0, 1 for x > 0 and `values` for x = 0."""
    if x.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return composed(_step, *map(wrap, aligned(x, values)))  # type: ignore[no-any-return]


def _step(o: Any, x: Any, values: Any) -> Any:
    # Neither comparison holds for zero and NaN; NaN propagates.
    step = o(WHERE, o(LT, x, 0.0), 0.0, o(WHERE, o(LT, 0.0, x), 1.0, x))
    return o(WHERE, o(EQ, x, 0.0), values, step)
