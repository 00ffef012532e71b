"""Evaluate power series where a formula of other functions would cancel."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mcf.expansions.ops.elementary.constants import in_format
from mcf.kernels.formats import format_of

# Extra bits of precision beyond the format.
_SPARE = 8


def power_series(q: Any, coefficient: Callable[[int], Fraction], most: Fraction) -> Any:
    """Return c_0 + c_1 q + c_2 q^2 + ... for |q| <= most, by Horner's rule in the format of q.

    Args:
        q: an expansion tensor.
        coefficient: returns c_k. Terms at q = `most` must at least halve from one to the next.
        most: the largest argument.
    """
    least = abs(coefficient(0)) / 2 ** (format_of(q.dtype).p * q.terms + _SPARE)
    found = [coefficient(0)]
    while abs(found[-1]) * most ** (len(found) - 1) > least:
        found.append(coefficient(len(found)))
    total: Any = in_format(found.pop(), q)
    for c in reversed(found):
        total = total * q + in_format(c, q)
    return total
