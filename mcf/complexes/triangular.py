"""Triangular systems of complex expansions, as real ones of twice the size."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.tensor import MCFComplexTensor, formatted, implements, pair, parts


def interleaved(z: MCFComplexTensor) -> Any:
    """The real matrix of blocks [[x, -y], [y, x]], one for each element.

    Of a triangular matrix with ones on the diagonal it is such a matrix, too.
    """
    x, y = z.real, z.imag
    whole: Any = torch.stack((torch.stack((x, -y), -1), torch.stack((y, x), -1)), -3)
    return whole.reshape(*z.shape[:-2], 2 * z.shape[-2], 2 * z.shape[-1])


def aligned(*values: Any) -> list[Any]:
    """Real and complex operands as complex expansion tensors of one format."""
    flat = [p for v in values for p in parts(v)]  # type: ignore[union-attr]
    found = formatted(*(0.0 if p is None else p for p in flat))
    return [
        pair(found[k], found[k + 1].expand(found[k].shape).clone())
        if flat[k + 1] is None
        else pair(found[k], found[k + 1])
        for k in range(0, len(flat), 2)
    ]


@implements("linalg_solve_triangular")
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X with A X = B, or X A = B, for a triangular A, as `torch.linalg.solve_triangular`.

    Rows are divided by the diagonal, which makes it ones; then it is a real substitution of 2n
    rows: (A + E) X = B with |E| <= c n u^terms |A| in each row.
    """
    name = "linalg.solve_triangular"
    for value in (a, b):
        if value.ndim < 2:
            raise RuntimeError(f"{name}: A and B must be matrices, got shape {list(value.shape)}")
    if a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2 if left else -1]:
        equation = "AX = B" if left else "XA = B"
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation {equation}: "
            f"{list(a.shape)} and {list(b.shape)}"
        )
    a, b = aligned(a, b)
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    if not unitriangular:
        diagonal: Any = torch.diagonal(a, dim1=-2, dim2=-1)[..., None]
        a, b = a / diagonal, b / diagonal
    n, columns = b.shape[-2:]
    # Of the blocks on the diagonal only that is one a triangle.
    eye = torch.eye(n, dtype=torch.bool, device=b.device)
    a = torch.where(eye, 1.0, a)
    right: Any = torch.stack((b.real, b.imag), -2)
    right = right.reshape(*b.shape[:-2], 2 * n, columns)
    found: Any = torch.linalg.solve_triangular(
        interleaved(a), right, upper=upper, unitriangular=True
    )
    found = found.reshape(*found.shape[:-2], n, 2, columns)
    return pair(found[..., 0, :], found[..., 1, :])
