"""What factorisations ask of their numbers, real or complex: the arithmetic is a parameter.

A matrix of complex expansions is one tuple, the components of its real part before those of the
imaginary one; views, copies and choices of all components (`mcf.linalg.parts`) serve both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.kernels.algorithms.complex_elimination import less
from mcf.kernels.complex_operators import DIV, MUL
from mcf.kernels.elimination import Elimination, elimination
from mcf.kernels.formats import format_of
from mcf.linalg.parts import Components, each, transpose
from mcf.reductions.products import matmul


def in_real_products(
    a: Any, b: Any, c: Any, d: Any, minus: Any, beside: Any, product: Any
) -> tuple[Any, Any]:
    """(A + iB)(C + iD) = [A, -B] [C; D] + i [A, B] [D; C].

    Args:
        a: A, or whatever the functions take; likewise b, c, d.
        b: B.
        c: C.
        d: D.
        minus: x -> -x.
        beside: two matrices and a dimension -> both, one after the other.
        product: of two real matrices.
    """
    right = product(beside(a, minus(b), -1), beside(c, d, -2))
    return right, product(beside(a, b, -1), beside(d, c, -2))


class Real:
    """Real expansions: tuples of 1 to 4 components.

    The other arithmetic, `Complex`, has the same methods.
    """

    parts = 1

    def elimination(self, kind: str, a: Components) -> Elimination:
        """The elimination of such numbers; see `mcf.kernels.elimination`."""
        return elimination(kind, format_of(a[0].dtype), len(a) // self.parts, self.parts)

    def magnitude(self, x: Components) -> Tensor:
        """|x| by its first component."""
        return x[0].abs()

    def over(self, x: Components, y: Components) -> Components:
        """x / y."""
        return operations.div(x, y)

    def over_real(self, x: Components, y: Components) -> Components:
        """x / y for a real y, of as many components as a part."""
        return operations.div(x, y)

    def root(self, x: Components) -> Components:
        """The square root of x > 0, a real number."""
        return operations.sqrt(x)

    def of_real(self, x: Components) -> Components:
        """A real number as one of these."""
        return x

    def times(self, x: Components, y: Components) -> Components:
        """x y."""
        return operations.mul(x, y)

    def minus(self, x: Components, y: Components) -> Components:
        """x - y."""
        return operations.sub(x, y)

    def less_product(self, z: Components, m: Components, w: Components) -> Components:
        """z - m w, as `mcf.kernels.algorithms.elimination` rounds it."""
        return operations.fma(operations.neg(m), w, z)

    def less_conjugate(self, z: Components, m: Components, w: Components) -> Components:
        """z - conj(m) w."""
        return self.less_product(z, m, w)

    def by_parts(self, function: Callable[..., Components], *given: Components) -> Components:
        """A function of real numbers, of each part."""
        return function(*given)

    def matmul(self, x: Components, y: Components) -> Components:
        """The matrix product."""
        return matmul(x, y)

    def hermitian(self, x: Components) -> Components:
        """The Hermitian matrix of an upper triangle, for one that is Hermitian but for rounding."""
        return x

    def of_triangle(self, x: Components, upper: bool) -> Components:
        """The Hermitian matrix of one triangle, whose diagonal is real."""
        triangle = each(lambda c: c.triu() if upper else c.tril(), x)
        return each(lambda c: c + (c.mT.tril(-1) if upper else c.mT.triu(1)), triangle)

    def mean_size(self, x: Components) -> Tensor:
        """The magnitude of (X + X^H) / 2, of first components."""
        return (x[0] + x[0].mT).abs() / 2

    def leading(self, x: Components) -> Components:
        """The first component of each part."""
        return self.by_parts(lambda p: p[:1], x)

    def real(self, x: Components) -> Components:
        """The real part."""
        return x

    def is_real(self, x: Components) -> Tensor:
        """Whether there is no imaginary part."""
        return torch.ones_like(x[0], dtype=torch.bool)

    def conj(self, x: Components) -> Components:
        """The complex conjugate."""
        return x

    def adjoint(self, x: Components) -> Components:
        """The transpose, of the conjugate."""
        return transpose(self.conj(x))


class Complex(Real):
    """Complex expansions: 2 to 8 components."""

    parts = 2

    def magnitude(self, x: Components) -> Tensor:
        """|Re x| + |Im x| by first components."""
        size: Tensor = x[0].abs() + x[len(x) // 2].abs()
        return size

    def over(self, x: Components, y: Components) -> Components:
        """x / y."""
        return operations.apply(DIV, (*halves(x), *halves(y)), None)

    def over_real(self, x: Components, y: Components) -> Components:
        """Both parts over a real y."""
        return tuple(c for p in halves(x) for c in operations.div(p, y))

    def root(self, x: Components) -> Components:
        """The square root of Re x > 0, a real number."""
        return operations.sqrt(halves(x)[0])

    def of_real(self, x: Components) -> Components:
        """A real number as one of these."""
        return (*x, *each(torch.zeros_like, x))

    def times(self, x: Components, y: Components) -> Components:
        """x y."""
        return operations.apply(MUL, (*halves(x), *halves(y)), None)

    def minus(self, x: Components, y: Components) -> Components:
        """x - y."""
        return self.by_parts(operations.sub, x, y)

    def by_parts(self, function: Callable[..., Components], *given: Components) -> Components:
        """A function of real numbers, of each part."""
        real, imag = zip(*map(halves, given), strict=True)
        return (*function(*real), *function(*imag))

    def less_product(self, z: Components, m: Components, w: Components) -> Components:
        """z - m w, as `mcf.kernels.algorithms.complex_elimination` rounds it."""
        return self._less(z, m, w, conjugate=False)

    def less_conjugate(self, z: Components, m: Components, w: Components) -> Components:
        """z - conj(m) w."""
        return self._less(z, m, w, conjugate=True)

    def _less(self, z: Components, m: Components, w: Components, conjugate: bool) -> Components:
        parts = (*halves(z), *halves(m), *halves(w))
        real, imag = less(operations.fma, operations.neg, parts, conjugate)
        return (*real, *imag)

    def matmul(self, x: Components, y: Components) -> Components:
        """The matrix product, by two real ones of twice the length."""

        # Real and imaginary numbers in turn: so a fold is one of complex numbers.
        def beside(x: Components, y: Components, dim: int) -> Components:
            kept = x[0].dim() + dim
            turns = (torch.stack(both, dim) for both in zip(x, y, strict=True))
            return tuple(c.flatten(kept, kept + 1) for c in turns)

        found = in_real_products(*halves(x), *halves(y), operations.neg, beside, matmul)
        return (*found[0], *found[1])

    def hermitian(self, x: Components) -> Components:
        """The Hermitian matrix of an upper triangle: products of rows have other sums below it."""
        above = torch.ones_like(x[0], dtype=torch.bool).triu()
        real, imag = (
            tuple(torch.where(above, c, d.mT) for c, d in zip(p, other, strict=True))
            for p, other in zip(halves(x), halves(self.conj(x)), strict=True)
        )
        for c in imag:
            c.diagonal(dim1=-2, dim2=-1).zero_()
        return (*real, *imag)

    def of_triangle(self, x: Components, upper: bool) -> Components:
        """The Hermitian matrix of one triangle, whose diagonal is real."""
        return self.hermitian(x if upper else self.adjoint(x))

    def mean_size(self, x: Components) -> Tensor:
        """The magnitude of (X + X^H) / 2, of first components."""
        real, imag = x[0], x[len(x) // 2]
        size: Tensor = ((real + real.mT) / 2).abs() + ((imag - imag.mT) / 2).abs()
        return size

    def real(self, x: Components) -> Components:
        """The real part."""
        return halves(x)[0]

    def is_real(self, x: Components) -> Tensor:
        """Whether there is no imaginary part."""
        found: Tensor = halves(x)[1][0] == 0
        return found

    def conj(self, x: Components) -> Components:
        """The complex conjugate."""
        real, imag = halves(x)
        return (*real, *operations.neg(imag))


REAL, COMPLEX = Real(), Complex()


def halves(x: Components) -> tuple[Components, Components]:
    """The real and the imaginary part of complex numbers."""
    return x[: len(x) // 2], x[len(x) // 2 :]
