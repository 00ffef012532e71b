"""Implement NumPy's functions through `__array_function__`: `np.sum(x)`, `np.stack(x)`.

Each calls torch's functions, with NumPy's arguments, defaults and meaning, and returns tensors.
Other functions raise, since NumPy would compute them on a rounded array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from mcf.expansions.interchange import numpy_ufuncs
from mcf.expansions.operators import operand
from mcf.expansions.tensor import MCFTensor

# NumPy functions -> implementations with the same argument names.
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
Function = Callable[..., Any]


def of_numpy(*names: str) -> Callable[[Function], Function]:
    """Register an implementation of the NumPy functions that exist under these names."""

    def register(function: Function) -> Function:
        for name in names:
            module: Any = np
            for part in name.split("."):
                module = getattr(module, part, None)
            if module is not None:
                FUNCTIONS[module] = function
        return function

    return register


def _torchs(given: Any, like: MCFTensor) -> Any:
    """Convert an array to a plain tensor, or to an expansion if torch lacks the type."""
    if isinstance(given, (np.bool_, np.integer)):
        return given.item()
    return operand(like, given) if isinstance(given, np.ndarray) else given


def __array_function__(
    self: MCFTensor,
    func: Any,
    types: Sequence[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a NumPy function with an expansion tensor among its arguments."""
    name = f"{func.__module__}.{func.__name__}".removeprefix("numpy.")
    function = FUNCTIONS.get(func)
    if function is None:
        raise numpy_ufuncs.refused(name)
    kwargs = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    out = kwargs.pop("out", None)
    if out is not None and not isinstance(out, MCFTensor):
        raise TypeError(
            f"numpy.{name}: out must be an expansion tensor, got {type(out).__name__}; an array "
            "would round the result"
        )
    leaves = tree_leaves((args, kwargs))
    like = next((x for x in leaves if isinstance(x, MCFTensor)), None)
    if like is None:
        raise TypeError(f"numpy.{name}: out is an expansion tensor and no argument is")
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise numpy_ufuncs.refused(name, f"of expansions: {error}") from None
    args, kwargs = tree_map(lambda x: _torchs(x, like), (args, kwargs))
    result = function(*args, **kwargs)
    return result if out is None else out.copy_(result)


