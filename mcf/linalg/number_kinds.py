"""The arithmetic of factorisations, real or complex, as a parameter, and their working format.

A matrix of complex expansions is one tuple: the components of its real part, then those of its
imaginary part. Views, copies and selections of all components (`mcf.linalg.parts`) serve both
kinds. Decompositions work on float64 expansions, scaled, with one batch dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.convert.few import visible
from mcf.convert.rounding import convert
from mcf.kernels import operations
from mcf.kernels.algorithms.complex_elimination import less
from mcf.kernels.elimination import Elimination, elimination
from mcf.kernels.formats import FP64, format_of, power_of_two
from mcf.kernels.operators import COMPLEX_DIV, COMPLEX_MUL
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg.parts import Components, each, transpose
from mcf.reductions.products import matmul


class Real:
    """Real expansions: tuples of 1 to 4 components.

    The other arithmetic, `Complex`, has the same methods.
    """

    parts = 1

    def elimination(self, kind: str, a: Components) -> Elimination:
        """Return the elimination of such numbers; see `mcf.kernels.elimination`."""
        return elimination(kind, format_of(a[0].dtype), len(a) // self.parts, self.parts)

    def magnitude(self, x: Components) -> Tensor:
        """Return |x| from its first component."""
        return x[0].abs()

    def over(self, x: Components, y: Components) -> Components:
        """x / y."""
        return operations.div(x, y)

    def over_real(self, x: Components, y: Components) -> Components:
        """Return x / y for a real y, with as many components as a part."""
        return self.by_parts(lambda p: operations.div(p, y), x)

    def root(self, x: Components) -> Components:
        """Return the square root, a real number, of an x > 0 whose imaginary part is ignored."""
        return operations.sqrt(self.real(x))

    def of_real(self, x: Components) -> Components:
        """Convert a real number to this kind of number."""
        return x

    def times(self, x: Components, y: Components) -> Components:
        """x y."""
        return operations.mul(x, y)

    def minus(self, x: Components, y: Components) -> Components:
        """x - y."""
        return self.by_parts(operations.sub, x, y)

    def less_product(self, z: Components, m: Components, w: Components) -> Components:
        """Return z - m w, as `mcf.kernels.algorithms.elimination` rounds it."""
        return operations.fma(operations.neg(m), w, z)

    def less_conjugate(self, z: Components, m: Components, w: Components) -> Components:
        """Return z - conj(m) w."""
        return self.less_product(z, m, w)

    def by_parts(self, function: Callable[..., Components], *given: Components) -> Components:
        """Apply a function of real numbers to each part."""
        return function(*given)

    def matmul(self, x: Components, y: Components) -> Components:
        """Return the matrix product."""
        return matmul(x, y)

    def hermitian(self, x: Components) -> Components:
        """Return the matrix itself: real products of rows are symmetric bit for bit."""
        return x

    def of_triangle(self, x: Components, upper: bool) -> Components:
        """Return the Hermitian matrix of one triangle, whose diagonal is real."""
        triangle = each(lambda c: c.triu() if upper else c.tril(), x)
        return each(lambda c: c + (c.mT.tril(-1) if upper else c.mT.triu(1)), triangle)

    def mean_size(self, x: Components) -> Tensor:
        """Return the magnitude of (X + X^H) / 2, from first components."""
        return (x[0] + x[0].mT).abs() / 2

    def leading(self, x: Components) -> Components:
        """Return the first component of each part."""
        return self.by_parts(lambda p: p[:1], x)

    def real(self, x: Components) -> Components:
        """Return the real part."""
        return x

    def is_real(self, x: Components) -> Tensor:
        """Return where the imaginary part is zero."""
        return torch.ones_like(x[0], dtype=torch.bool)

    def conj(self, x: Components) -> Components:
        """Return the complex conjugate."""
        return x

    def adjoint(self, x: Components) -> Components:
        """Return the conjugate transpose."""
        return transpose(self.conj(x))


class Complex(Real):
    """Complex expansions: 2 to 8 components."""

    parts = 2

    def magnitude(self, x: Components) -> Tensor:
        size: Tensor = x[0].abs() + x[len(x) // 2].abs()
        return size

    def over(self, x: Components, y: Components) -> Components:
        return operations.apply(COMPLEX_DIV, (*halves(x), *halves(y)))

    def of_real(self, x: Components) -> Components:
        return (*x, *each(torch.zeros_like, x))

    def times(self, x: Components, y: Components) -> Components:
        return operations.apply(COMPLEX_MUL, (*halves(x), *halves(y)))

    def by_parts(self, function: Callable[..., Components], *given: Components) -> Components:
        real, imag = zip(*map(halves, given), strict=True)
        return (*function(*real), *function(*imag))

    def less_product(self, z: Components, m: Components, w: Components) -> Components:
        """Return z - m w, as `mcf.kernels.algorithms.complex_elimination` rounds it."""
        return self._less(z, m, w, conjugate=False)

    def less_conjugate(self, z: Components, m: Components, w: Components) -> Components:
        return self._less(z, m, w, conjugate=True)

    def _less(self, z: Components, m: Components, w: Components, conjugate: bool) -> Components:
        parts = (*halves(z), *halves(m), *halves(w))
        real, imag = less(operations.fma, operations.neg, parts, conjugate)
        return (*real, *imag)

    def matmul(self, x: Components, y: Components) -> Components:
        """Return the matrix product, computed as two real ones of twice the inner length."""

        # Real and imaginary parts alternate along the inner dimension, as in a complex fold.
        def beside(x: Components, y: Components, dim: int) -> Components:
            kept = x[0].dim() + dim
            turns = (torch.stack(both, dim) for both in zip(x, y, strict=True))
            return tuple(c.flatten(kept, kept + 1) for c in turns)

        # (A + iB)(C + iD) = [A, -B] [C; D] + i [A, B] [D; C].
        (a, b), (c, d) = halves(x), halves(y)
        real = matmul(beside(a, operations.neg(b), -1), beside(c, d, -2))
        return (*real, *matmul(beside(a, b, -1), beside(d, c, -2)))

    def hermitian(self, x: Components) -> Components:
        """Return the Hermitian matrix of an upper triangle; below it roundings differ."""
        above = torch.ones_like(x[0], dtype=torch.bool).triu()
        real, imag = (
            tuple(torch.where(above, c, d.mT) for c, d in zip(p, other, strict=True))
            for p, other in zip(halves(x), halves(self.conj(x)), strict=True)
        )
        for c in imag:
            c.diagonal(dim1=-2, dim2=-1).zero_()
        return (*real, *imag)

    def of_triangle(self, x: Components, upper: bool) -> Components:
        return self.hermitian(x if upper else self.adjoint(x))

    def mean_size(self, x: Components) -> Tensor:
        real, imag = x[0], x[len(x) // 2]
        size: Tensor = ((real + real.mT) / 2).abs() + ((imag - imag.mT) / 2).abs()
        return size

    def real(self, x: Components) -> Components:
        return halves(x)[0]

    def is_real(self, x: Components) -> Tensor:
        found: Tensor = halves(x)[1][0] == 0
        return found

    def conj(self, x: Components) -> Components:
        real, imag = halves(x)
        return (*real, *operations.neg(imag))


REAL, COMPLEX = Real(), Complex()


def halves(x: Components) -> tuple[Components, Components]:
    """Return the real and the imaginary part of complex numbers."""
    return x[: len(x) // 2], x[len(x) // 2 :]


def working_terms(x: Components) -> int:
    """Return how many float64 components hold all bits of x, at least two (4 x 24 bits fit two)."""
    return max(2, len(x)) if x[0].dtype is torch.float64 else 2


def flattened(a: Components, numbers: Real = REAL) -> Components:
    """Return A [..., m, n] as float64 components [batch, m, n]."""
    refuse_float32("a decomposition", format_of(a[0].dtype), a[0].device)
    wide = numbers.by_parts(lambda p: convert(p, torch.float64, working_terms(p)), a)
    return each(lambda c: c.reshape(math.prod(a[0].shape[:-2]), *a[0].shape[-2:]), wide)


def opened(a: Components, numbers: Real = REAL) -> tuple[Components, Tensor]:
    """Return A 2^-k as float64 components [batch, m, n] with largest element in [1/2, 1), and k."""
    flat = flattened(a, numbers)
    if 0 in flat[0].shape[1:]:
        return flat, torch.zeros(flat[0].shape[0], dtype=torch.int64, device=flat[0].device)
    largest = torch.stack([c.abs().amax((1, 2)) for c in numbers.leading(flat)]).amax(0)
    exponent = torch.frexp(largest)[1].long()
    less = -exponent[:, None, None]
    return numbers.by_parts(lambda p: _scaled(p, less), flat), exponent


def _scaled(x: Components, exponent: Tensor | int) -> Components:
    """Return x 2^exponent of float64 components, by one product each if that is exact."""
    if isinstance(exponent, int) and exponent == 0:
        return x
    if isinstance(exponent, int) or exponent.numel() == 0 or not visible(x[0]):
        return operations.ldexp(x, exponent)
    low, high = exponent.aminmax()
    if not (FP64.emin <= low.item() and high.item() <= FP64.emax):
        return operations.ldexp(x, exponent)
    factor = power_of_two(exponent)
    out = [c * factor for c in x]
    # No check is needed below the range: smaller components are lost anyway.
    if not math.isfinite(out[0].sum().item()):
        return operations.ldexp(x, exponent)
    return tuple(out)


def closed(
    x: Components, a: Components, exponent: Tensor | int = 0, numbers: Real = REAL
) -> Components:
    """Return x [batch, ...] times 2^exponent, rounded to A's format, and with A's batch shape."""
    if isinstance(exponent, Tensor):
        exponent = exponent.reshape(-1, *(1 for _ in x[0].shape[1:]))
    fmt, terms = a[0].dtype, len(a) // numbers.parts
    whole = numbers.by_parts(lambda p: convert(_scaled(p, exponent), fmt, terms), x)
    return each(lambda c: c.reshape(*a[0].shape[:-2], *x[0].shape[1:]), whole)


def descending(x: Components) -> Tensor:
    """Return indices [batch, n] that sort x in descending order, stably."""
    index: Tensor | None = None
    for c in reversed(convert(x, torch.float64, len(x))):
        key = c if index is None else c.gather(-1, index)
        step = torch.sort(key, dim=-1, descending=True, stable=True).indices
        index = step if index is None else index.gather(-1, step)
    assert index is not None
    return index


def rows_in(order: Tensor, x: Components) -> Components:
    """Return the rows of x [batch, n, m] in the given order [batch, n]."""
    index = order[..., None].expand(*order.shape, x[0].shape[-1])
    return each(lambda c: c.gather(1, index), x)


def squared_norms(x: Components, numbers: Real = REAL) -> Components:
    """Return x x^H of each row x, for x [batch, n, m]."""
    lying = each(lambda c: c[..., None, :], x)
    product = numbers.real(numbers.matmul(lying, numbers.adjoint(lying)))
    return each(lambda c: c[..., 0, 0], product)
