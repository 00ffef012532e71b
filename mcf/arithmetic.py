"""Arithmetic on expansion tensors, plain tensors and exact numbers, with derivatives.

Every function takes `MCFTensor`s, plain tensors and numbers (as `mcf.tensor` takes them), at least
one of them an `MCFTensor`, and returns an `MCFTensor`; promotion and broadcasting as for operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.kernels import expansions
from mcf.tensor import MCFTensor
from mcf.tensor.conversion import promote
from mcf.tensor.creation import tensor
from mcf.tensor.promotion import aligned
from mcf.tensor.tensor import wrap


def _expansions(function: str, *values: Any) -> tuple[Tensor, ...]:
    """The arguments as tensors; numbers become the nearest expansion."""
    like = next((v for v in values if isinstance(v, MCFTensor)), None)
    if like is None:
        kinds = ", ".join(type(v).__name__ for v in values)
        raise TypeError(f"{function} needs an mcf.MCFTensor among its arguments, got {kinds}")
    return tuple(
        promote(v) if isinstance(v, Tensor) else tensor(v, like.terms, like.dtype, like.device)
        for v in values
    )


def sub(x: Any, y: Any) -> Tensor:
    """x - y."""
    a, b = _expansions("sub", x, y)
    return a - b


def div(x: Any, y: Any) -> Tensor:
    """x / y."""
    a, b = _expansions("div", x, y)
    return a / b


class _Fma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return wrap(expansions.fma(*aligned(x, y, z)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x, grad


def fma(x: Any, y: Any, z: Any) -> Tensor:
    """x * y + z with the error of one operation; bound in `mcf.bound("fma", ...)`."""
    a, b, c = _expansions("fma", x, y, z)
    shape = torch.broadcast_shapes(a.shape, b.shape, c.shape)  # type: ignore[no-untyped-call]
    return _Fma.apply(a.expand(shape), b.expand(shape), c.expand(shape))  # type: ignore[no-any-return, no-untyped-call]


def sqrt(x: MCFTensor) -> Tensor:
    """The square root; NaN for x < 0."""
    return _expansions("sqrt", x)[0].sqrt()


def rsqrt(x: MCFTensor) -> Tensor:
    """1 / sqrt(x)."""
    return _expansions("rsqrt", x)[0].rsqrt()


def reciprocal(x: MCFTensor) -> Tensor:
    """1 / x."""
    return _expansions("reciprocal", x)[0].reciprocal()


def square(x: MCFTensor) -> Tensor:
    """x * x."""
    return _expansions("square", x)[0].square()
