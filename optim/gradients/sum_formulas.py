"""How the sum of gradients takes one more: two components, as a parameter takes an update."""

from mcf.kernels.algorithms import grow
from mcf.kernels.algorithms.primitives import ZERO, where
from mcf.optim.storage.pair import finite, kahan


def fold_wide(hi, lo, grad):
    """(hi, lo) + g with float32 registers around 16-bit components: only lo is rounded."""
    # Of a sum whose leading component was set to 0 from outside nothing is left.
    hi, lo = kahan(hi, where(hi == ZERO, ZERO, lo), grad)
    return hi, finite(hi, lo)


def fold(hi, lo, grad):
    """Grow((hi, lo), g), for float32 and float64."""
    hi, lo = grow(hi, where(hi == ZERO, ZERO, lo), grad)
    return hi, finite(hi, lo)
