"""Normalise R of complex matrices to a real diagonal that is not negative, as a native step."""

from __future__ import annotations

from collections.abc import Sequence

from mcf.kernels.program import native_words
from mcf.kernels.sequence import Bindable, Bound


class RealDiagonals(Bindable):
    """Flip signs in rows of R and columns of Q where the diagonal of R is negative.

    The imaginary part of the diagonal becomes 0. The operands are the components of R [batch,
    height, columns] and of Q [batch, rows, wanted], real parts first.
    """

    def __init__(self, batch: int, rows: int, height: int, columns: int, wanted: int) -> None:
        """Prepare for matrices of these sizes; `wanted` is the number of columns of Q."""
        self._head = [batch, rows, height, columns, wanted, 1 << 63, 0x7FF << 52]

    def bound(self, addresses: Sequence[int]) -> Bound:
        """Return the call for these addresses."""
        wanted = self._head[4]
        count = len(addresses) // 2 if wanted else len(addresses)
        return native_words("real diagonals", _TEXT, [*self._head, count], [*addresses], None)


_TEXT = """
def kernel(data):
    batch, rows, height = number(data, 0), number(data, 1), number(data, 2)
    columns, wanted = number(data, 3), number(data, 4)
    sign, infinity, count = number(data, 5), number(data, 6), number(data, 7)
    for b in range(batch):
        for i in range(min(rows, columns)):
            row = (b * height + i) * columns
            lead = number(word(data, 8), row + i)
            size = lead & ~sign
            if lead < 0 and size != 0 and size <= infinity:
                for c in range(count):
                    target = word(data, 8 + c)
                    for k in range(row, row + columns):
                        put(target, k, number(target, k) ^ sign)
                    if wanted > 0:
                        target = word(data, 8 + count + c)
                        for k in range(rows):
                            at = (b * rows + k) * wanted + i
                            put(target, at, number(target, at) ^ sign)
            for c in range(count // 2, count):
                put(word(data, 8 + c), row + i, 0)
"""
