"""Systems of linear equations of complex expansions, as real ones of twice the size."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.tensor import MCFComplexTensor, formatted, implements, pair, parts


def _square(name: str, a: Any) -> None:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, got shape {list(a.shape)}"
        )


def embedded(z: MCFComplexTensor) -> Any:
    """The real matrix [[X, -Y], [Y, X]], which multiplies as X + iY does."""
    x, y = z.real, z.imag
    return torch.cat((torch.cat((x, -y), -1), torch.cat((y, x), -1)), -2)


@implements("linalg_solve")
def solve(a: Any, b: Any, *, left: bool = True) -> Any:
    """X with A X = B, as `torch.linalg.solve`, or X A = B.

    By LU with partial pivoting of [[Re A, -Im A], [Im A, Re A]], whose backward error is that of a
    real system of 2n rows: |A X - B| <= c n u^terms |A||X|.
    """
    _square("solve", a)
    if not left:
        return solve(a.mT, b.mT).mT
    (ar, ai), (br, bi) = (parts(v) for v in (a, b))  # type: ignore[misc]
    given = formatted(ar, 0.0 if ai is None else ai, br, 0.0 if bi is None else bi)
    ar, ai, br, bi = (v.expand(w.shape) for v, w in zip(given, (ar, ar, br, br), strict=True))
    # As torch tells vectors from matrices.
    vector = br.dim() == 1 or (br.dim() == ar.dim() - 1 and br.shape == ar.shape[:-1])
    right = torch.cat((br, bi), -1 if vector else -2)
    found = torch.linalg.solve(embedded(pair(ar, ai)), right)
    n = ar.shape[-1]
    if vector:
        return pair(found[..., :n], found[..., n:])
    return pair(found[..., :n, :], found[..., n:, :])


@implements("linalg_inv", "inverse")
def inv(a: Any) -> Any:
    """The inverse, as `torch.linalg.inv`: half of the columns of that of the real matrix."""
    _square("inv", a)
    n = a.shape[-1]
    found = torch.linalg.inv(embedded(a))[..., :n]
    return pair(found[..., :n, :], found[..., n:, :])
