"""The CPU executor's loops of factorisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from mcf.kernels.decomposition import Decomposition, Numbers
from mcf.kernels.elimination import Elimination
from mcf.kernels.factoriser import Factoriser
from mcf.kernels.numba.loops.matrices import (
    decomposition,
    elimination,
    refinement,
    reflection,
    rotation,
)
from mcf.kernels.refinement import Refinement
from mcf.kernels.reflection import Reflection
from mcf.kernels.rotation import Rotations


class CpuFactoriser(Factoriser):
    """Factorisation loops that Numba compiles once and that are cached on disk."""

    def eliminate(
        self,
        spec: Elimination,
        a: Sequence[Tensor],
        start: int,
        width: int,
        info: Tensor,
        pivots: Tensor | None = None,
        exchange: bool = True,
        sides: Sequence[Tensor] | None = None,
        determinant: Sequence[Tensor] | None = None,
    ) -> bool:
        more = sides, determinant
        elimination.panel(spec, a, start, width, info, pivots, exchange, *more)
        return True

    def substitute(
        self,
        spec: Elimination,
        a: Sequence[Tensor],
        x: Sequence[Tensor],
        upper: bool,
        unit: bool,
    ) -> bool:
        elimination.substitute(spec, a, x, upper, unit)
        return True

    def reflect(
        self,
        spec: Reflection,
        r: Sequence[Tensor],
        start: int,
        v: Sequence[Tensor],
        t: Sequence[Tensor],
        whole: bool = False,
        q: Sequence[Tensor] | None = None,
    ) -> bool:
        reflection.panel(spec, r, start, v, t, whole, q)
        return True

    def rotate(
        self, spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
    ) -> Tensor:
        return rotation.rotate(spec, x, width, counted, tolerance)

    def refine(
        self,
        spec: Refinement,
        a: Sequence[Tensor],
        w: Sequence[Tensor],
        x: Sequence[Tensor],
        squares: Sequence[Tensor],
        steps: int,
        tolerance: int,
        share: int,
    ) -> Tensor | None:
        """Refine, see `Executor`; for small matrices, whose products need no second thread."""
        if max(a[0].shape[1:]) > refinement.SMALL:
            return None
        return refinement.refine(spec, a, w, x, squares, steps, tolerance, share)

    def prepare_decomposition(
        self, spec: Decomposition, batch: int, shape: tuple[int, int], numbers: Numbers
    ) -> Callable[..., Sequence[int]] | None:
        """Prepare a decomposition, see `Executor`; for matrices whose corrections are one call."""
        if max(shape) > decomposition.SMALL:
            return None
        return decomposition.Decomposer(spec, batch, shape, numbers)
