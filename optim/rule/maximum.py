"""The largest of numbers as they are stored, NaN included."""

from mcf.kernels.algorithms.primitives import ZERO, where


def current(second, second_lo, maximum, maximum_lo):
    """The second moment itself; no maximum is kept."""
    return second, second_lo


def largest(second, second_lo, maximum, maximum_lo):
    """max(maximum, second) by value, of normalised expansions; NaN where either is NaN.

    AMSGrad's (Reddi, Kale and Kumar 2018, arXiv:1904.09237). Of expansions with different leading
    components the one whose leading component is larger is not the smaller one.
    """
    tie = (maximum == second) & (maximum_lo > second_lo)
    kept = (maximum > second) | tie | (maximum != maximum)
    return where(kept, maximum, second), where(kept, maximum_lo, second_lo)


def larger(hi, lo, single):
    """max((hi, lo), single) of a normalised expansion and one number; NaN where either is NaN."""
    tie = (hi == single) & (lo > ZERO)
    kept = (hi > single) | tie | (hi != hi)
    return where(kept, hi, single), where(kept, lo, ZERO)
