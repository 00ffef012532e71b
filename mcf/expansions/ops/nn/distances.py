"""Implement distances between points, and the vector product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from mcf.expansions.dispatch.recorded import differentiated, functorch
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.kernels.row_tasks import along

aten = torch.ops.aten


def _norm(x: Any, p: float, keepdim: bool = False) -> Any:
    if x.dim() and x.shape[-1] == 0:
        # For points without coordinates an infinite norm would raise.
        return x.sum(-1, keepdim)
    return torch.linalg.vector_norm(x, p, -1, keepdim)


class _Distance(torch.autograd.Function):
    """Norm for p = inf or 0 (the count of nonzeros), with the derivatives of `cdist`.

    Equal largest coordinates each get the full derivative; in `vector_norm` they share it. For
    p = 0 the derivative is 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, p: float) -> Any:
        result = torch.linalg.vector_norm(x, p, -1)
        ctx.save_for_backward(x, result)
        ctx.p = p
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, result = ctx.saved_tensors
        if ctx.p == 0:
            return torch.zeros_like(x), None
        largest = x.abs() == result[..., None]
        return torch.where(largest, grad[..., None] * x.sign(), 0), None


def _distances(x: Any, p: float) -> Any:
    """Return the p-norms of differences, over the last dimension."""
    if p not in (0, torch.inf) or x.shape[-1] == 0 or not differentiated((x,)):
        return _norm(x, p)
    return _norm(x, p) if functorch() is not None else _Distance.apply(x, p)  # type: ignore[no-untyped-call]


# Modes of torch.cdist; torch.ops uses ints.
_MODES = (
    "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist", None, 0, 1, 2,
)  # fmt: skip


def _check_distances(x1: Any, x2: Any, p: float, compute_mode: Any) -> None:
    if compute_mode not in _MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    for name, x in (("X1", x1), ("X2", x2)):
        if x.dim() < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, {name} got: {x.dim()}D")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if not p >= 0:
        raise RuntimeError("cdist only supports non-negative p values")


@implements(torch.cdist)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """Return the p-norms of x1[i] - x2[j], [..., m, n], from differences for any `compute_mode`."""
    _check_distances(x1, x2, p, compute_mode)
    return _distances(x1[..., :, None, :] - x2[..., None, :, :], p)


@implements(torch.pdist, F.pdist)
def pdist(input: Any, p: float = 2.0) -> Any:
    """Return the p-norms of x[i] - x[j] for i < j."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist: expected a matrix, got {input.dim()} dimensions")
    if not p >= 0:
        raise RuntimeError("pdist only supports non-negative p values")
    i, j = torch.triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    return _distances(input[i] - input[j], p)


@implements(torch.pairwise_distance, F.pairwise_distance)
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """Return the p-norm of x1 - x2 + eps over the last dimension."""
    return fitted(_norm(roomy(x1) - roomy(x2) + eps, p, keepdim), x1, x2)


@implements(torch.dist, torch.Tensor.dist, aten.dist.default)
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Return the p-norm of input - other."""
    return torch.linalg.vector_norm(input - other, p)


@implements(torch.linalg.cross, aten.linalg_cross.default)
def cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """Return the vector product along a dimension of three."""
    if input.dim() != other.dim():
        raise RuntimeError(
            "linalg.cross: inputs must have the same number of dimensions, got "
            f"{input.dim()} and {other.dim()}"
        )
    along(input.shape, dim)
    if not input.dim() or input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: dimension {dim} must have 3 elements, got shapes {list(input.shape)} "
            f"and {list(other.shape)}"
        )
    a, b = torch.broadcast_tensors(roomy(input), roomy(other))  # type: ignore[no-untyped-call]
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    found = torch.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)
    return fitted(found, input, other)


@implements(torch.cross, torch.Tensor.cross)
def old_cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """Return the vector product along a dimension, by default the first of size 3."""
    if dim is None:
        if 3 not in input.shape:
            raise RuntimeError(f"cross: no dimension of size 3 in input, got {list(input.shape)}")
        dim = list(input.shape).index(3)
    return cross(input, other, dim=dim)
