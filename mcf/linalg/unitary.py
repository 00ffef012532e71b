"""Rotate complex matrices to Hessenberg and to triangular form, in two arithmetics.

A complex matrix is a real array [rows, 2, columns] of real and imaginary parts. Only neighbouring
rows and columns are rotated; a real 4 by 4 matrix gives the four new numbers. All sums have the
order written here.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch

from mcf.kernels import operations
from mcf.linalg.parts import Components, each
from mcf.reductions.products import matmul

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
        """Return an element of the upper matrix."""
        return self.both[i, 0, j].item(), self.both[i, 1, j].item()

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""
        self.both[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """Return the difference of two diagonal elements."""
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
        """Return the leading components of an element of the upper matrix."""
        x, y = self.both[0][i, :, j].tolist()
        return x, y

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""
        for c in self.both:
            c[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """Return the leading components of the difference of two diagonal elements."""
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


def triangular(a: Matrix, tolerance: float) -> bool:
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
