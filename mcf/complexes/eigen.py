"""Eigenvalues and eigenvectors of general matrices.

They start from the Schur form, in two arithmetics. There a complex matrix is a real array
[rows, 2, columns] of real and imaginary parts. Only neighbouring rows and columns are rotated; a
real 4 by 4 matrix gives the four new numbers. All sums have the order written here.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mcf.complexes.factors import leading, solve
from mcf.complexes.tensor import MCFComplexTensor, pair
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg.parts import Components, each
from mcf.reductions.products import matmul

# Corrections larger than this do not belong to a nearby decomposition.
LARGE = 0.125
# Eigenvalues closer than this, whose vectors mix by less than that, count as equal.
EQUAL, MIXED = 2.0**-26, 2.0**-40
ROUNDS = 8


def decompose(a: MCFComplexTensor, real: bool) -> tuple[MCFComplexTensor, MCFComplexTensor] | None:
    """Return w and V with A V = V diag(w), |v| = 1, each vector's largest element positive.

    The start is the Schur form in float64, by rotations. Then W = V^-1
    A V is formed in expansions, and V <- V + V F with F_ij = W_ij / (w_j - w_i), which squares the
    error (Bauer, Fike 1960, doi:10.1007/BF01386217, have the perturbation series). If F does not
    become small, or the residual stays large, as for defective matrices and clusters, the Schur
    form is computed in expansions.

    Args:
        a: [n, n] of float64 components, the largest element in [1/2, 1).
        real: whether the imaginary part is 0. Then simple real eigenvalues are real, and other
            simple ones come in conjugate pairs.

    Returns:
        None if neither converges. Otherwise each |A v - w v| <= 16 n u^terms |A| (Frobenius).
    """
    unit = 2.0 ** (-53 * a.terms)
    n = a.shape[0]
    size = float((a.real.square() + a.imag.square()).sum().sqrt())
    limit = 16 * n * unit * size
    vectors = _refined(a, _schur_vectors(a, exact=False), unit)
    if vectors is not None:
        values = _quotients(a, vectors)
        if real:
            values, vectors = _paired(a, values, vectors, limit)
        if bool((_residuals(a, values, vectors) <= limit).all()):
            return values, vectors
    vectors = _schur_vectors(a, exact=True)
    if vectors is None:
        return None
    vectors = _normalised(vectors)
    values = _quotients(a, vectors)
    return _paired(a, values, vectors, limit) if real else (values, vectors)


def _schur_vectors(a: MCFComplexTensor, exact: bool) -> Any:
    """Return Z X with A Z = Z T and T X = X diag(T), in float64 or in expansions."""
    n = a.shape[0]
    device = a.device
    both = [torch.stack(p, 1) for p in zip(a.real.components, a.imag.components, strict=True)]
    eye = torch.zeros(n, 2, n, dtype=torch.float64, device=device)
    eye[:, 0].fill_diagonal_(1.0)
    if exact:
        rest = [torch.zeros_like(eye)] * (a.terms - 1)
        form: Any = Expansions(tuple(both), (eye, *rest))
    else:
        form = Floats(both[0].cpu().numpy(), eye.cpu().numpy())
    unit = 2.0 ** (-53 * a.terms) if exact else 2.0**-53
    if not schur(form, unit):
        return None
    if exact:
        found = form.both
    else:
        plain = torch.from_numpy(form.both).to(device)
        found = (plain, *[torch.zeros_like(plain)] * (a.terms - 1))
    t, z = (
        MCFComplexTensor(*(wrap([c[rows, k].contiguous() for c in found]) for k in (0, 1)))
        for rows in (slice(0, n), slice(n, 2 * n))
    )
    return z @ _triangular_vectors(t, unit)


def _triangular_vectors(t: Any, unit: float) -> Any:
    """Return X, upper triangular with ones on the diagonal, with T X = X diag(T).

    Divisors below the rounding error of T are replaced by it, and growing columns are scaled down.
    """
    n = t.shape[0]
    values = t.diagonal()
    floor = unit * float(torch.abs(t.real).max() + torch.abs(t.imag).max() or 1.0)
    x = pair(torch.eye(n, dtype=torch.float64, device=t.device), torch.zeros_like(t.imag))
    for i in range(n - 2, -1, -1):
        over = t[i, i + 1 :] @ x[i + 1 :, i + 1 :]
        gap = values[i + 1 :] - values[i]
        gap = torch.where((torch.abs(gap) < floor), floor, gap)
        x[i, i + 1 :] = over / gap
        top = leading(x).amax(0)
        if bool((top > 2.0**200).any()):
            x = x * _power(-torch.frexp(top)[1])
    return x


def _normalised(v: Any) -> Any:
    """Return unit columns whose largest element (the first if equal) is real and positive."""
    size = v.real.components[0].square() + v.imag.components[0].square()
    # Scale by powers of two, so that all squares stay in range.
    v = v * _power(-(torch.frexp(size.amax(0))[1] // 2))
    largest = size.argmax(0, keepdim=True)
    phase = v.gather(0, largest)
    v = v * (torch.conj(phase) / torch.abs(phase))
    return v / (v.real.square() + v.imag.square()).sum(0).sqrt()


def _power(exponent: Tensor) -> Tensor:
    """Return 2**exponent in float64, exactly (`torch.ldexp` multiplies by a `pow`)."""
    one = torch.ones(exponent.shape, dtype=torch.float64, device=exponent.device)
    return operations.ldexp((one,), exponent)[0]


def _refined(a: MCFComplexTensor, v: Any, unit: float) -> Any:
    """Refine eigenvectors to all components; return None without convergence."""
    if v is None:
        return None
    n = a.shape[0]
    eye = torch.eye(n, dtype=torch.bool, device=a.device)
    for _ in range(ROUNDS):
        v = _normalised(v)
        if not bool(torch.isfinite(v).all()):
            return None
        try:
            w = solve(v, a @ v)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None
        values = w.diagonal()
        gap = values[None, :] - values[:, None]
        near, small = leading(gap) < EQUAL, leading(w) < MIXED
        still = eye | (near & small)
        f: Any = torch.where(still, 0.0, w / torch.where(still, 1.0, gap))
        worst = float(leading(f).max())
        if not worst <= LARGE:
            return None
        v = v + v @ f
        if worst * worst * n <= unit:
            return _normalised(v)
    return None


def _quotients(a: Any, v: Any) -> Any:
    """Return v^H A v of each unit column, the value with the least residual."""
    product = torch.conj(v).mT[:, None, :] @ (a @ v).mT[:, :, None]
    return product[:, 0, 0]


def _residuals(a: Any, values: Any, v: Any) -> Tensor:
    """Return |A v - w v| of each column."""
    error = a @ v - v * values
    found: Tensor = (error.real.square() + error.imag.square()).sum(0).sqrt().components[0]
    return found


def _paired(a: Any, values: Any, v: Any, limit: float) -> Any:
    """Pair the eigenvalues of a real matrix: real values with real vectors, and conjugate pairs.

    Each value's partner is the one nearest to its conjugate. If two do not choose each other, or
    the residual would grow, the result stays unchanged.
    """
    distance = leading(values[:, None] - torch.conj(values)[None, :])
    partner = distance.argmin(1)
    place = torch.arange(len(partner), device=partner.device)
    mutual = partner[partner] == place
    alone = mutual & (partner == place)
    below = mutual & ~alone & (values.imag.components[0] < 0)
    zero = torch.zeros_like(values.imag)
    w = MCFComplexTensor(
        torch.where(below, values.real[partner], values.real),  # type: ignore[arg-type]
        torch.where(alone, zero, torch.where(below, -values.imag[partner], values.imag)),  # type: ignore[arg-type]
    )
    other = v[:, partner]
    x = MCFComplexTensor(
        torch.where(below, other.real, v.real),  # type: ignore[arg-type]
        torch.where(alone, torch.zeros_like(v.imag), torch.where(below, -other.imag, v.imag)),  # type: ignore[arg-type]
    )
    x = x / (x.real.square() + x.imag.square()).sum(0).sqrt()
    good = (_residuals(a, w, x) <= limit) & mutual
    good = good & good[partner]
    return torch.where(good, w, values), torch.where(good, x, v)  # type: ignore[call-overload]


def scaled(a: MCFComplexTensor) -> tuple[MCFComplexTensor, Tensor]:
    """Return A 2^-k with at least two float64 components, the largest part in [1/2, 1), and k."""
    refuse_float32("eig", format_of(a.dtype), a.device)
    terms = max(2, a.terms)
    wide = [p.to(torch.float64, terms=terms) for p in (a.real, a.imag)]
    largest = torch.maximum(*(p.components[0].abs() for p in wide)).max()
    exponent = torch.frexp(largest)[1].long()
    return MCFComplexTensor(
        *(wrap(operations.ldexp(p.components, -exponent)) for p in wide)
    ), exponent


def unscaled(z: MCFComplexTensor, exponent: Tensor | int, like: MCFTensor) -> MCFComplexTensor:
    """Return z 2^k rounded to another tensor's format."""
    found = (wrap(operations.ldexp(p.components, exponent)) for p in (z.real, z.imag))
    return MCFComplexTensor(*(p.to(like.dtype, terms=like.terms) for p in found))


