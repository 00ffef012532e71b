"""Remainders and whole quotients of numbers in normal range, each as one kernel.

They are the part of `mcf.elementary.remainders` that needs no integers. Elements that need them are
counted: infinities and NaN, long quotients, and numbers near the ends of the range.
"""

from __future__ import annotations

from mcf.convert.rounding import nearest
from mcf.elementary.fused import PROGRAMS, Compute, Program
from mcf.elementary.remainders import Arguments, exactly, small_quotient, with_sign
from mcf.elementary.tables import Components
from mcf.elementary.working import enter, rare
from mcf.kernels.formats import Format

# The functions: whether the quotient is rounded towards zero, and whether it is the result.
NAMES = {
    "usual_fmod": (True, False),
    "usual_remainder": (False, False),
    "usual_floor_quotient": (False, True),
    "usual_trunc_quotient": (True, True),
}


def _of(towards_zero: bool, whole: bool) -> Compute:
    def compute(arguments: Arguments, fmt: Format, terms: int) -> Components:
        x, y = arguments
        *exact, k, known = exactly((enter(x, fmt), enter(y, fmt)), towards_zero)
        if whole:
            out, good = small_quotient(x, y, k, known, fmt, terms)
            rare(~good)
            return out
        rare(known == 0)
        assert fmt.dtype is not None
        return with_sign(nearest(exact, fmt.dtype, terms), x)

    return compute


# Only cached plans call these (`mcf.tensor.plans`): uncovered elements have no operator here.
for _name, _kind in NAMES.items():
    PROGRAMS[_name] = Program(_of(*_kind), ("x", "y"))
