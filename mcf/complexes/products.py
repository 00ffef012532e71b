"""Products of complex expansions computed from real ones, and functions composed of them."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import (
    FUNCTIONS,
    MCFComplexTensor,
    formatted,
    implements,
    method,
    pair,
    parts,
    untraced,
)
from mcf.kernels.row_tasks import along


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

    return pair(beside(a, -b, -1) @ beside(c, d, -2), beside(a, b, -1) @ beside(d, c, -2))


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


@implements("einsum")
def einsum(equation: Any, *operands: Any) -> MCFComplexTensor:
    """Compute `torch.einsum` of complex and real operands from real sums of their parts.

    For k complex operands there are 2^k real sums, added into the real or imaginary part of the
    result. So the error is relative to the sum of moduli.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    both = _operands("torch.einsum", *operands)
    found: list[Any] = [None, None]
    for choice in itertools.product(*((0,) if b[1] is None else (0, 1) for b in both)):
        # The power of i.
        turns = sum(choice)
        term = torch.einsum(equation, *(b[k] for b, k in zip(both, choice, strict=True)))
        term = -term if turns % 4 > 1 else term
        before = found[turns % 2]
        found[turns % 2] = term if before is None else before + term
    return pair(*found)


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _added(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return the function beta input + alpha product(x, y); beta = 0 ignores `input`."""

    def call(input: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        found = _scaled(product(x, y), alpha)
        if beta == 0:
            return found
        total = _scaled(input, beta) + found
        if total.shape != found.shape:
            raise RuntimeError(
                f"torch.addmm and its like: the input of shape {list(input.shape)} does not "
                f"broadcast to the shape of the product, {list(found.shape)}"
            )
        return total

    return call


for _name in ("addmm", "addmv", "baddbmm"):
    implements(_name)(_added(matmul))
implements("addr")(_added(FUNCTIONS["outer"]))


implements("addcmul")(lambda input, x, y, *, value=1: input + _scaled(x * y, value))
implements("addcdiv")(lambda input, x, y, *, value=1: input + _scaled(x / y, value))
implements("lerp")(lambda input, end, weight: input + weight * (end - input))


@implements("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return input weight^T + bias."""
    found = matmul(input, weight if weight.ndim == 1 else weight.mT)
    return found if bias is None else found + bias


@implements("inner")
def inner(x: Any, y: Any) -> Any:
    """Return the sum of x y along both last dimensions."""
    if not x.ndim or not y.ndim:
        return x * y
    return tensordot(x, y, ([x.ndim - 1], [y.ndim - 1]))


@implements("tensordot")
def tensordot(x: Any, y: Any, dims: Any = 2) -> Any:
    """Compute `torch.tensordot` as one matrix product."""
    if isinstance(dims, torch.Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(x.ndim, y.ndim):
            raise RuntimeError(
                f"torch.tensordot: dims must be 0 to {min(x.ndim, y.ndim)}, the lesser "
                f"number of dimensions, got {dims}"
            )
        dims = (range(x.ndim - dims, x.ndim), range(dims))
    left, right = ([d % v.ndim for d in given] for v, given in zip((x, y), dims, strict=True))
    sizes = [[v.shape[d] for d in given] for v, given in ((x, left), (y, right))]
    if sizes[0] != sizes[1]:
        raise RuntimeError(
            f"torch.tensordot: dimensions of sizes {sizes[0]} and {sizes[1]} are contracted; they "
            "must be the same"
        )
    rows = [d for d in range(x.ndim) if d not in left]
    columns = [d for d in range(y.ndim) if d not in right]
    inner = functools.reduce(operator.mul, sizes[0], 1)
    first = x.permute(*rows, *left).reshape(-1, inner)
    second = y.permute(*right, *columns).reshape(inner, -1)
    shape = [x.shape[d] for d in rows] + [y.shape[d] for d in columns]
    return matmul(first, second).reshape(shape)


@implements("cumprod")
def cumprod(input: Any, dim: int, *, dtype: torch.dtype | None = None) -> MCFComplexTensor:
    """Return running products along a dimension, by the tree of `mcf.kernels.row_tasks`.

    With the error bound b of a product (`mcf.bound("complex_mul", ...)`) the error of the k-th is
    at most (1 + b)**(k - 1) - 1 relative to its modulus, without overflow and underflow in between.

    Args:
        input: of any shape; a zero-dimensional tensor has one element.
        dim: the dimension.
        dtype: of the components, to which the input is converted first.

    Raises:
        IndexError: if there is no such dimension.
    """
    z = input if dtype is None or dtype is input.dtype else input.to(dtype)
    count, _ = along(z.shape or (1,), dim)
    if not z.shape or count < 2:
        return z.clone()  # type: ignore[no-any-return]
    return _tree(z.movedim(dim, 0)).movedim(0, dim).contiguous()  # type: ignore[no-any-return]


def _tree(z: Any) -> Any:
    """Scan along the first dimension: multiply pairs, scan these, then fill in the odd elements."""
    count = z.shape[0]
    if count == 1:
        return z
    pairs, between = count // 2, (count - 1) // 2
    running = _tree(z[0 : 2 * pairs : 2] * z[1 : 2 * pairs : 2])
    found = [z[:1]]
    if between:
        odd = running[:between] * z[2::2]
        found.append(torch.stack((running[:between], odd), 1).flatten(0, 1))
    return torch.cat([*found, running[between:]])


@implements("var")
def var(input: Any, *args: Any, **options: Any) -> Any:
    """Return the sum of the variances of the real and imaginary parts, as `torch.var`: real."""
    return torch.var(input.real, *args, **options) + torch.var(input.imag, *args, **options)


@implements("std")
def std(input: Any, *args: Any, **options: Any) -> Any:
    """Return the root of `var` as the hypotenuse of both parts' deviations, without overflow."""
    x, y = (torch.std(part, *args, **options) for part in (input.real, input.imag))
    return torch.hypot(x, y)


def _with_mean(name: str, combined: Callable[..., Any]) -> None:
    def both(input: Any, *args: Any, **options: Any) -> tuple[Any, MCFComplexTensor]:
        (x, a), (y, b) = (
            getattr(torch, name)(part, *args, **options) for part in (input.real, input.imag)
        )
        return combined(x, y), pair(a, b)

    implements(name)(both)


_with_mean("var_mean", torch.add)
_with_mean("std_mean", torch.hypot)
