"""Arithmetic operators."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import functions as pairs
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.promotion import operands
from mcf.tensor.tensor import Components, MCFTensor, wrap

aten = torch.ops.aten


def _pair_add(x: Components, y: Components) -> Components:
    if len(y) == 1:
        y = (y[0], torch.zeros_like(y[0]))
    if len(x) == 1:
        x = (x[0], torch.zeros_like(x[0]))
    return pairs.apply(pairs.ADD, x, y)


def _pair_mul(x: Components, y: Components) -> Components:
    if len(y) == 1:
        return pairs.apply(pairs.SCALE, x, y[0])
    if len(x) == 1:
        return pairs.apply(pairs.SCALE, y, x[0])
    return pairs.apply(pairs.MUL, x, y)


@implements(aten.neg.default)
def neg(x: MCFTensor) -> MCFTensor:
    """-x, exact."""
    return wrap([-c for c in x.components])


def _scaled(y: Any, alpha: Any) -> Any:
    """alpha * y in the result's format, before it is added."""
    if alpha == 1:
        return y
    if not isinstance(y, Tensor):
        return Fraction(y) * Fraction(alpha)
    return (y if isinstance(y, MCFTensor) else wrap((y,))) * alpha


@implements(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    """x + alpha * y."""
    a, b = operands(x, _scaled(y, alpha))
    return wrap(_pair_add(a, b))


@implements(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    """x - alpha * y."""
    a, b = operands(x, _scaled(y, alpha))
    return wrap(_pair_add(a, tuple(-c for c in b)))


@implements(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, y: Any) -> Tensor:
    """x * y."""
    a, b = operands(x, y)
    return wrap(_pair_mul(a, b))


@implements(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    """y - alpha * x."""
    return sub(y, x, alpha)
