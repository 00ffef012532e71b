"""Convert any tuple of floats to an expansion by sweeps of TwoSum, generated for each length.

The floats may come in any order and overlap and cancel in any way.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from mcf.kernels.algorithms.ieee import settled
from mcf.kernels.algorithms.primitives import ZERO, rn, where
from mcf.kernels.algorithms.transforms import fast_two_sum, finite_only, two_sum
from mcf.kernels.statements import kept, recorded


@functools.cache
def distill(count: int, terms: int, *, partial: bool = False) -> FunctionType:
    """Return the algorithm (x,) -> `terms` components of the sum of the `count` floats in x.

    With `partial` the floats are registers of a partial sum. If the first is not finite it is the
    result, because the rounding errors of an infinity are NaN.

    1. Each float in turn is added to those before it, smallest first, by TwoSum (Shewchuk 1997,
       Grow-Expansion, doi:10.1007/PL00009321): the components no longer overlap, their sum is
       exact, and some may be zero.
    2. `terms` + 1 sweeps of TwoSum go from the smallest to the largest: sweep k leaves the leading
       component of the remainder at index k, and moves zeros to the end.
    3. One pass of Fast2Sum goes from the largest to one component more than the result has. This
       extra component resolves ties and is then dropped.

    With x the sum, |result - x| <= (u**terms + 2 u**(terms + 1)) |x| where no sum overflows;
    `docs/numerics.md` has the proof. With one sweep less it would be 3/2 u for one component,
    because the sweep may round to a tie that the remainder would have resolved.
    """
    add, fast_add = kept(two_sum, 2), kept(fast_two_sum, 2)

    def form(x: Any) -> Any:
        h = [*(finite_only(x) if partial else x)]
        plain = h[0]
        for low in h[1:]:
            plain = rn(plain + low)
        # If all floats are zero, the result keeps the sign of the first.
        plain = where((plain == ZERO) & (h[0] == ZERO), h[0], plain)
        for k in range(1, count):
            q = h[k]
            for i in reversed(range(k)):
                q, h[i + 1] = add(h[i], q)
            h[0] = q
        for j in range(min(terms + 1, count - 1)):
            for i in reversed(range(j, count - 1)):
                h[i], h[i + 1] = add(h[i], h[i + 1])
        for i in range(min(terms, count - 1)):
            h[i], h[i + 1] = fast_add(h[i], h[i + 1])
        return settled(plain, [*h[:terms], *[ZERO] * (terms - count)])

    return recorded(
        f"renormalize{count}to{terms}",
        form,
        {"x": count},
        f"The sum of {count} floats as an expansion of {terms} components.",
        f"<mcf renormalize {'a partial sum of ' * partial}{count} to {terms}>",
    )
