"""Convert matrices of complex expansions for `mcf.linalg`, and check them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import MCFComplexTensor, formatted, made, pair, parts
from mcf.expansions.tensor import wrap
from mcf.linalg.number_kinds import halves
from mcf.linalg.parts import Components


def matrices(name: str, a: Any, square: bool = False) -> None:
    """Refuse a tensor that is not a matrix or, if required, not square."""
    if a.ndim < 2:
        raise RuntimeError(
            f"linalg.{name}: The input tensor A must have at least 2 dimensions, got shape "
            f"{list(a.shape)}"
        )
    if square and a.shape[-1] != a.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {a.shape[-2]} by "
            f"{a.shape[-1]} matrices"
        )


def right_side(name: str, a: Any, b: Any, left: bool = True) -> None:
    """Refuse right-hand sides that do not fit a square matrix."""
    matrices(name, a, square=True)
    if b.ndim < 2 or a.shape[-1] != b.shape[-2 if left else -1]:
        equation = "AX = B" if left else "XA = B"
        raise RuntimeError(
            f"linalg.{name}: Incompatible shapes of A and B for the equation {equation}: "
            f"{list(a.shape)} and {list(b.shape)}"
        )


def errors(name: str, info: Tensor, wanted: bool = True) -> None:
    """Raise PyTorch's error if a factorisation failed."""
    if wanted:
        torch._linalg_check_errors(info, f"linalg.{name}", is_matrix=info.dim() == 0)


def components(z: MCFComplexTensor) -> Components:
    """Return the components of both parts, real ones first; without derivatives."""
    return (*z.real.detach().components, *z.imag.detach().components)  # type: ignore[attr-defined]


def complex_of(x: Components) -> MCFComplexTensor:
    """Return the complex tensor of the components of both parts."""
    real, imag = halves(x)
    return made(wrap(real), wrap(imag))


def leading(z: MCFComplexTensor) -> Tensor:
    """Return |x| + |y| of the leading components, which LAPACK uses to choose pivots."""
    size: Tensor = z.real.components[0].abs() + z.imag.components[0].abs()
    return size


def aligned(*values: Any) -> list[Any]:
    """Return real and complex operands as complex expansion tensors of one format."""
    flat = [p for v in values for p in parts(v)]  # type: ignore[union-attr]
    found = formatted(*(0.0 if p is None else p for p in flat))
    return [
        pair(found[k], found[k + 1].expand(found[k].shape).clone())
        if flat[k + 1] is None
        else pair(found[k], found[k + 1])
        for k in range(0, len(flat), 2)
    ]


def summed(g: Any, shape: Any) -> Any:
    """Return the gradient of a broadcast operand of this shape."""
    if g.shape == shape:
        return g
    more = g.ndim - len(shape)
    for _ in range(more):
        g = g.sum(0)
    for k, n in enumerate(shape):
        if n == 1 and g.shape[k] != 1:
            g = g.sum(k, keepdim=True)
    return g
