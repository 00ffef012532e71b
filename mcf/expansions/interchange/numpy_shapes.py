"""Implement NumPy's functions that move, join and split, and those that torch has too."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.expansions.interchange.numpy_functions import of_numpy
from mcf.expansions.tensor import MCFTensor

# Functions whose torch version takes NumPy's arguments in the same order, a tensor first.
_SAME: dict[str, Callable[..., Any]] = {
    "ravel": lambda a: a.reshape(-1),
    "reshape": lambda a, shape: a.reshape(shape),
    "swapaxes": lambda a, axis1, axis2: a.transpose(axis1, axis2),
    "moveaxis": lambda a, source, destination: torch.movedim(a, source, destination),
    "squeeze": lambda a, axis=None: a.squeeze() if axis is None else a.squeeze(axis),
    "broadcast_to": lambda array, shape: array.expand(shape),
    "fliplr": torch.fliplr,
    "flipud": torch.flipud,
    "rot90": lambda m, k=1, axes=(0, 1): torch.rot90(m, k, list(axes)),
    "tril": lambda m, k=0: torch.tril(m, k),
    "triu": lambda m, k=0: torch.triu(m, k),
    "diag": lambda v, k=0: torch.diag(v, k),
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: torch.diagonal(a, offset, axis1, axis2),
    "trace": lambda a, offset=0, axis1=0, axis2=1: torch.diagonal(a, offset, axis1, axis2).sum(-1),
    "copy": lambda a: a.clone(),
    "atleast_1d": torch.atleast_1d,
    "vstack": torch.vstack,
    "hstack": torch.hstack,
    "dstack": torch.dstack,
    "column_stack": torch.column_stack,
    "meshgrid": lambda *xi, indexing="xy": torch.meshgrid(*xi, indexing=indexing),
    "shape": lambda a: tuple(a.shape),
    "ndim": lambda a: a.dim(),
    "size": lambda a, axis=None: a.numel() if axis is None else a.shape[axis],
    "nonzero": lambda a: torch.nonzero(a, as_tuple=True),
    "kron": torch.kron,
    "outer": lambda a, b: torch.outer(_tensor(a).reshape(-1), _tensor(b).reshape(-1)),
    "inner": lambda a, b: torch.inner(_tensor(a), _tensor(b)),
    "vdot": lambda a, b: torch.vdot(a.reshape(-1), b.reshape(-1)),
    "cross": lambda a, b, axis=-1: torch.linalg.cross(a, b, dim=axis),
    "tensordot": lambda a, b, axes=2: torch.tensordot(a, b, axes),
    "linalg.solve": torch.linalg.solve,
    "linalg.inv": torch.linalg.inv,
    "linalg.det": torch.linalg.det,
    "linalg.slogdet": torch.linalg.slogdet,
    "linalg.cholesky": torch.linalg.cholesky,
    "linalg.qr": lambda a, mode="reduced": torch.linalg.qr(a, mode),
    "linalg.eigh": lambda a: torch.linalg.eigh(a),
    "linalg.eigvalsh": lambda a: torch.linalg.eigvalsh(a),
    "linalg.svd": lambda a, full_matrices=True: torch.linalg.svd(a, full_matrices),
    "linalg.pinv": lambda a: torch.linalg.pinv(a),
    "linalg.matrix_power": torch.linalg.matrix_power,
    "linalg.multi_dot": torch.linalg.multi_dot,
    "real": torch.real,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "sinc": torch.sinc,
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: torch.nan_to_num(
        x, nan, posinf, neginf
    ),
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "empty_like": torch.empty_like,
    "full_like": torch.full_like,
    "diff": lambda a, n=1, axis=-1: torch.diff(a, n, axis),
    "trapezoid": lambda y, x=None, dx=1.0, axis=-1: (
        torch.trapezoid(y, dx=dx, dim=axis) if x is None else torch.trapezoid(y, x, dim=axis)
    ),
}


def _positional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a torch builtin, whose arguments have other names, positional only."""

    def call(*args: Any) -> Any:
        return function(*args)

    return function if isinstance(function, FunctionType) else call


for _name, _function in _SAME.items():
    of_numpy(_name)(_positional(_function))


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(x, device="cpu")


@of_numpy("transpose", "permute_dims")
def _transpose(a: Any, axes: Any = None) -> Any:
    return a.permute(tuple(reversed(range(a.dim()))) if axes is None else tuple(axes))


@of_numpy("matrix_transpose")
def _matrix_transpose(x: Any) -> Any:
    return x.mT


@of_numpy("expand_dims")
def _expand_dims(a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    dims = a.dim() + len(axes)
    for d in sorted(k % dims for k in axes):
        a = a.unsqueeze(d)
    return a


@of_numpy("flip")
def _flip(m: Any, axis: Any = None) -> Any:
    return torch.flip(m, tuple(range(m.dim())) if axis is None else np.atleast_1d(axis).tolist())


@of_numpy("roll")
def _roll(a: Any, shift: Any, axis: Any = None) -> Any:
    return torch.roll(a, shift, axis)


@of_numpy("concatenate", "concat")
def _concatenate(arrays: Any, axis: int | None = 0) -> Any:
    if axis is None:
        return torch.cat([_tensor(a).reshape(-1) for a in arrays])
    return torch.cat([_tensor(a) for a in arrays], axis)


@of_numpy("stack")
def _stack(arrays: Any, axis: int = 0) -> Any:
    return torch.stack([_tensor(a) for a in arrays], axis)


@of_numpy("split", "array_split")
def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    cuts = indices_or_sections
    return list(torch.tensor_split(ary, cuts if isinstance(cuts, int) else list(cuts), axis))


@of_numpy("tile")
def _tile(A: Any, reps: Any) -> Any:
    return torch.tile(A, (reps,) if isinstance(reps, int) else tuple(reps))


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


@of_numpy("array_repr", "array_str", "array2string")
def _text(a: Any) -> str:
    return repr(a)


@of_numpy("result_type", "common_type", "can_cast", "min_scalar_type")
def _type(*given: Any) -> Any:
    raise TypeError(
        "expansion tensors have no NumPy type: their components are torch tensors of "
        f"{next(x.dtype for x in given if isinstance(x, MCFTensor))}"
    )


@of_numpy("iscomplexobj")
def _iscomplexobj(x: Any) -> bool:
    return False


@of_numpy("isrealobj")
def _isrealobj(x: Any) -> bool:
    return True
