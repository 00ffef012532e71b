"""Basic operations for the programs of elementary functions.

Programs compute with finite numbers far from the ends of the range, and handle special values
themselves. So sums, products and quotients are the bare networks, a fifth shorter than
`mcf.kernels.operations` with the same bounds. A zero result may have the other sign. In float32
registers last components may underflow, which the networks tolerate as the operations do. Only
numbers that are not selected come near the largest number.
"""

from __future__ import annotations

from mcf.kernels import operations
from mcf.kernels.components import Argument, Components
from mcf.kernels.operations import (
    fast_two_sum,
    reciprocal,
    renormalize,
    split,
    sqrt,
    square,
    two_prod,
    two_sum,
)
from mcf.kernels.operators import ABSORB, BARE_ADD, BARE_DIV, BARE_MUL

__all__ = (
    "absorb", "add", "div", "fast_two_sum", "mul", "reciprocal", "renormalize", "split", "sqrt",
    "square", "two_prod", "two_sum",
)  # fmt: skip


def add(x: Argument, y: Argument) -> Components:
    """x + y."""
    return operations.apply(BARE_ADD, (x, y))


def mul(x: Argument, y: Argument) -> Components:
    """x * y."""
    return operations.apply(BARE_MUL, (x, y))


def div(x: Argument, y: Argument) -> Components:
    """x / y."""
    return operations.apply(BARE_DIV, (x, y))


def absorb(x: Argument, y: Argument) -> Components:
    """Return x + y for |y| at most about |x| / 2; see `mcf.kernels.algorithms.sums`."""
    return operations.apply(ABSORB, (x, y))
