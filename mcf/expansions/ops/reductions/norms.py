"""Implement norms and distances with derivatives that do not overflow, and normalisation by them.

PyTorch's derivative of (sum |x|^p)^(1/p) is |x|^(p-1) / norm^(p-1), two powers that may overflow
where the quotient does not. Here it is a power of the quotient, with rows scaled by a power of two
(`mcf.expansions.ops.arithmetic.constants`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from mcf.expansions.dispatch.recorded import differentiated, functorch
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.ops.arithmetic.constants import in_format, row_scale, scaled_number
from mcf.expansions.ops.nn.losses import loss
from mcf.expansions.tensor import MCFTensor, broadcast
from mcf.kernels.row_tasks import along

aten = torch.ops.aten

Dims = int | Sequence[int] | None


def _listed(x: Any, dim: Dims) -> list[int]:
    """Return the dimensions of a reduction, all of them for None and for an empty list."""
    if isinstance(dim, int):
        return [dim]
    return list(dim) if dim else list(range(x.dim()))


class _Norm(torch.autograd.Function):
    """p-norm for p other than 0, 1 and +-inf, with the derivative sign(x) (|x| / norm)^(p - 1)."""

    @staticmethod
    def forward(ctx: Any, x: Any, p: float, dims: list[int]) -> Any:
        result = forward(torch.linalg.vector_norm, (x, p, dims, True), {})
        ctx.save_for_backward(x, result)
        ctx.p, ctx.dims = p, dims
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, norm = ctx.saved_tensors
        y, p = roomy(x), ctx.p
        scale = row_scale(y, ctx.dims)
        y = y if scale is None else y * scale
        if scale is not None or y.dtype is not x.dtype:
            norm = vector_norm(y, p, ctx.dims, True)
        return fitted(_pulled(roomy(grad), y, norm, p), x), None, None


def _pulled(grad: Any, x: Any, norm: Any, p: float) -> Any:
    """Return the gradient of a norm's argument; like PyTorch 0 where the norm is 0."""
    zero = norm == 0
    unit = torch.where(zero, 1, norm)
    if p == 2:
        return x * torch.where(zero, 0, grad / unit)
    size = x.abs()
    if p > 1:
        return grad * torch.sgn(x) * power(size / unit, Fraction(p) - 1)
    # For p < 0 the quotient is at most 1; for 0 < p < 1 PyTorch's derivative at x = 0 is 0.
    return grad * torch.sgn(x) * power(norm / torch.where(size == 0, 1, size), 1 - Fraction(p))


def power(x: Any, exponent: Fraction) -> Any:
    """Return x**exponent for an exponent that may not be a float."""
    whole = float(exponent)
    return torch.pow(x, whole if whole == exponent else in_format(exponent, x))


