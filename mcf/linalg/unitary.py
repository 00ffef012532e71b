"""Rotations of complex matrices to Hessenberg and to triangular form, in two arithmetics.

A complex matrix is a real array [rows, 2, columns], real parts and imaginary parts. All is done by
rotations of neighbouring rows and columns, whose four numbers come from a real 4 by 4 matrix: sums
have no other order than the one written here.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch

from mcf.kernels import operations
from mcf.linalg.parts import Components, each
from mcf.reductions.products import matmul

# Of c, s with |c|^2 + |s|^2 = 1, as (Re c, Im c, Re s, Im s): rows x, y become
# conj(c) x + conj(s) y and c y - s x; columns x, y become c x + s y and conj(c) y - conj(s) x.
_PLACE = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]
_ROWS = [[1, 1, 1, 1], [-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]]
_COLUMNS = [[1, -1, 1, -1], [1, 1, 1, 1], [-1, -1, 1, 1], [1, -1, -1, 1]]
Four = tuple[float, float, float, float]
# A diagonal element, by its row, and the numbers that are taken off it: in expansions a shift has
# more bits than a float, without which eigenvalues that differ by less are not found apart.
Shift = tuple[int, float, float]


class Matrix(Protocol):
    """A complex matrix over a matrix of as many columns, which its columns' rotations turn too."""

    size: int

    def entry(self, i: int, j: int) -> tuple[float, float]:
        """An element of the upper matrix, rounded to float64."""

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """The difference of two diagonal elements of the upper matrix, rounded to float64."""

    def annihilate(self, p: int, column: int, shift: Shift | None) -> None:
        """Rotate rows and columns p, p + 1 by what makes (p + 1, column) zero.

        With a shift, as if it were taken off the diagonal element (p, column) before.
        """

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""


class Floats:
    """In float64 operations of NumPy, each rounded as IEEE 754 has it: the same bits everywhere."""

    def __init__(self, upper: np.ndarray[Any, Any], lower: np.ndarray[Any, Any]) -> None:
        """Over copies of two arrays [n, 2, n]."""
        self.both = np.concatenate((upper, lower))
        self.size = len(upper)
        self.place = np.array(_PLACE)
        self.signs = [np.array(s, dtype=np.float64) for s in (_ROWS, _COLUMNS)]

    def entry(self, i: int, j: int) -> tuple[float, float]:
        """An element of the upper matrix."""
        return self.both[i, 0, j].item(), self.both[i, 1, j].item()

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""
        self.both[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """The difference of two diagonal elements."""
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
    """Two complex numbers over the root of their squares' sum; None where the second is 0."""
    if four[2] == 0 and four[3] == 0:
        return None
    exponent = math.frexp(max(map(abs, four)))[1]
    a, b, c, d = (math.ldexp(v, -exponent) for v in four)
    root = math.sqrt((a * a + b * b) + (c * c + d * d))
    return a / root, b / root, c / root, d / root


def _combined(m: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """m x of [4, 4] and [4, columns], the four terms in order."""
    total: np.ndarray[Any, Any] = m[:, :1] * x[:1]
    for j in range(1, 4):
        total = total + m[:, j : j + 1] * x[j : j + 1]
    return total


class Expansions:
    """In expansions, components [n, 2, n]."""

    def __init__(self, upper: Components, lower: Components) -> None:
        """Over copies of two arrays."""
        self.both = tuple(torch.cat(pair) for pair in zip(upper, lower, strict=True))
        first = self.both[0]
        self.size = upper[0].shape[0]
        self.place = torch.tensor(_PLACE, device=first.device)
        self.signs = [torch.tensor(s, device=first.device).double() for s in (_ROWS, _COLUMNS)]

    def entry(self, i: int, j: int) -> tuple[float, float]:
        """An element of the upper matrix, its leading components."""
        x, y = self.both[0][i, :, j].tolist()
        return x, y

    def clear(self, i: int, j: int) -> None:
        """Set an element of the upper matrix to 0."""
        for c in self.both:
            c[i, :, j] = 0.0

    def apart(self, i: int, j: int) -> tuple[float, float]:
        """The difference of two diagonal elements, its leading components."""
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


# An eigenvalue takes two or three steps, in expansions a few more.
STEPS = 60


def triangular(a: Matrix, tolerance: float) -> bool:
    """Rotate a matrix to upper triangular form by unitary similarities, Z over it to Z Q^H.

    To Hessenberg form first, then by QR steps with Wilkinson's shifts (Golub, Van Loan 2013, Matrix
    Computations, section 7.5), whose distance from the last element needs float64 alone: any shift
    is a similarity.

    Args:
        a: turned in place.
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
    """The first row of the block that ends in row `high`; what is small before it becomes 0."""
    for k in range(high, 0, -1):
        beside = _size(a.entry(k, k)) + _size(a.entry(k - 1, k - 1))
        # Where both are 0, beside the largest, which is below 1.
        if _size(a.entry(k, k - 1)) <= tolerance * (beside or 1.0):
            a.clear(k, k - 1)
            return k
    return 0


def _size(z: tuple[float, float]) -> float:
    return abs(z[0]) + abs(z[1])


def _exceptional(a: Matrix, high: int) -> Shift:
    """A shift that no cycle knows of."""
    off = _size(a.entry(high, high - 1))
    return high, -0.75 * off, 0.4375 * off


def _wilkinson(a: Matrix, high: int) -> Shift:
    """The eigenvalue of the last two rows that is nearer to the last element.

    d + bc / (h +- sqrt(h^2 + bc)), h = (d - a) / 2, by real operations, whose roundings are known.
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
    """A square root."""
    x, y = z
    t = math.sqrt((abs(x) + math.sqrt(x * x + y * y)) / 2)
    if t == 0:
        return 0.0, 0.0
    other = y / (2 * t)
    return (t, other) if x >= 0 else (abs(other), math.copysign(t, y))