# Tables for c, s with |c|^2 + |s|^2 = 1, as (Re c, Im c, Re s, Im s): rows x, y become conj(c) x +
# conj(s) y and c y - s x; columns x, y become c x + s y and conj(c) y - conj(s) x.
_PLACE = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
_ROWS = [[1, 1, 1, 1], [-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]]
_COLUMNS = [[1, -1, 1, -1], [1, 1, 1, 1], [-1, -1, 1, 1], [1, -1, -1, 1]]
Four = tuple[float, float, float, float]
# A row of the diagonal element, and the parts of a number to subtract from it. With expansions a
# shift needs more bits than a float; otherwise eigenvalues that differ by less are not separated.
Shift = tuple[int, float, float]


class Matrix(Protocol):
    """A complex matrix stacked on another with as many columns; column rotations act on both."""

    size: int

    def entry(self, i: int, j: int) -> tuple[float, float]:
        """Return an element of the upper matrix, rounded to float64."""

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """Return the difference of two diagonal elements, rounded to float64."""

    def annihilate(self, p: int, column: int, shift: Shift | None) -> None:
        """Rotate rows and columns p, p + 1 so that element (p + 1, column) becomes zero.

        With a shift, the rotation is computed as if the shift were subtracted from the diagonal
        element (p, column) first.
        """

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""


