"""IEEE 754's special values for expansions: what a network makes NaN of is put right at its end.

A network computes inf - inf or 0 * inf on the way, and adds +0 to -0. So each operation computes
the plain operation on the leading components as well and takes its value where the network's
leading component is NaN, or both are zero; low components are zero where the leading one is not
finite. Without branches: a few selections.
"""

from mcf.kernels.algorithms.primitives import ZERO, rn, where


def leading(plain, r0):
    """The leading component: r0, or the plain operation's result where r0 is NaN or both are 0.

    The expansions may cancel where their leading components do not, in a tie of one of them.
    """
    return where((r0 == r0) & ((r0 != ZERO) | (plain != ZERO)), r0, plain)


def settled2(plain, r):
    """A network's result with the plain operation's special values."""
    r0, r1 = r
    finite = rn(r0 - r0) == ZERO
    return leading(plain, r0), where(finite, r1, ZERO)


def settled3(plain, r):
    """The same for three components."""
    r0, r1, r2 = r
    finite = rn(r0 - r0) == ZERO
    return leading(plain, r0), where(finite, r1, ZERO), where(finite, r2, ZERO)


def settled4(plain, r):
    """The same for four components."""
    r0, r1, r2, r3 = r
    finite = rn(r0 - r0) == ZERO
    return (
        leading(plain, r0),
        where(finite, r1, ZERO),
        where(finite, r2, ZERO),
        where(finite, r3, ZERO),
    )
