"""Arithmetic on expansion tensors, plain tensors and exact numbers, with derivatives.

Every function takes `MCFTensor`s, plain tensors and numbers (as `mcf.tensor` takes them), at least
one of them an `MCFTensor`, and returns an `MCFTensor`; promotion and broadcasting as for operators.

Or tuples of 1 to 4 components, of one dtype and device, and plain tensors beside them: the result
is such a tuple, of the same bits, and has no derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.functions import are_components
from mcf.kernels import operations
from mcf.tensor import MCFTensor
from mcf.tensor.conversion import promote
from mcf.tensor.creation import tensor
from mcf.tensor.promotion import aligned
from mcf.tensor.tensor import wrap


def _tensors(*values: Any) -> tuple[Tensor, ...]:
    """The arguments as tensors; numbers become the nearest expansion."""
    like = next(v for v in values if isinstance(v, MCFTensor))
    return tuple(
        promote(v) if isinstance(v, Tensor) else tensor(v, like.terms, like.dtype, like.device)
        for v in values
    )


def sub(x: Any, y: Any) -> Any:
    """x - y."""
    if are_components("sub", x, y):
        return operations.sub(x, y)
    a, b = _tensors(x, y)
    return a - b


def div(x: Any, y: Any) -> Any:
    """x / y."""
    if are_components("div", x, y):
        return operations.div(x, y)
    a, b = _tensors(x, y)
    return a / b


class _Fma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return wrap(operations.fma(*aligned(x, y, z)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x, grad


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z with the error of one operation; bound in `mcf.bound("fma", ...)`."""
    if are_components("fma", x, y, z):
        return operations.fma(x, y, z)
    a, b, c = _tensors(x, y, z)
    shape = torch.broadcast_shapes(a.shape, b.shape, c.shape)  # type: ignore[no-untyped-call]
    return _Fma.apply(a.expand(shape), b.expand(shape), c.expand(shape))  # type: ignore[no-untyped-call]


def sqrt(x: Any) -> Any:
    """The square root; NaN for x < 0."""
    return operations.sqrt(x) if are_components("sqrt", x) else x.sqrt()


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return operations.rsqrt(x) if are_components("rsqrt", x) else x.rsqrt()


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return operations.reciprocal(x) if are_components("reciprocal", x) else x.reciprocal()


def square(x: Any) -> Any:
    """x * x."""
    # A tensor's square is this product, too.
    return operations.mul(x, x) if are_components("square", x) else x.square()