class Floats:
    """A matrix of float64 numbers; NumPy rounds each operation as IEEE 754 requires."""

    def __init__(self, upper: np.ndarray[Any, Any], lower: np.ndarray[Any, Any]) -> None:
        """Copy two arrays [n, 2, n]."""
        self.both = np.concatenate((upper, lower))
        self.size = len(upper)
        self.place = np.array(_PLACE)
        self.signs = [np.array(s, dtype=np.float64) for s in (_ROWS, _COLUMNS)]

    def entry(self, i: int, j: int) -> tuple[float, float]:
        return self.both[i, 0, j].item(), self.both[i, 1, j].item()

    def clear(self, i: int, j: int) -> None:
        self.both[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        (p, q), (x, y) = self.entry(i, i), self.entry(j, j)
        return p - x, q - y

    def annihilate(self, p: int, column: int, shift: Shift | None) -> None:
        four = [*self.entry(p, column), *self.entry(p + 1, column)]
        if shift is not None:
            row, dx, dy = shift
            x, y = self.entry(row, row)
            four[0], four[1] = four[0] - (x - dx), four[1] - (y - dy)
        turn = unit(four)
        if turn is None:
            return
        v = np.array(turn)[self.place]
        rows, columns = v * self.signs[0], v * self.signs[1]
        n = self.size
        self.both[p : p + 2] = _combined(rows, self.both[p : p + 2].reshape(4, n)).reshape(2, 2, n)
        part = self.both[:, :, p : p + 2].transpose(2, 1, 0).reshape(4, 2 * n)
        turned = _combined(columns, part).reshape(2, 2, 2 * n)
        self.both[:, :, p : p + 2] = turned.transpose(2, 1, 0)


def unit(four: list[float]) -> Four | None:
    """Return two complex numbers over their 2-norm; None if the second is 0."""
    if four[2] == 0 and four[3] == 0:
        return None
    exponent = math.frexp(max(map(abs, four)))[1]
    a, b, c, d = (math.ldexp(v, -exponent) for v in four)
    root = math.sqrt((a * a + b * b) + (c * c + d * d))
    return a / root, b / root, c / root, d / root


def _combined(m: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return m x for [4, 4] and [4, columns], adding the four terms in order."""
    total: np.ndarray[Any, Any] = m[:, :1] * x[:1]
    for j in range(1, 4):
        total = total + m[:, j : j + 1] * x[j : j + 1]
    return total


class Expansions:
    """A matrix of expansions, with components [n, 2, n]."""

    def __init__(self, upper: Components, lower: Components) -> None:
        """Copy two arrays."""
        self.both = tuple(torch.cat(pair) for pair in zip(upper, lower, strict=True))
        first = self.both[0]
        self.size = upper[0].shape[0]
        self.place = torch.tensor(_PLACE, device=first.device)
        self.signs = [torch.tensor(s, device=first.device).double() for s in (_ROWS, _COLUMNS)]

    def entry(self, i: int, j: int) -> tuple[float, float]:
        x, y = self.both[0][i, :, j].tolist()
        return x, y

    def clear(self, i: int, j: int) -> None:
        for c in self.both:
            c[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        one, other = (tuple(c[k, :, k] for c in self.both) for k in (i, j))
        x, y = operations.sub(one, other)[0].tolist()
        return x, y

    def annihilate(self, p: int, column: int, shift: Shift | None) -> None:
        four = each(lambda c: c[p : p + 2, :, column].reshape(4), self.both)
        if shift is not None:
            row, *less = shift
            zeros = torch.zeros(2, dtype=torch.float64, device=four[0].device)
            last = each(lambda c: torch.cat((c[row, :, row], zeros)), self.both)
            taken = torch.tensor([*less, 0.0, 0.0], dtype=torch.float64, device=four[0].device)
            four = operations.add(operations.sub(four, last), taken)
        if not bool(four[0][2:].any()):
            return
        exponent = torch.frexp(four[0].abs().max())[1].long()
        four = operations.ldexp(four, -exponent)
        size = operations.sqrt(matmul(four, four))
        v = each(lambda c: c[self.place], operations.div(four, size))
        rows, columns = (each(lambda c, s=s: c * s, v) for s in self.signs)  # type: ignore[misc]
        n = self.size
        part = each(lambda c: c[p : p + 2].reshape(4, n), self.both)
        for c, new in zip(self.both, matmul(rows, part), strict=True):
            c[p : p + 2] = new.reshape(2, 2, n)
        part = each(lambda c: c[:, :, p : p + 2].permute(2, 1, 0).reshape(4, 2 * n), self.both)
        for c, new in zip(self.both, matmul(columns, part), strict=True):
            c[:, :, p : p + 2] = new.reshape(2, 2, 2 * n).permute(2, 1, 0)


# Limit of steps per eigenvalue: two or three are usual, a few more for expansions.
STEPS = 60


def schur(a: Matrix, tolerance: float) -> bool:
    """Rotate a matrix to upper triangular form by unitary similarities; Z below it becomes Z Q^H.

    First to Hessenberg form, then by QR steps with Wilkinson's shifts (Golub, Van Loan 2013, Matrix
    Computations, section 7.5). The distance of a shift from the last element needs only float64:
    any shift gives a similarity.

    Args:
        a: the matrices, rotated in place.
        tolerance: subdiagonal elements of at most this, relative to their neighbours on the
            diagonal, are set to 0.

    Returns:
        Whether all of them became so small.
    """
    n = a.size
    for column in range(n - 2):
        for p in range(n - 2, column, -1):
            a.annihilate(p, column, None)
            a.clear(p + 1, column)
    high, steps = n - 1, 0
    while high > 0:
        low = _deflated(a, high, tolerance)
        if low == high:
            high, steps = high - 1, 0
            continue
        steps += 1
        if steps > STEPS:
            return False
        shift = _exceptional(a, high) if steps % 12 == 0 else _wilkinson(a, high)
        a.annihilate(low, low, shift)
        for p in range(low + 1, high):
            a.annihilate(p, p - 1, None)
            a.clear(p + 1, p - 1)
    return True


def _deflated(a: Matrix, high: int, tolerance: float) -> int:
    """Return the first row of the block that ends in row `high`; deflate above it."""
    for k in range(high, 0, -1):
        beside = _size(a.entry(k, k)) + _size(a.entry(k - 1, k - 1))
        # If both are 0, compare with the largest element, which is below 1.
        if _size(a.entry(k, k - 1)) <= tolerance * (beside or 1.0):
            a.clear(k, k - 1)
            return k
    return 0


def _size(z: tuple[float, float]) -> float:
    return abs(z[0]) + abs(z[1])


def _exceptional(a: Matrix, high: int) -> Shift:
    """Return an exceptional shift, which breaks cycles."""
    off = _size(a.entry(high, high - 1))
    return high, -0.75 * off, 0.4375 * off


def _wilkinson(a: Matrix, high: int) -> Shift:
    """Return the eigenvalue of the last 2 by 2 block that is nearer to the last element.

    d + bc / (h +- sqrt(h^2 + bc)), h = (d - a) / 2, by real operations with known roundings.
    """
    k = high - 1
    p, q = a.apart(k, high)
    bc = _times(a.entry(k, high), a.entry(high, k))
    half = (p / 2, q / 2)
    square = _times(half, half)
    root = _root((square[0] + bc[0], square[1] + bc[1]))
    if half[0] * root[0] + half[1] * root[1] < 0:
        root = (-root[0], -root[1])
    under = (half[0] + root[0], half[1] + root[1])
    size = under[0] * under[0] + under[1] * under[1]
    if size == 0:
        return high, 0.0, 0.0
    top = _times(bc, (under[0], -under[1]))
    return high, top[0] / size, top[1] / size


def _times(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _root(z: tuple[float, float]) -> tuple[float, float]:
    """Return a square root of a complex number."""
    x, y = z
    t = math.sqrt((abs(x) + math.sqrt(x * x + y * y)) / 2)
    if t == 0:
        return 0.0, 0.0
    other = y / (2 * t)
    return (t, other) if x >= 0 else (abs(other), math.copysign(t, y))
