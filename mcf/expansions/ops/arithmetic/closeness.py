"""Implement `torch.isclose` and `torch.allclose`."""

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
from mcf.expansions.launch.fused_formulas import MANY
from mcf.expansions.ops.arithmetic.composed import composed
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import registry
from mcf.kernels.algorithms.closeness import closeness
from mcf.kernels.formats import FORMATS, FP32, FP64, INT8
from mcf.kernels.operators import ABS, ADD, EQ, LE, LT, MUL, SUB, WHERE, Operation, kernel

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
    (closeness,),
    results=1,
    result=INT8,
)
