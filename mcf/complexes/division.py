"""The quotient of complex expansions, scaled so that nothing between overflows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import MCFComplexTensor, formatted, gradient
from mcf.kernels import operations
from mcf.kernels.components import Components
from mcf.tensor.tensor import wrap

Pair = tuple[Components, Components]


def quotient(x: Pair, y: Pair) -> Pair:
    """x / y = x conj(y) / |y|^2 with both scaled by powers of two to below 1.

    Componentwise the error of the numerator is that of a product, relative to |x y|; |y|^2 is a sum
    of squares, and each part is divided once. A zero y gives x / Re y by parts, which is infinite
    or NaN; an infinite one under a finite x zeros. NaN else where a part is not finite, as in the
    product.
    """
    scaled_x, up = _scaled(x)
    scaled_y, down = _scaled(y)
    (a, b), (c, d) = scaled_x, scaled_y
    size = operations.add(operations.square(c), operations.square(d))
    top = (
        operations.add(operations.mul(a, c), operations.mul(b, d)),
        operations.sub(operations.mul(b, c), operations.mul(a, d)),
    )
    found = [operations.ldexp(operations.div(t, size), up - down) for t in top]
    zero = (y[0][0] == 0) & (y[1][0] == 0)
    infinite = (y[0][0].isinf() | y[1][0].isinf()) & x[0][0].isfinite() & x[1][0].isfinite()
    results = []
    for result, part in zip(found, x, strict=True):
        over = operations.div(part, y[0])
        held = (torch.where(zero, o, torch.where(infinite, 0.0, r))
                for o, r in zip(over, result, strict=True))  # fmt: skip
        results.append(tuple(held))
    return results[0], results[1]


def _scaled(z: Pair) -> tuple[Pair, Tensor]:
    """z 2^-k with the larger part in [1/2, 1), and k."""
    exponent = torch.frexp(torch.maximum(z[0][0].abs(), z[1][0].abs()))[1].long()
    return (operations.ldexp(z[0], -exponent), operations.ldexp(z[1], -exponent)), exponent


class _Divide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        ctx.save_for_backward(a, b, c, d)
        ctx.set_materialize_grads(False)
        x, y = (a.components, b.components), (c.components, d.components)  # type: ignore[attr-defined]
        real, imag = quotient(x, y)
        return wrap(real), wrap(imag)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b, c, d = ctx.saved_tensors
        x, y, g = MCFComplexTensor(a, b), MCFComplexTensor(c, d), gradient(grads)
        inner = g / y.conj()
        outer = -inner * (x / y).conj()
        return inner.real, inner.imag, outer.real, outer.imag


def divide(x: tuple[Any, Any], y: tuple[Any, Any]) -> MCFComplexTensor:
    """x / y of parts, with a derivative; the imaginary one of x may be None."""
    given = formatted(x[0], 0.0 if x[1] is None else x[1], *y)
    shape = torch.broadcast_shapes(*(v.shape for v in given))  # type: ignore[no-untyped-call]
    return MCFComplexTensor(*_Divide.apply(*(v.expand(shape) for v in given)))  # type: ignore[no-untyped-call]
