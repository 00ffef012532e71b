"""Implement matrix products in full expansion arithmetic."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.launch.matrices import multiplied
from mcf.expansions.promotion import operands
from mcf.expansions.tensor import wrap
from mcf.reductions.products import matmul

aten = torch.ops.aten


def _check(name: str, x: Tensor, y: Tensor, dims: tuple[int, int]) -> None:
    """Raise unless the arguments have the operator's dimensions and matching sizes."""
    if (x.dim(), y.dim()) != dims:
        raise RuntimeError(
            f"{name}: expected tensors of {dims[0]} and {dims[1]} dimensions, got {x.dim()} and "
            f"{y.dim()}"
        )
    rows = y.shape[0 if y.dim() == 1 else -2]
    if x.shape[-1] != rows or (x.dim() == 3 and x.shape[0] != y.shape[0]):
        raise RuntimeError(f"{name}: shapes {list(x.shape)} and {list(y.shape)} do not match")


def _registered(name: str, *dims: int) -> Callable[[Any, Any], Tensor]:
    """Register x @ y for operands of some dimensions."""

    def product(x: Any, y: Any) -> Tensor:
        _check(name, x, y, (dims[0], dims[1]))
        few: Tensor | None = multiplied(x, y)
        if few is not None:
            return few
        left, right = operands(x, y)
        return wrap(matmul(left, right))

    return implements(getattr(aten, name).default)(product)


mm, bmm, mv = _registered("mm", 2, 2), _registered("bmm", 3, 3), _registered("mv", 2, 1)


def expands(given: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether a tensor of shape `given` can be expanded to `size`."""
    ahead = len(size) - len(given)
    return ahead >= 0 and all(n in (1, m) for n, m in zip(given, size[ahead:], strict=True))


def _plus(
    name: str, times: Callable[..., Any], given: Any, x: Any, y: Any, beta: Any, alpha: Any
) -> Tensor:
    """Return beta * given + alpha * (x times y); for beta = 0 the values of `given` are ignored.

    As in PyTorch, `given` expands to the shape of the product, not vice versa.
    """
    if alpha == 1:
        return _sum(name, given, times(x, y), beta)
    # The product may overflow in float16 where alpha times it does not.
    product = times(roomy(x), roomy(y)) * alpha
    return fitted(_sum(name, roomy(given), product, beta), given, x, y)  # type: ignore[no-any-return]


def _sum(name: str, given: Any, product: Tensor, beta: Any) -> Tensor:
    """Return beta * given + product."""
    if not expands(given.shape, product.shape):
        raise RuntimeError(
            f"{name}: input must expand to the shape {list(product.shape)} of the product, got a "
            f"tensor of shape {list(given.shape)}"
        )
    if beta == 0:
        return product + torch.zeros_like(given) if given.shape != product.shape else product
    total: Tensor = product + (given if beta == 1 else given * beta)
    return total


@implements(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return x W^T + b; b expands to the product, not vice versa."""
    if bias is not None and weight.dim() in (1, 2) and input.dim():
        size = [*input.shape[:-1], *weight.shape[:-1]]
        # PyTorch treats a vector as a matrix of one row.
        row = input.dim() == 1 and size != [1] and [*bias.shape] == [1, *size]
        if not row and not expands(bias.shape, size):
            raise RuntimeError(
                f"linear: bias must expand to the shape {size} of the product, got a tensor of "
                f"shape {list(bias.shape)}"
            )
    return forward(F.linear, (input, weight, bias), {})


@implements(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """Contract dimensions of a with dimensions of b, by one product of vectors or matrices.

    PyTorch's own function orders the contracted dimensions, and so its additions, by strides.
    """
    try:
        if isinstance(dims, int):
            left, right = [*range(a.dim() - dims, a.dim())], [*range(dims)]
        else:
            left, right = ([d % x.dim() for d in of] for of, x in zip(dims, (a, b), strict=True))
        matched = all(a.shape[i] == b.shape[j] for i, j in zip(left, right, strict=True))
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        matched = False
    if not matched or len({*left}) < len(left) or len({*right}) < len(right):
        # Broadcast dimensions of size 1, tensors as `dims`, and errors.
        return forward(torch.tensordot, (a, b, dims), {})
    rows = [d for d in range(a.dim()) if d not in left]
    columns = [d for d in range(b.dim()) if d not in right]
    inner = math.prod(a.shape[d] for d in left)
    sizes = [a.shape[d] for d in rows] + [b.shape[d] for d in columns]
    x, y = a.permute(rows + left), b.permute(right + columns)
    if not sizes:
        # As PyTorch does inside torch.func, so that sums have the same order there.
        return torch.dot(x.reshape(-1), y.reshape(-1))
    x = x.reshape(math.prod(sizes[: len(rows)]), inner)
    return torch.mm(x, y.reshape(inner, math.prod(sizes[len(rows) :]))).reshape(sizes)


@implements(torch.einsum)
def einsum(*args: Any) -> Any:
    """Contract operands; a product of two matrices without PyTorch's many views of them."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = [*operands[0]]
    turned = _turned(equation) if isinstance(equation, str) and len(operands) == 2 else None
    if turned is None or not all(isinstance(x, Tensor) and x.dim() == 2 for x in operands):
        return forward(torch.einsum, args, {})
    x, y = (x.mT if turn else x for x, turn in zip(operands, turned, strict=True))
    if x.shape[1] != y.shape[0]:
        # Dimensions of size 1 are broadcast, and others are errors.
        return forward(torch.einsum, args, {})
    return torch.mm(x, y)


@functools.lru_cache(256)
def _turned(equation: str) -> tuple[bool, bool] | None:
    """Return which operands of a product of two matrices are transposed, or None for others."""
    found = re.fullmatch(r"([a-zA-Z]{2}),([a-zA-Z]{2})->([a-zA-Z]{2})", equation.replace(" ", ""))
    if found is None:
        return None
    left, right, result = found.groups()
    row, column = result[0], result[1]
    shared = {*left} & {*right}
    if len(shared) != 1 or len({row, column} | shared) < 3:
        return None
    inner = shared.pop()
    if {*left} != {row, inner} or {*right} != {inner, column}:
        return None
    return left == inner + row, right == column + inner


def _added(name: str, times: Callable[..., Any]) -> None:
    """Register beta * given + alpha * (x @ y)."""

    def added(given: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        return _plus(name, times, given, x, y, beta, alpha)

    implements(getattr(aten, name).default)(added)


_added("addmm", mm)
_added("addmv", mv)
_added("baddbmm", bmm)


@implements(aten.addbmm.default)
def addbmm(given: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Return beta * given + alpha * the sum of x @ y over the batch."""
    _check("addbmm", x, y, (3, 3))
    batch, rows, inner = x.shape
    left = x.transpose(0, 1).reshape(rows, batch * inner)
    right = y.reshape(batch * inner, y.shape[2])
    return _plus("addbmm", mm, given, left, right, beta, alpha)


@implements(aten.addr.default)
def addr(given: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Return beta * given + alpha * the outer product of x and y."""
    for which, vector in (("vec1", x), ("vec2", y)):
        if vector.dim() != 1:
            raise RuntimeError(f"addr: Expected 1-D argument {which}, but got {vector.dim()}-D")
    return _plus("addr", torch.mul, given, x[:, None], y[None, :], beta, alpha)
