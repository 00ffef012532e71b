"""Implement `out=` for functions with several results, and for functions composed of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mcf.expansions.dispatch.registry import INTO
from mcf.expansions.ops.forms.in_place import check_target, written
from mcf.expansions.tensor import MCFTensor


def _name(func: Any) -> str:
    name = f"torch.{func.__name__.removeprefix('_')}"
    return re.sub("^torch.(linalg|special)_", r"torch.\1.", name)


def _check(name: str, result: Tensor, target: Any) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"{name}: out must be a tensor or tensors, got {type(target).__name__}")
    expansion = isinstance(target, MCFTensor)
    if not result.dtype.is_floating_point and (expansion or target.dtype != result.dtype):
        kind = "an expansion of " if expansion else ""
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {result.dtype}, but got {kind}"
            f"{target.dtype} instead"
        )
    check_target(name, result, target)


def _check_gradients(name: str, values: Iterable[Any]) -> None:
    """Raise PyTorch's error if `out=` is used with an argument that requires grad."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in values):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )


def into(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return a variant of a function with `out=`: compute all results, then write them.

    Args:
        function: a function of PyTorch or its replacement; called above autograd.

    Returns:
        An entry of `dispatch.registry.INTO`: a function of positional and keyword arguments.
        It returns `out`; several results in the function's own result type.

    Raises:
        TypeError: if `out` is not one tensor per result.
        RuntimeError: if the device or an integer dtype differs, or an argument requires grad.
        UnsupportedError: if a plain tensor would receive an expansion. Nothing is written then.
    """

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, target = _name(function), kwargs["out"]
        rest = {k: v for k, v in kwargs.items() if k != "out"}
        _check_gradients(name, tree_leaves((target, args, rest)))
        found = function(*args, **rest)
        if not isinstance(found, tuple):
            _check(name, found, target)
            return written(name, found, target)
        if not isinstance(target, (tuple, list)) or len(target) != len(found):
            given = len(target) if isinstance(target, (tuple, list)) else type(target).__name__
            raise TypeError(f"{name}: out must be a tuple of {len(found)} tensors, got {given}")
        for result, each in zip(found, target, strict=True):
            _check(name, result, each)
        for result, each in zip(found, target, strict=True):
            written(name, result, each)
        own = type(found)
        return getattr(torch.return_types, f"{own.__name__}_out", own)(target)

    return call


_LINALG = (
    "cholesky cholesky_ex det eigh eigvalsh inv inv_ex ldl_factor ldl_factor_ex lstsq lu lu_factor "
    "lu_factor_ex matrix_norm matrix_rank norm qr slogdet solve solve_ex svd svdvals"
)
_ORDER = "aminmax argsort cummax cummin frexp kthvalue max median min mode nanmedian sort topk"
_OTHER = "geqrf inverse lu_unpack qr svd triangular_solve"
_FUNCTIONS = [getattr(torch.linalg, n) for n in _LINALG.split()] + [
    getattr(torch, n) for n in (*_ORDER.split(), *_OTHER.split()) if hasattr(torch, n)
]
# PyTorch's own compositions would give different last bits.
_COMPOSED = [torch.special.ndtr, torch.exp2, torch.special.exp2, torch.tensordot]
INTO.update({function: into(function) for function in (*_FUNCTIONS, *_COMPOSED)})
