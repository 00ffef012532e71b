"""The same as `mcf.tensor.shortcuts` for closeness and products of vectors, and what is written."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.elementary.fused import NO_SCALARS
from mcf.kernels import registry
from mcf.kernels.algorithms.closeness import closeness
from mcf.kernels.formats import FORMATS, FP32, FP64, INT8
from mcf.kernels.operators import ABS, ADD, EQ, LE, LT, MUL, SUB, WHERE, Operation, kernel
from mcf.tensor.chains import chained
from mcf.tensor.components import write
from mcf.tensor.fused_chains import MANY
from mcf.tensor.gathered import MOST, gathered
from mcf.tensor.recorded import watched, writable, written
from mcf.tensor.registry import DIRECT, OPERATORS
from mcf.tensor.shortcuts import TENSORS, counted, forms, register
from mcf.tensor.tensor import COMPONENTS, MCFTensor, wrap

# Powers of two near both ends of a format's range.
_FACTORS = {dtype: (2.0**fmt.emin, 2.0**fmt.emax) for dtype, fmt in FORMATS.items()}


def _close(o: Any, x: Any, y: Any, rtol: Any, atol: Any) -> Any:
    """|x - y| <= atol + rtol |y|, true where both are equal and not where the left is infinite."""
    error = o(WHERE, o(EQ, x, y), 0.0, o(ABS, o(SUB, x, y)))
    allowed = o(ADD, o(ABS, o(MUL, y, rtol)), atol)
    return o(LE, error, o(WHERE, o(LT, error, math.inf), allowed, -1.0))


def _isclose(
    input: Any = None,
    other: Any = None,
    rtol: Any = 1e-5,
    atol: Any = 1e-8,
    equal_nan: Any = False,
    **others: Any,
) -> Any:
    x, y = input, other
    if others or type(x) is not MCFTensor or type(y) is not MCFTensor or equal_nan is not False:
        return NotImplemented
    if type(rtol) is not float or type(atol) is not float:
        return NotImplemented
    if x.shape != y.shape or x.dtype is not y.dtype:
        return NotImplemented
    # Of infinities a product with 0 is NaN: neither is what the factor becomes in the format.
    least, largest = _FACTORS[x.dtype]
    if not (least <= rtol <= largest and 0 <= atol < math.inf):
        return NotImplemented
    found = _by_first(x, y, rtol, atol)
    if found is None:
        found = chained(_close, x, y, rtol, atol)
    return NotImplemented if found is None else found


def _by_first(x: MCFTensor, y: MCFTensor, rtol: float, atol: float) -> Tensor | None:
    """The same of many numbers whose first components decide most; None for others.

    That reads half of pairs and takes a tenth of the operations.
    """
    a, b = x.__dict__["_c0"], y.__dict__["_c0"]
    fmt, device = FORMATS[a.dtype], a.device
    if a.numel() < MANY or device.type != "cpu" or fmt not in (FP64, FP32) or watched():
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
        codes.view(-1)[left] = torch.isclose(some, others, rtol, atol).to(torch.int8)
    return codes.view(torch.bool)


_UNIFORM = frozenset({"rtol", "atol", "margin", "least"})
_CLOSENESS = Operation(
    "closeness",
    ("x", "y", "rtol", "atol", "margin", "least"),
    (closeness,),
    results=1,
    result=INT8,
)


# Truth values up to which Python looks at them in less time than torch.
_FEW = 16


def _all(truths: Tensor) -> bool:
    if truths.ndim == 1 and len(truths) <= _FEW:
        return all(truths.tolist())
    return bool(truths.all())


def _allclose(*args: Any, **kwargs: Any) -> Any:
    found = _isclose(*args, **kwargs)
    return found if found is NotImplemented else _all(found)


def _equal(x: Any, y: Any) -> Any:
    """Whether shapes and all values are equal."""
    return False if x.shape != y.shape else _all(OPERATORS[torch.ops.aten.eq.Tensor](x, y))


register(_isclose, *forms("isclose"))
register(_allclose, *forms("allclose"))
register(counted(_equal, 2, kinds=TENSORS), *forms("equal"))

# a x b = (a1 b2 - a2 b1, a2 b0 - a0 b2, a0 b1 - a1 b0).
_ONE, _OTHER = (1, 2, 0), (2, 0, 1)


def _difference_of_products(o: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return o(SUB, o(MUL, a, b), o(MUL, c, d))


def _cross(input: Any = None, other: Any = None, *, dim: Any = -1, **others: Any) -> Any:
    """The vector product of few vectors of three numbers."""
    a, b = input, other
    if others or type(a) is not MCFTensor or type(b) is not MCFTensor:
        return NotImplemented
    if type(dim) not in (int, type(None)):
        return NotImplemented
    size = a.shape
    if size != b.shape or size.numel() > MOST:
        return NotImplemented
    if dim is None:
        # By its old name: the first dimension of three.
        dim = next((d for d, s in enumerate(size) if s == 3), -1)
    if not -len(size) <= dim < len(size) or size[dim] != 3:
        return NotImplemented

    def places() -> Any:
        number = np.arange(size.numel()).reshape(size)
        one, other = number.take(_ONE, dim), number.take(_OTHER, dim)
        return [(0, one), (1, other), (0, other), (1, one)]

    found = gathered(("cross", size, dim), _difference_of_products, places, a, b)
    return NotImplemented if found is None else found


DIRECT[torch.linalg.cross] = _cross


def _old_cross(input: Any = None, other: Any = None, dim: Any = None, **others: Any) -> Any:
    return _cross(input, other, dim=dim, **others)


for _function in forms("cross"):
    DIRECT[_function] = _old_cross


@functools.lru_cache(256)
def _number(value: float, sign: float, dtype: torch.dtype, terms: int) -> tuple[Tensor, ...]:
    """The components of a number; equal ones have equal components, but for the sign of zero."""
    with torch.inference_mode(False):
        return tuple(
            torch.tensor(v, dtype=dtype, device="cpu") for v in _parts(value, dtype, terms)
        )


def _parts(value: float, dtype: torch.dtype, terms: int) -> tuple[float, ...]:
    return components_of(value, FORMATS[dtype], terms)


def _fill(x: Any, value: Any) -> Any:
    """x.fill_ of a number."""
    if type(x) is not MCFTensor or type(value) not in (int, float) or not writable(x):
        return NotImplemented
    own = x.__dict__
    parts = COMPONENTS[own["_terms"]](own)
    # Torch's scalars have 64 bits.
    if type(parts[0]) is not Tensor or (type(value) is int and abs(value) >= 2**63):
        return NotImplemented
    dtype, terms = parts[0].dtype, len(parts)
    if parts[0].is_cpu:
        write(parts, _number(value, math.copysign(1.0, value), dtype, terms))
    else:
        for c, v in zip(parts, _parts(value, dtype, terms), strict=True):
            c.fill_(v)
    written(x)
    return x


def _copy(x: Any, other: Any = None, non_blocking: Any = False, **others: Any) -> Any:
    """x.copy_ of an expansion of its format and shape."""
    source = other
    if others or non_blocking is not False:
        return NotImplemented
    if type(x) is not MCFTensor or type(source) is not MCFTensor:
        return NotImplemented
    own, given = x.__dict__, source.__dict__
    terms, first, second = own["_terms"], own["_c0"], given["_c0"]
    if type(first) is not Tensor or type(second) is not Tensor or given["_terms"] != terms:
        return NotImplemented
    if first.dtype is not second.dtype or first.shape != second.shape or not writable(x):
        return NotImplemented
    write(COMPONENTS[terms](own), COMPONENTS[terms](given))
    written(x)
    return x


DIRECT[Tensor.fill_], DIRECT[Tensor.copy_] = _fill, _copy
