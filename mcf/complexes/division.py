"""The quotient of complex expansions, scaled so that no intermediate result overflows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.elementwise import halves, node
from mcf.complexes.launches import applied
from mcf.complexes.tensor import MCFComplexTensor, formatted, gradient
from mcf.complexes.tracing import untraced
from mcf.kernels import operations
from mcf.kernels.complex_operators import DIV


def _computed(*given: Tensor) -> tuple[Any, Any]:
    return halves(operations.apply(DIV, [v.components for v in given], None))  # type: ignore[attr-defined]


def _backward(saved: Any, grads: Any) -> Any:
    a, b, c, d = saved
    x, y, g = MCFComplexTensor(a, b), MCFComplexTensor(c, d), gradient(grads)
    inner = g / y.conj()
    outer = -inner * (x / y).conj()
    return inner.real, inner.imag, outer.real, outer.imag


_Divide = node("Divide", _computed, _backward)


@untraced
def divide(x: tuple[Any, Any], y: tuple[Any, Any]) -> MCFComplexTensor:
    """Return x / y of parts, with a derivative; the imaginary part of x may be None.

    A zero y gives x / Re y by parts, which is infinite or NaN. An infinite y and a finite x give
    zeros. Otherwise the result is NaN if a part is not finite, as for the product.
    """
    a, b = x
    given = (a, 0.0 if b is None else b, *y)
    found = applied(DIV, *given)
    if found is not None:
        return found
    alike = formatted(*given)
    shape = torch.broadcast_shapes(*(v.shape for v in alike))  # type: ignore[no-untyped-call]
    return MCFComplexTensor(*_Divide.apply(*(v.expand(shape) for v in alike)))
