"""Implement NumPy's ufuncs: `np.exp(x)`, `np.add(x, 1)`, `array * x`.

Each calls torch's function of the same meaning; ufuncs without one raise. No tensor is converted to
an array, which would round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import UnsupportedError
from mcf.expansions.operators import operand
from mcf.expansions.tensor import MCFTensor

# Ufuncs that are Python operators, with the names of their methods.
OPERATORS = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "truediv",
    np.floor_divide: "floordiv", np.remainder: "mod", np.power: "pow", np.matmul: "matmul",
    np.divmod: "divmod",
}  # fmt: skip
COMPARISONS = {
    np.equal: ("eq", "eq"), np.not_equal: ("ne", "ne"), np.less: ("lt", "gt"),
    np.less_equal: ("le", "ge"), np.greater: ("gt", "lt"), np.greater_equal: ("ge", "le"),
}  # fmt: skip
METHODS = {f: (f"__{name}__", f"__r{name}__") for f, name in OPERATORS.items()} | {
    f: (f"__{name}__", f"__{other}__") for f, (name, other) in COMPARISONS.items()
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(np, name): getattr(torch, name) for name in (
        "positive", "sign", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
        "square", "reciprocal", "sin", "cos", "tan", "sinh", "cosh", "tanh", "deg2rad", "rad2deg",
        "floor", "ceil", "trunc", "isfinite", "isinf", "isnan", "signbit", "frexp", "hypot",
        "maximum", "minimum", "fmax", "fmin", "fmod", "copysign", "nextafter", "logaddexp",
        "logaddexp2", "heaviside", "float_power", "logical_and", "logical_or", "logical_xor",
        "logical_not",
    )},
    np.negative: torch.neg, np.absolute: torch.abs, np.fabs: torch.abs, np.rint: torch.round,
    np.conjugate: torch.conj, np.arcsin: torch.asin, np.arccos: torch.acos, np.arctan: torch.atan,
    np.arcsinh: torch.asinh, np.arccosh: torch.acosh, np.arctanh: torch.atanh,
    np.radians: torch.deg2rad, np.degrees: torch.rad2deg, np.arctan2: torch.atan2,
    np.modf: lambda x: (torch.frac(x), torch.trunc(x)),
    # A number k has been converted to an expansion.
    np.ldexp: lambda x, k: torch.ldexp(x, k.long()),
}  # fmt: skip


def dims(x: Tensor, axis: Any) -> tuple[int, ...]:
    """Return the dimensions of NumPy's `axis`: one, several, or None for all."""
    return tuple(range(x.dim())) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def over(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a torch reduction over dimensions to NumPy's `axis`."""

    def reduce(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Any:
        return function(a, dims(a, axis), keepdims)

    return reduce


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a torch reduction over one dimension to NumPy's `axis`."""

    def reduce(x: Tensor, over: tuple[int, ...], keepdims: bool) -> Any:
        for d in sorted((int(d) % max(1, x.dim()) for d in over), reverse=True):
            x = function(x, d, keepdims)
        return x

    return reduce


REDUCED: dict[Any, Callable[..., Any]] = {
    np.add: over(torch.sum),
    np.multiply: over(_one_by_one(torch.prod)),
    np.maximum: over(torch.amax),
    np.minimum: over(torch.amin),
    np.logical_and: over(_one_by_one(torch.all)),
    np.logical_or: over(_one_by_one(torch.any)),
    np.logaddexp: over(torch.logsumexp),
}
ACCUMULATED: dict[Any, Callable[..., Any]] = {
    np.add: torch.cumsum,
    np.multiply: torch.cumprod,
    np.maximum: lambda x, axis: torch.cummax(x, axis)[0],
    np.minimum: lambda x, axis: torch.cummin(x, axis)[0],
    np.logaddexp: torch.logcumsumexp,
}
ONLY = "x.to_numpy(dtype) rounds to an array, x.numpy(object) holds exact Fractions"


def refused(name: str, why: str = "is not supported on mcf.MCFTensor") -> UnsupportedError:
    """Return the error for an unsupported NumPy function."""
    return UnsupportedError(f"numpy.{name} {why}; {ONLY}")


def _given(ufunc: Any, kwargs: dict[str, Any]) -> Any:
    """Return the expansion given as `out`, or None; refuse other options."""
    out = kwargs.pop("out", None) or (None,)
    for name, value in kwargs.items():
        usual = {"where": True, "order": "K", "subok": True, "casting": "same_kind"}.get(name)
        if value is not None and not (isinstance(value, (bool, str)) and value == usual):
            raise refused(ufunc.__name__, f"with {name}={value!r} is not supported on expansions")
    if all(o is None for o in out):
        return None
    if len(out) != 1 or not isinstance(out[0], MCFTensor):
        raise TypeError(
            f"numpy.{ufunc.__name__}: out must be an expansion tensor, got "
            f"{type(out[0]).__name__}; an array would round the result"
        )
    return out[0]


def _called(ufunc: Any, inputs: Sequence[Any]) -> Any:
    if ufunc in METHODS:
        a, b = inputs
        name, reflected = METHODS[ufunc]
        if isinstance(a, MCFTensor):
            return getattr(a, name)(b)
        return getattr(b, reflected)(a)
    like = next(x for x in inputs if isinstance(x, MCFTensor))
    given = [x if isinstance(x, Tensor) else operand(like, x) for x in inputs]
    function = FUNCTIONS.get(ufunc)
    if function is None:
        raise refused(ufunc.__name__)
    return function(*(x if isinstance(x, Tensor) else tensor(x, like.terms, like.dtype, like.device)
                      for x in given))  # fmt: skip


def _outer(ufunc: Any, a: Any, b: Any) -> Any:
    dims = b.dim() if isinstance(b, Tensor) else np.ndim(b)
    if not isinstance(a, Tensor):
        a = np.asarray(a)
    places = (..., *(None,) * dims)
    return _called(ufunc, (a[places], b))


def __array_ufunc__(self: MCFTensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Call a ufunc, or its reduction, accumulation or outer form."""
    if ufunc.signature is not None and ufunc is not np.matmul:
        raise refused(ufunc.__name__)
    if not any(isinstance(x, MCFTensor) for x in inputs):
        raise TypeError(
            f"numpy.{ufunc.__name__}: out is an expansion tensor and no argument is; use "
            "out.copy_(result)"
        )
    if method in ("reduce", "accumulate"):
        table = REDUCED if method == "reduce" else ACCUMULATED
        if ufunc not in table:
            raise refused(f"{ufunc.__name__}.{method}")
        x, *rest = inputs
        axis = kwargs.pop("axis", rest[0] if rest else 0)
        keep = {"keepdims": bool(kwargs.pop("keepdims", False))} if method == "reduce" else {}
        out = _given(ufunc, kwargs)
        result = table[ufunc](x, axis, **keep)
    elif method in ("__call__", "outer"):
        out = _given(ufunc, kwargs)
        result = _called(ufunc, inputs) if method == "__call__" else _outer(ufunc, *inputs)
    else:
        raise refused(f"{ufunc.__name__}.{method}")
    return result if out is None else out.copy_(result)


MCFTensor.__array_ufunc__ = __array_ufunc__  # type: ignore[attr-defined]
