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
            a: components, contiguous [B, m, n]. The panel of "lu" consists of rows and columns from
                `start` on, that of "cholesky" is the diagonal block, whose lower triangle is read
                and written.
            start: the first column.
            width: the number of columns.
            info: int32 [B]; zeros in it are replaced by the 1-based index of the first bad diagonal
                entry.
            pivots: int32 [B, count], receives for "lu" the 1-based index of the row that each row
                of the panel is exchanged with; all columns of A are exchanged.
            exchange: whether "lu" exchanges rows.
            sides: components, contiguous [B, n, k]: right-hand sides, which the solutions replace.
                The panel must be a whole square matrix of "lu".
            determinant: components [B], receives the determinants of such matrices.

        Returns:
            False without such a loop; nothing is changed then.
        """
        return False

    def prepare_decomposition(
        self, spec: Decomposition, batch: int, shape: tuple[int, int], numbers: Numbers
    ) -> Callable[..., Sequence[int]] | None:
        """Prepare decompositions of matrices with no more rows than columns; None if unsupported.

        Returns:
            A function of the addresses of A's components, the strides between matrices, rows and
            columns, the addresses of contiguous results (values [B, n]; V [B, n, n] twice for
            `eigh`, U and V^T for `svd`), whether to compute vectors, and whether the matrix is
            transposed, so that U and V^T are exchanged. It returns the status of each matrix
            (`mcf.kernels.decomposition`).
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
            The status of each matrix, integers [B]; None without such a loop.
        """
        return None