def _flat(x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    return (x.reshape(-1), 0) if axis is None else (x, axis)


def _counted(x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    found = torch.count_nonzero(x, dims)
    over = [k % x.dim() for k in dims]
    return found.reshape([1 if d in over else n for d, n in enumerate(x.shape)]) if keep else found


def _moment(function: Function) -> Function:
    def moment(
        a: Any, axis: Any = None, *, ddof: float = 0, correction: Any = None, keepdims: bool = False
    ) -> Any:
        # NumPy divides by the count, torch by one less.
        degrees = ddof if correction is None else correction
        return function(a, numpy_ufuncs.dims(a, axis), correction=degrees, keepdim=keepdims)

    return moment


def _of_rows(function: Function) -> Function:
    """Extend a torch reduction over one dimension to all elements, for an `axis` of None."""

    def reduce(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        found = function(*_flat(a, axis), keepdims)
        return found.reshape([1] * a.dim()) if axis is None and keepdims else found

    return reduce


def _quantile(function: Function) -> Function:
    def quantile(
        a: Any, q: Any, axis: int | None = None, *, method: str = "linear", keepdims: bool = False
    ) -> Any:
        x, dim = _flat(a, axis)
        q = q if isinstance(q, Tensor) else torch.tensor(q, dtype=torch.float64, device=x.device)
        found = function(x, q, dim, keepdim=keepdims, interpolation=method)
        return found.reshape(*q.shape, *[1] * a.dim()) if axis is None and keepdims else found

    return quantile


def _middle(function: Function) -> Function:
    # The mean of the two in the middle, where torch.median takes the lower one.
    return _of_rows(lambda x, dim, keep: function(x, 0.5, dim, keepdim=keep))


@of_numpy("unique")
def _unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    if return_index:
        raise numpy_ufuncs.refused("unique", "with return_index is not supported on expansions")
    return torch.unique(ar, return_inverse=return_inverse, return_counts=return_counts, dim=axis)


@of_numpy("clip")
def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    return a if low is None and high is None else torch.clamp(a, low, high)


def _device_of(*given: Any) -> torch.device:
    """Return the device of the first tensor among the arguments."""
    return next(t.device for t in given if isinstance(t, Tensor))


@of_numpy("where")
def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return torch.where(condition)
    if not isinstance(condition, Tensor):
        condition = torch.tensor(condition, device=_device_of(x, y))
    return torch.where(condition.bool(), x, y)


@of_numpy("isclose")
def _isclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    # In both NumPy and torch the relative tolerance scales the second operand.
    wide: Any = {"dtype": torch.float64, "device": _device_of(a, b)}
    a, b = (t if isinstance(t, Tensor) else torch.tensor(t, **wide) for t in (a, b))
    return torch.isclose(a, b, rtol, atol, equal_nan)


@of_numpy("allclose")
def _allclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return bool(_isclose(a, b, rtol, atol, equal_nan).all())


@of_numpy("dot")
def _dot(a: Any, b: Any) -> Any:
    if not all(isinstance(t, Tensor) and t.dim() for t in (a, b)):
        return a * b
    # Over the last dimension of a and the last but one of b.
    return torch.tensordot(a, b, ([a.dim() - 1], [max(0, b.dim() - 2)]))


# Functions of torch by NumPy's names for them, with NumPy's arguments.
_over, _reduced = numpy_ufuncs.over, numpy_ufuncs.REDUCED
_SAME: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in (
        "fliplr", "flipud", "atleast_1d", "vstack", "hstack", "dstack", "column_stack", "kron",
        "real", "isposinf", "isneginf", "sinc", "zeros_like", "ones_like", "empty_like",
        "full_like",
    )},
    **{f"linalg.{name}": getattr(torch.linalg, name) for name in (
        "solve", "inv", "det", "slogdet", "cholesky", "matrix_power", "multi_dot",
    )},
    "sum": _reduced[np.add],
    "mean": _over(torch.mean),
    "nansum": _over(torch.nansum),
    "nanmean": _over(torch.nanmean),
    "max amax": _reduced[np.maximum],
    "min amin": _reduced[np.minimum],
    "ptp": _over(lambda x, dims, keep: torch.amax(x, dims, keep) - torch.amin(x, dims, keep)),
    "prod": _reduced[np.multiply],
    "all": _reduced[np.logical_and],
    "any": _reduced[np.logical_or],
    "count_nonzero": _over(_counted),
    "var": _moment(torch.var),
    "std": _moment(torch.std),
    "argmax": _of_rows(torch.argmax),
    "argmin": _of_rows(torch.argmin),
    "quantile": _quantile(torch.quantile),
    "nanquantile": _quantile(torch.nanquantile),
    "median": _middle(torch.quantile),
    "nanmedian": _middle(torch.nanquantile),
    "cumsum": lambda a, axis=None: torch.cumsum(*_flat(a, axis)),
    "cumprod": lambda a, axis=None: torch.cumprod(*_flat(a, axis)),
    "ravel": lambda a: a.reshape(-1),
    "reshape": lambda a, shape: a.reshape(shape),
    "swapaxes": lambda a, axis1, axis2: a.transpose(axis1, axis2),
    "moveaxis": lambda a, source, destination: torch.movedim(a, source, destination),
    "squeeze": lambda a, axis=None: a.squeeze() if axis is None else a.squeeze(axis),
    "broadcast_to": lambda array, shape: array.expand(shape),
    "rot90": lambda m, k=1, axes=(0, 1): torch.rot90(m, k, list(axes)),
    "tril": lambda m, k=0: torch.tril(m, k),
    "triu": lambda m, k=0: torch.triu(m, k),
    "diag": lambda v, k=0: torch.diag(v, k),
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: torch.diagonal(a, offset, axis1, axis2),
    "trace": lambda a, offset=0, axis1=0, axis2=1: torch.diagonal(a, offset, axis1, axis2).sum(-1),
    "copy": lambda a: a.clone(),
    "meshgrid": lambda *xi, indexing="xy": torch.meshgrid(*xi, indexing=indexing),
    "shape": lambda a: tuple(a.shape),
    "ndim": lambda a: a.dim(),
    "size": lambda a, axis=None: a.numel() if axis is None else a.shape[axis],
    "nonzero": lambda a: torch.nonzero(a, as_tuple=True),
    "outer": lambda a, b: torch.outer(_tensor(a).reshape(-1), _tensor(b).reshape(-1)),
    "inner": lambda a, b: torch.inner(_tensor(a), _tensor(b)),
    "vdot": lambda a, b: torch.vdot(a.reshape(-1), b.reshape(-1)),
    "cross": lambda a, b, axis=-1: torch.linalg.cross(a, b, dim=axis),
    "tensordot": lambda a, b, axes=2: torch.tensordot(a, b, axes),
    "linalg.qr": lambda a, mode="reduced": torch.linalg.qr(a, mode),
    "linalg.eigh": lambda a: torch.linalg.eigh(a),
    "linalg.eigvalsh": lambda a: torch.linalg.eigvalsh(a),
    "linalg.svd": lambda a, full_matrices=True: torch.linalg.svd(a, full_matrices),
    "linalg.pinv": lambda a: torch.linalg.pinv(a),
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: torch.nan_to_num(
        x, nan, posinf, neginf
    ),
    "diff": lambda a, n=1, axis=-1: torch.diff(a, n, axis),
    "transpose permute_dims": lambda a, axes=None: a.permute(
        tuple(reversed(range(a.dim()))) if axes is None else tuple(axes)
    ),
    "matrix_transpose": lambda x: x.mT,
    "flip": lambda m, axis=None: torch.flip(
        m, tuple(range(m.dim())) if axis is None else np.atleast_1d(axis).tolist()
    ),
    "roll": lambda a, shift, axis=None: torch.roll(a, shift, axis),
    "stack": lambda arrays, axis=0: torch.stack([_tensor(a) for a in arrays], axis),
    "tile": lambda A, reps: torch.tile(A, (reps,) if isinstance(reps, int) else tuple(reps)),
    "sort": lambda a, axis=-1, kind=None, *, stable=None: _sorted(torch.sort, a, axis)[0],
    "argsort": lambda a, axis=-1, kind=None, *, stable=None: _sorted(torch.argsort, a, axis),
    "searchsorted": lambda a, v, side="left", sorter=None: torch.searchsorted(
        a, v, side=side, sorter=sorter
    ),
    "round around": lambda a, decimals=0: (
        torch.round(a, decimals=decimals) if decimals else torch.round(a)
    ),
    "array_equal": lambda a1, a2: tuple(a1.shape) == tuple(a2.shape) and bool((a1 == a2).all()),
    "einsum": lambda subscripts, *operands: torch.einsum(subscripts, *operands),
    "linalg.norm": lambda x, ord=None, axis=None, keepdims=False: torch.linalg.norm(
        x, ord, axis, keepdims
    ),
    "array_repr array_str array2string": lambda a: repr(a),
    "iscomplexobj": lambda x: False,
    "isrealobj": lambda x: True,
    "trapezoid": lambda y, x=None, dx=1.0, axis=-1: (
        torch.trapezoid(y, dx=dx, dim=axis) if x is None else torch.trapezoid(y, x, dim=axis)
    ),
}  # fmt: skip


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a torch builtin, whose arguments have other names, positional only."""

    def call(*args: Any) -> Any:
        return function(*args)

    return function if isinstance(function, FunctionType) else call


def _sorted(function: Function, a: Any, axis: int | None) -> Any:
    x, dim = _flat(a, axis)
    return function(x, dim=dim, stable=True)


for _names, _function in _SAME.items():
    of_numpy(*_names.split())(_positional(_function))


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(x, device="cpu")


@of_numpy("expand_dims")
def _expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    dims = a.dim() + len(axes)
    for d in sorted(k % dims for k in axes):
        a = a.unsqueeze(d)
    return a


@of_numpy("concatenate", "concat")
def _concatenate(arrays: Any, axis: int | None = 0) -> Any:
    if axis is None:
        return torch.cat([_tensor(a).reshape(-1) for a in arrays])
    return torch.cat([_tensor(a) for a in arrays], axis)


@of_numpy("split", "array_split")
def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    cuts = indices_or_sections
    return list(torch.tensor_split(ary, cuts if isinstance(cuts, int) else list(cuts), axis))


@of_numpy("repeat")
def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    if isinstance(repeats, (list, tuple)):
        repeats = torch.tensor(repeats, device=a.device)
    return torch.repeat_interleave(a, repeats, axis)


@of_numpy("take")
def _take(a: Any, indices: Any, axis: int | None = None) -> Any:
    index = _tensor(indices).long()
    if axis is None:
        return torch.take(a, index)
    found = a.index_select(axis, index.reshape(-1) % a.shape[axis])
    d = axis % a.dim()
    return found.reshape(*a.shape[:d], *index.shape, *a.shape[d + 1 :])


@of_numpy("result_type", "common_type", "can_cast", "min_scalar_type")
def _type(*given: Any) -> Any:
    raise TypeError(
        "expansion tensors have no NumPy type: their components are torch tensors of "
        f"{next(x.dtype for x in given if isinstance(x, MCFTensor))}"
    )


MCFTensor.__array_function__ = __array_function__  # type: ignore[attr-defined]
