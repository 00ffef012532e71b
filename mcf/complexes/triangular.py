"""Triangular systems of complex expansions."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.derivatives import differentiable
from mcf.complexes.matrices import aligned, complex_of, components, right_side, summed
from mcf.complexes.tensor import implements
from mcf.linalg import triangular
from mcf.linalg.number_kinds import COMPLEX


@implements("linalg_solve_triangular")
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Return X with A X = B, or X A = B, for a triangular A, as `torch.linalg.solve_triangular`.

    (A + E) X = B with |E| <= c n u^terms |A| in each row; a zero on the diagonal gives infinities
    or NaN, as division does.
    """
    right_side("solve_triangular", a, b, left)
    a, b = aligned(a, b)
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT

    def run(a: Any, b: Any) -> list[Any]:
        given = components(a), components(b)
        options: dict[str, Any] = {"upper": upper, "unitriangular": unitriangular}
        return [complex_of(triangular.solve(*given, **options, numbers=COMPLEX))]

    def derivative(given: Any, out: Any, grads: Any) -> Any:
        """Return G = A^-H gX for B, and the triangle of -G X^H for A."""
        [a, b], [x] = given, out
        of_b = solve_triangular(a.mH, grads[0], upper=not upper, unitriangular=unitriangular)
        of_a: Any = -(of_b @ x.mH)
        diagonal = int(unitriangular)
        of_a = torch.triu(of_a, diagonal) if upper else torch.tril(of_a, -diagonal)
        return [summed(of_a, a.shape), summed(of_b, b.shape)]

    return differentiable(run, derivative, a, b, widen=False)[0]
