"""Partial sums of folds: merge and normalise them; `fold_terms` computes the summands.

A partial sum of s = 2, 3 or 4 registers is a tuple, largest first, whose low registers may overlap
by some bits: each register collects the rounding errors of the one before it, as in SumK and DotK
of Ogita, Rump, Oishi 2005 (doi:10.1137/030601818). Let T be the sum of the absolute values of the
terms. `merge` alone keeps register k within a multiple of u**k T; `settled` brings it back to
u**k T, so that errors grow with the number of merges and not with its powers.

The first register goes through plain additions only, so that infinities and NaN come out as IEEE
arithmetic has them; `settled` does not let the NaN errors of an infinity reach it.
"""

from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.algorithms.transforms import finite_only, two_sum
from mcf.kernels.statements import family


def merge2(a, b):
    """a + b of two registers: Sum2's step for partial sums; 8 operations."""
    s, t = two_sum(a[0], b[0])
    return s, rn(rn(a[1] + b[1]) + t)


def merge3(a, b):
    """a + b of three registers, SumK's step with K = 3."""
    s0, t = two_sum(a[0], b[0])
    s1, e = two_sum(a[1], b[1])
    s1, f = two_sum(s1, t)
    return s0, s1, rn(rn(a[2] + b[2]) + rn(e + f))


def merge4(a, b):
    """a + b of four registers, SumK's step with K = 4."""
    s0, t = two_sum(a[0], b[0])
    s1, e = two_sum(a[1], b[1])
    s1, f = two_sum(s1, t)
    s2, g = two_sum(a[2], b[2])
    s2, h = two_sum(s2, e)
    s2, k = two_sum(s2, f)
    return s0, s1, s2, rn(rn(rn(a[3] + b[3]) + g) + rn(h + k))


def settled(a):
    """Return the equal partial sum after a sweep of TwoSum from the last register to the first."""
    *first, s = finite_only(a)
    errors = []
    for x in reversed(first):
        s, e = two_sum(x, s)
        errors.append(e)
    return s, *reversed(errors)


# Functions by number of registers.
MERGE = {2: merge2, 3: merge3, 4: merge4}


@family("a* b*", merge=MERGE)
def combine(a, b, merge):
    """Merge, settle."""
    return settled(merge(a, b))
