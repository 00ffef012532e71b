"""The operations in which programs of elementary functions are written.

Programs compute with finite numbers far from the ends of the range, and put special values right
themselves. So sums, products and quotients of float64 expansions are the bare networks, a fifth
shorter than `mcf.kernels.operations`, whose bounds are theirs; a result that is zero may have the
other sign. In float32, whose range programs do reach, they are those operations.
"""

from __future__ import annotations

from mcf.elementary.format import working
from mcf.kernels import operations
from mcf.kernels.components import Argument, Components
from mcf.kernels.formats import FP64
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
    if working().format is FP64:
        return operations.apply(BARE_ADD, (x, y), None)
    return operations.add(x, y)


def mul(x: Argument, y: Argument) -> Components:
    """x * y."""
    if working().format is FP64:
        return operations.apply(BARE_MUL, (x, y), None)
    return operations.mul(x, y)


def div(x: Argument, y: Argument) -> Components:
    """x / y."""
    if working().format is FP64:
        return operations.apply(BARE_DIV, (x, y), None)
    return operations.div(x, y)


def absorb(x: Argument, y: Argument) -> Components:
    """x + y where |y| is at most some half of |x|; see `mcf.kernels.algorithms.absorption`."""
    if working().format is FP64:
        return operations.apply(ABSORB, (x, y), None)
    return operations.add(x, y)
