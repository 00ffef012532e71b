"""Matrix products of complex expansions, computed as real products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import (
    MCFComplexTensor,
    formatted,
    implements,
    method,
    pair,
    parts,
    untraced,
)
from mcf.linalg.number_kinds import in_real_products


def _operands(name: str, *values: Any) -> list[tuple[Any, Any]]:
    found = []
    for v in values:
        both = parts(v) if isinstance(v, (Tensor, MCFComplexTensor)) else None
        if both is None:
            raise TypeError(f"{name}: an operand is of type {type(v).__name__}, not a tensor")
        found.append(both)
    return found


@untraced
def _real_by_complex(a: Any, c: Any, d: Any) -> MCFComplexTensor:
    """Return A (C + iD); torch.compile of torch 2.13 exchanges the operands of `@`."""
    return pair(a @ c, a @ d)


@implements("matmul", "mm", "bmm", "mv", "__matmul__", "linalg_matmul")
def matmul(x: Any, y: Any) -> MCFComplexTensor:
    """Return x @ y by four real products, those of one part added together.

    (A + iB)(C + iD) = [A, -B] [C; D] + i [A, B] [D; C], two real products of twice the inner
    dimension k. So each part has the error of a real product of 2k terms, relative to itself and to
    T = |A||C| + |B||D| (or |A||D| + |B||C|): `mcf.bound("matmul", terms, dtype, count=2 * k)`.
    """
    (a, b), (c, d) = _operands("matmul", x, y)
    if b is None:
        return _real_by_complex(a, c, d)
    if d is None:
        return pair(a @ c, b @ c)
    a, b, c, d = formatted(a, b, c, d)

    def beside(u: Any, v: Any, dim: int) -> Any:
        return torch.cat((u, v), max(dim, -u.dim()))

    return pair(*in_real_products(a, b, c, d, lambda x: -x, beside, lambda x, y: x @ y))


def _rmatmul(y: Any, x: Any) -> Any:
    return matmul(x, y)


method("__matmul__", matmul)
method("__rmatmul__", _rmatmul)
implements("__rmatmul__")(_rmatmul)


@implements("dot")
def dot(x: Any, y: Any) -> Any:
    """Return the sum of x y of two vectors, without a conjugate, as `torch.dot`."""
    _vectors("dot", x, y)
    return matmul(x, y)


@implements("vdot")
def vdot(x: Any, y: Any) -> MCFComplexTensor:
    """Return the sum of conj(x) y of two vectors."""
    _vectors("vdot", x, y)
    return matmul(torch.conj(x), y)


def _vectors(name: str, x: Any, y: Any) -> None:
    if len(x.shape) != 1 or x.shape != y.shape:
        raise RuntimeError(
            f"{name}: expected two vectors of one length, got shapes {list(x.shape)} and "
            f"{list(y.shape)}"
        )


@implements("linalg_vecdot")
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """Return the sum of conj(x) y along a dimension."""
    x, y = torch.conj(x).movedim(dim, -1), y.movedim(dim, -1)
    return matmul(x[..., None, :], y[..., :, None])[..., 0, 0]


def _bilinear(name: str, function: Callable[..., Any]) -> None:
    """Register a real bilinear function, computed as four real products."""

    def call(x: Any, y: Any, *args: Any, **kwargs: Any) -> MCFComplexTensor:
        def real(u: Any, v: Any) -> Any:
            return function(u, v, *args, **kwargs)

        (a, b), (c, d) = _operands(name, x, y)
        if b is None:
            return pair(real(a, c), real(a, d))
        if d is None:
            return pair(real(a, c), real(b, c))
        return pair(real(a, c) - real(b, d), real(a, d) + real(b, c))

    implements(name)(call)


_bilinear("outer", torch.outer)
_bilinear("ger", torch.outer)
_bilinear("kron", torch.kron)
_bilinear("linalg_cross", torch.linalg.cross)


@implements("prod")
def prod(z: MCFComplexTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the product of all elements, or along a dimension, multiplied pairwise."""
    whole: Any = z.reshape(-1) if dim is None else z.movedim(dim, -1)
    if whole.shape[-1] == 0:
        return torch.ones_like(whole.sum(-1))
    while whole.shape[-1] > 1:
        half, rest = divmod(whole.shape[-1], 2)
        pairs = whole[..., :half] * whole[..., half : 2 * half]
        whole = torch.cat((pairs, whole[..., 2 * half :]), -1) if rest else pairs
    found: Any = whole[..., 0]
    return found.unsqueeze(dim) if keepdim and dim is not None else found


@implements("norm", "linalg_vector_norm")
def norm(z: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the norm of vectors of |z|."""
    return torch.linalg.vector_norm(torch.abs(z), *args, **kwargs)
