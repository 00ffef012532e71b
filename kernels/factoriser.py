"""The optional linear algebra loops of executors; each operation also has a path without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from mcf.kernels.decomposition import Decomposition, Numbers
from mcf.kernels.elimination import Elimination
from mcf.kernels.refinement import Refinement
from mcf.kernels.reflection import Reflection
from mcf.kernels.rotation import Rotations


class Factoriser:
    """Factorisations that an executor may implement as loops; this base class has none."""

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
        """Factorise a panel in place, if the executor has a loop for it.

        Args:
            spec: "lu" or "cholesky".
            a: components, contiguous [B, m, n]. Of "lu" the panel are the columns from `start` on
                and the rows from there on, of "cholesky" the block on the diagonal, of which the
                lower triangle is read and written.
            start: the first column.
            width: how many columns.
            info: int32 [B], where it is 0 the number of the first bad diagonal entry goes.
            pivots: int32 [B, count], where "lu" puts the number of the row that each of the panel's
                rows is exchanged with, from 1; all columns of A are.
            exchange: whether "lu" exchanges rows.
            sides: components, contiguous [B, n, k]: right-hand sides of an "lu" whose panel is the
                whole square matrix, which the solutions take the place of.
            determinant: components [B], where the determinants of such matrices go.

        Returns:
            False where it has none, and has done nothing.
        """
        return False

    def prepare_decomposition(
        self, spec: Decomposition, batch: int, shape: tuple[int, int], numbers: Numbers
    ) -> Callable[..., Sequence[int]] | None:
        """Prepare decompositions of matrices with no more rows than columns; None if unsupported.

        Returns:
            A function of the addresses of A's components; of how many elements lie from matrix to
            matrix, row to row and column to column; of the addresses of contiguous results: values
            [B, n], then of `eigh` V [B, n, n] twice, of `svd` U and V^T; of whether vectors are
            wanted; of whether the matrix is a transpose, whose U and V^T change places. It
            returns what each matrix ends as (`mcf.kernels.decomposition`).
        """
        return None

    def substitute(
        self,
        spec: Elimination,
        a: Sequence[Tensor],
        x: Sequence[Tensor],
        upper: bool,
        unit: bool,
    ) -> bool:
        """Solve A Y = X in place, if the executor has a loop for it.

        Args:
            spec: a "substitution".
            a: components [B, w, w] of any strides, of which one triangle is read.
            x: components [B, w, k] of any strides, overlapping neither A nor themselves.
            upper: whether A is upper triangular; rows then go from the last to the first.
            unit: whether the diagonal is assumed to be 1.

        Returns:
            False without such a loop; nothing is changed then.
        """
        return False

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
        """Reflect a panel to upper triangular form, if the executor has a loop for it.

        Args:
            spec: the reflections.
            r: float64 components, contiguous [B, m, n]; the panel consists of the rows and columns
                from `start` on. Its elements below the diagonal are undefined afterwards.
            start: its first row and column.
            v: receives V, contiguous [B, m - start, w].
            t: receives T, contiguous [B, w, w].
            whole: whether to reflect the columns right of the panel too; the panel then has all
                reflections, and V and T are not needed.
            q: receives columns of Q, contiguous [B, m - start, k]; only with all reflections.

        Returns:
            False without such a loop; nothing is changed then.
        """
        return False

    def rotate(
        self, spec: Rotations, x: Sequence[Tensor], width: int, counted: int, tolerance: int
    ) -> Tensor | None:
        """Make rows orthogonal by Jacobi sweeps (`mcf.kernels.rotation`), if there is a loop.

        Args:
            spec: the sweeps.
            x: float64 components [B, n, columns], contiguous, n even; changed in place.
            width: the number of columns that become orthogonal, at least 1.
            counted: the number of rows that `converged` tests.
            tolerance: the exponent of a power of two.

        Returns:
            Per matrix whether it converged, bool [B]; None without such a loop.
        """
        return None

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
        """Correct orthogonal matrices (`mcf.kernels.refinement`), if there is a loop for it.

        Args:
            spec: the corrections.
            a: M, components, contiguous [B, n, columns].
            w: W, contiguous [B, n, n], changed in place.
            x: receives W M, contiguous [B, n, columns].
            squares: receives the squared norms of the rows of W M, contiguous [B, n].
            steps: the number of orthogonalisation steps on W before the corrections.
            tolerance: the exponent of a power of two.
            share: the exponent of a power of two.

        Returns:
            What each matrix ended as, integers [B]; None where it has none, and has done nothing.
        """
        return None
