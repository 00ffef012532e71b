"""Permutations, signs and integers computed from pivots of factorisations, as native steps.

Each is the call of a `program.Launch` for a small batch of matrices.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from mcf.kernels.program import native_words
from mcf.kernels.sequence import Bindable, Bound


class Permutations(Bindable):
    """Write the ones of P, with P L U = A, into a tensor of zeros [batch, rows, rows].

    Its operands are the pivots, int64 [batch, columns] from 1, and the tensor.
    """

    def __init__(self, batch: int, rows: int, columns: int, size: int) -> None:
        """Prepare for `rows` rows and `columns` pivots; elements of P have `size` bytes."""
        self._head = [batch, rows, columns, size, _one(size)]

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Return the call for these addresses."""
        order = array("q", bytes(8 * self._head[1]))
        head = [*self._head, order.buffer_info()[0]]
        return native_words("permutations", _PERMUTATIONS, head, [*addresses], order)


class Signs(Bindable):
    """Compute the signs of determinants, as components of which only the first is not 0.

    The operands are the first component of L U [batch, rows, rows], the pivots, int64 [batch, rows]
    from 1, and the result's components [batch]. A factor of 0 or NaN gives 0, with the sign of all
    other factors.
    """

    def __init__(self, batch: int, rows: int, terms: int, size: int) -> None:
        """Prepare for matrices of `rows` rows; `terms` components of `size` bytes in the result."""
        bits = 8 * size - 1
        infinity = 0x7FF << 52 if size == 8 else 0xFF << 23
        self._head = [batch, rows, size, terms, bits, (1 << bits) - 1, infinity, _one(size)]

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Return the call for these addresses."""
        return native_words("signs", _SIGNS, self._head, [*addresses], None)


class Narrowed(Bindable):
    """Convert int64 numbers to int32; the operands are the source and the target."""

    def __init__(self, count: int) -> None:
        """Prepare the conversion of `count` numbers."""
        self._count = count

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Return the call for these addresses."""
        return native_words("narrowed", _NARROWED, [self._count], [*addresses], None)


def _one(size: int) -> int:
    """Return the bits of 1.0."""
    numbers, floats = ("=q", "=d") if size == 8 else ("=i", "=f")
    found: int = struct.unpack(numbers, struct.pack(floats, 1.0))[0]
    return found


_PERMUTATIONS = """
def kernel(data):
    batch, rows, columns = number(data, 0), number(data, 1), number(data, 2)
    size, one, order = number(data, 3), number(data, 4), word(data, 5)
    pivots, target = word(data, 6), word(data, 7)
    for k in range(batch):
        for j in range(rows):
            put(order, j, j)
        for j in range(columns):
            other = number(pivots, k * columns + j) - 1
            here = number(order, j)
            put(order, j, number(order, other))
            put(order, other, here)
        for j in range(rows):
            at = (k * rows + number(order, j)) * rows + j
            if size == 8:
                put(target, at, one)
            else:
                put_half(target, at, one)
"""

_SIGNS = """
def kernel(data):
    batch, rows, size, terms = number(data, 0), number(data, 1), number(data, 2), number(data, 3)
    bits, below, infinity, one = number(data, 4), number(data, 5), number(data, 6), number(data, 7)
    given, pivots = word(data, 8), word(data, 9)
    for k in range(batch):
        negative, nothing = 0, 0
        for j in range(rows):
            at = (k * rows + j) * rows + j
            x = number(given, at) if size == 8 else half(given, at)
            magnitude = x & below
            if magnitude == 0 or magnitude > infinity:
                nothing = 1
            else:
                negative ^= (x >> bits) & 1
            if number(pivots, k * rows + j) != j + 1:
                negative ^= 1
        sign = negative << bits
        if nothing == 0:
            sign |= one
        for c in range(terms):
            value = sign if c == 0 else 0
            if size == 8:
                put(word(data, 10 + c), k, value)
            else:
                put_half(word(data, 10 + c), k, value)
"""

_NARROWED = """
def kernel(data):
    source, target = word(data, 1), word(data, 2)
    for i in range(number(data, 0)):
        put_half(target, i, number(source, i))
"""
