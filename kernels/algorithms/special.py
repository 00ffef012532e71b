"""IEEE 754's special values for expansions: repair the NaN results of networks.

A network may compute inf - inf or 0 * inf, and it adds +0 to -0. So each operation also computes
the plain operation on the leading components. Its value is taken if the network's leading component
is NaN, or if both are zero. Low components are zero if the leading one is not finite. All of this
is branch-free.
"""

from mcf.kernels.algorithms.primitives import ZERO, rn, where


def leading(plain, r0):
    """Return r0, or the plain operation's result if r0 is NaN or both are 0.

    Expansions may cancel although their leading components do not, if one of these is a tie.
    """
    return where((r0 == r0) & ((r0 != ZERO) | (plain != ZERO)), r0, plain)


def settled2(plain, r):
    """Return a network's result with the plain operation's special values."""
    r0, r1 = r
    finite = rn(r0 - r0) == ZERO
    return leading(plain, r0), where(finite, r1, ZERO)


def settled3(plain, r):
    """Return a network's result with plain special values, for three components."""
    r0, r1, r2 = r
    finite = rn(r0 - r0) == ZERO
    return leading(plain, r0), where(finite, r1, ZERO), where(finite, r2, ZERO)


def settled4(plain, r):
    """Return a network's result with plain special values, for four components."""
    r0, r1, r2, r3 = r
    finite = rn(r0 - r0) == ZERO
    return (
        leading(plain, r0),
        where(finite, r1, ZERO),
        where(finite, r2, ZERO),
        where(finite, r3, ZERO),
    )