@implements(torch.linalg.vector_norm)
def vector_norm(
    x: Any, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return (sum |x|^ord)^(1/ord), the largest or smallest |x|, or the number of nonzeros."""
    known = type(x) is MCFTensor and isinstance(ord, (int, float))
    outside = functorch() is None and forward_ad._current_level < 0
    if not (known and outside and differentiated((x,))) or ord in (0, 1) or not math.isfinite(ord):
        return forward(torch.linalg.vector_norm, (x, ord, dim, keepdim), {"dtype": dtype})
    x = x if dtype is None else x.to(dtype)
    dims = _listed(x, dim)
    if ord < 0 and any(x.shape[d] == 0 for d in dims):
        return forward(torch.linalg.vector_norm, (x, ord, dim, keepdim), {})
    found: Any = _Norm.apply(x, float(ord), dims)  # type: ignore[no-untyped-call]
    if keepdim:
        return found
    kept = {d % max(1, x.dim()) for d in dims}
    return found.reshape([n for d, n in enumerate(x.shape) if d not in kept])


def _of_singular_values(A: Any, ord: Any, matrix: bool) -> bool:
    """Return whether PyTorch would refuse this norm for the 16-bit format of A."""
    narrow = A.dtype in (torch.bfloat16, torch.float16)
    return narrow and matrix and ord in (2, -2, "nuc")


@implements(torch.linalg.matrix_norm)
def matrix_norm(A: Any, ord: Any = "fro", *args: Any, **kwargs: Any) -> Any:
    """Return the norm of each matrix: "fro", "nuc", 1, 2, inf and their negatives."""
    if ord == "fro" and A.dim() > 1 and not args and kwargs.keys() <= {"dtype"}:
        return vector_norm(A, 2, (-2, -1), **kwargs)
    if _of_singular_values(A, ord, True):
        return forward(torch.linalg.matrix_norm, (A.float(), ord, *args), kwargs).to(A.dtype)
    return forward(torch.linalg.matrix_norm, (A, ord, *args), kwargs)


@implements(torch.linalg.norm)
def norm(A: Any, ord: Any = None, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return the norm of vectors or matrices."""
    several = isinstance(dim, (tuple, list)) and len(dim) > 1
    matrix = A.dim() == 2 if dim is None else several
    number = isinstance(ord, (int, float)) and (A.dim() == 1 if dim is None else not several)
    if number or (ord is None and not (several and len(dim) > 2)):
        return vector_norm(A, 2 if ord is None else ord, dim, *args, **kwargs)
    if _of_singular_values(A, ord, matrix):
        return forward(torch.linalg.norm, (A.float(), ord, dim, *args), kwargs).to(A.dtype)
    return forward(torch.linalg.norm, (A, ord, dim, *args), kwargs)


@implements(torch.norm, Tensor.norm)
def old_norm(
    input: Any, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """Return the norm over all dimensions in `dim`; for "nuc" those of a matrix."""
    if p == "nuc":
        wide = input.float() if _of_singular_values(input, p, True) else input
        return forward(torch.norm, (wide, p, dim, keepdim), {"dtype": dtype}).to(input.dtype)
    if isinstance(p, str) and (p != "fro" or dtype is not None):
        return forward(torch.norm, (input, p, dim, keepdim), {"dtype": dtype})
    return vector_norm(input, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


def _directed(x: Any, p: float, dims: Dims, eps: float) -> Any:
    """Return rows divided by max(norm, eps), in float32 for float16."""
    x, dims = roomy(x), _listed(x, dims)
    scale = None if p == 0 else row_scale(x, dims, eps)
    if scale is None:
        return x / torch.linalg.vector_norm(x, p, dims, True).clamp_min(eps)
    x = x * scale
    length = torch.linalg.vector_norm(x, p, dims, True)
    return x / torch.clamp(length, min=scaled_number(eps, x, scale))


@implements(F.normalize)
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """Return x / max(norm, eps) with the p-norm over dimensions."""
    if out is not None:
        return out.copy_(normalize(input.detach(), p, dim, eps))
    return fitted(_directed(input, p, dim, eps), input)


@implements(F.cosine_similarity, torch.cosine_similarity)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return <x1, x2> / (max(|x1|, eps) max(|x2|, eps)) of the broadcast operands."""
    x1, x2 = broadcast(x1, x2)
    return fitted((_directed(x1, 2, dim, eps) * _directed(x2, 2, dim, eps)).sum(dim), x1, x2)


def _cosines(x: Any, y: Any) -> Any:
    """Return the cosines of the angles between rows; 0 if a row is zero."""
    tiny = torch.finfo(roomy(x).dtype).smallest_normal
    return (_directed(x, 2, -1, tiny) * _directed(y, 2, -1, tiny)).sum(-1)


@loss(F.cosine_embedding_loss)
def cosine_embedding_loss(input1: Any, input2: Any, target: Any, margin: float = 0) -> Any:
    """Return 1 - cos of the angle where the target is 1, max(0, cos - margin) where it is -1.

    PyTorch adds 1e-12 to both squared lengths, which matters for short vectors; this does not.
    """
    if target.dim() > 1 or input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        raise RuntimeError(
            "cosine_embedding_loss: inputs must have one dimension more than target, which has at "
            f"most one, got shapes {list(input1.shape)}, {list(input2.shape)} and "
            f"{list(target.shape)}"
        )
    cosine = _cosines(input1, input2)
    apart = torch.clamp_min(cosine - margin, 0)
    losses = torch.where(target == 1, 1 - cosine, torch.where(target == -1, apart, 0))
    return fitted(losses, input1, input2)


@loss(F.triplet_margin_loss)
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
) -> Any:
    """Return max(0, margin + |anchor - positive + eps| - |anchor - negative + eps|)."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and "
            f"negative {negative.dim()}D inputs"
        )
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return torch.clamp_min(margin + near - far, 0)


@implements(torch.renorm, Tensor.renorm)
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Return slices along a dimension, scaled by maxnorm / (norm + 1e-7) if their norm is larger.

    The constant 1e-7 is PyTorch's.
    """
    if not (p > 0 and maxnorm >= 0):
        raise RuntimeError(f"renorm: p must be > 0 and maxnorm >= 0, got p={p}, maxnorm={maxnorm}")
    if input.dim() < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.dim()}")
    along(input.shape, dim)
    others = [d for d in range(input.dim()) if d != dim % input.dim()]
    x = roomy(input)
    scale = row_scale(x, others, 1e-7)
    y = x if scale is None else x * scale
    length = torch.linalg.vector_norm(y, p, others, keepdim=True)
    more: Any = 1e-7
    most: Any = maxnorm
    if scale is not None:
        more, most = scaled_number(more, y, scale), scaled_number(most, y, scale)
    return fitted(torch.where(length > most, y / (length + more) * maxnorm, x), input)


@implements(Tensor.renorm_)
def renorm_(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Apply `renorm` in place."""
    return input.copy_(renorm(input, p, dim, maxnorm))


@implements(torch._weight_norm)
def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """Return g v / |v|, with the norm over all dimensions but one."""
    over = [d for d in range(v.dim()) if d != dim % v.dim()]
    x = roomy(v)
    scale = row_scale(x, over)
    x = x if scale is None else x * scale
    return fitted(x * (roomy(g) / torch.linalg.vector_norm(x, 2, over, keepdim=True)), v, g)


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
