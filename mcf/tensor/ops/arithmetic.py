"""Arithmetic operators: the operands are promoted, then it is `mcf.kernels.operations`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.components import padded
from mcf.kernels.operators import ADD, DIV, MUL, RECIPROCAL, RSQRT, SQRT, SUB
from mcf.tensor.plans import planned
from mcf.tensor.promotion import operands
from mcf.tensor.registry import implements
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _scaled(y: Any, alpha: Any) -> Any:
    """alpha * y, rounded in the format of the result."""
    if alpha == 1:
        return y
    if not isinstance(y, Tensor):
        return Fraction(y) * Fraction(alpha)
    return y * alpha


@implements(aten.neg.default)
def neg(x: MCFTensor) -> MCFTensor:
    """-x, exact."""
    return wrap([-c for c in x.components])


@implements(aten.positive.default)
def positive(x: MCFTensor) -> MCFTensor:
    """+x."""
    return x


@implements(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """x + alpha * y."""
    if alpha != 1 and isinstance(y, Tensor):
        y = _like(y, x)
    return planned(ADD, x, _scaled(y, alpha))


@implements(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """x - alpha * y."""
    if alpha != 1 and isinstance(y, Tensor):
        y = _like(y, x)
    return planned(SUB, x, _scaled(y, alpha))


def _like(y: Tensor, x: Any) -> MCFTensor:
    """A tensor in the format of its operation with x: a product there has all its components."""
    terms = max(v.terms for v in (x, y) if isinstance(v, MCFTensor))
    b, _ = operands(y, x)
    return wrap(padded(b, terms))


@implements(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Any, y: Any, alpha: Any = 1) -> MCFTensor:
    """y - alpha * x."""
    return sub(y, x, alpha)


@implements(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, y: Any) -> MCFTensor:
    """x * y."""
    return planned(MUL, x, y)


@implements(aten.div.Tensor, aten.div.Scalar)
def div(x: Any, y: Any) -> MCFTensor:
    """x / y."""
    return planned(DIV, x, y)


@implements(aten.reciprocal.default)
def reciprocal(x: MCFTensor) -> MCFTensor:
    """1 / x."""
    return planned(RECIPROCAL, x)


@implements(aten.rsqrt.default)
def rsqrt(x: MCFTensor) -> MCFTensor:
    """1 / sqrt(x)."""
    return planned(RSQRT, x)


@implements(aten.sqrt.default)
def sqrt(x: MCFTensor) -> MCFTensor:
    """The square root."""
    return planned(SQRT, x)


@implements(aten.addcmul.default)
def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value * a * b."""
    return x + a * b * value if value != 1 else x + a * b  # type: ignore[no-any-return]


@implements(aten.addcdiv.default)
def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Tensor:
    """x + value * a / b."""
    return x + a * value / b if value != 1 else x + a / b  # type: ignore[no-any-return]


@implements(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(x: Any, end: Any, weight: Any) -> Tensor:
    """x + weight * (end - x)."""
    return x + weight * (end - x)  # type: ignore[no-any-return]
