"""Convert any tuple of floats to an expansion by sweeps of TwoSum, generated for each length.

The floats may come in any order and overlap and cancel in any way.
"""

from __future__ import annotations

import functools
from types import FunctionType

from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.primitives import ZERO, rn, where
from mcf.kernels.algorithms.special import leading
from mcf.kernels.algorithms.transforms import fast_two_sum, two_sum


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
    names = [f"h{k}" for k in range(count)]
    unpack = f"{', '.join(names)} = x" if count > 1 else "h0 = x[0]"
    lines = [unpack]
    emit = lines.append
    if partial:
        emit("finite = rn(h0 - h0) == ZERO")
        for k in range(1, count):
            emit(f"h{k} = where(finite, h{k}, ZERO)")
    emit("plain = h0")
    for k in range(1, count):
        emit(f"plain = rn(plain + h{k})")
    # If all floats are zero, the result keeps the sign of the first.
    emit("plain = where((plain == ZERO) & (h0 == ZERO), h0, plain)")
    for k in range(1, count):
        emit(f"q = h{k}")
        for i in reversed(range(k)):
            emit(f"q, h{i + 1} = two_sum(h{i}, q)")
        emit("h0 = q")
    for j in range(min(terms + 1, count - 1)):
        for i in reversed(range(j, count - 1)):
            emit(f"h{i}, h{i + 1} = two_sum(h{i}, h{i + 1})")
    for i in range(min(terms, count - 1)):
        emit(f"h{i}, h{i + 1} = fast_two_sum(h{i}, h{i + 1})")
    emit("finite = rn(h0 - h0) == ZERO")
    emit("h0 = leading(plain, h0)")
    for i in range(1, terms):
        emit(f"h{i} = where(finite, {f'h{i}' if i < count else 'ZERO'}, ZERO)")
    emit(f"return {', '.join(f'h{i}' for i in range(terms))},")
    return written(
        f"renormalize{count}to{terms}",
        "x",
        lines,
        f"The sum of {count} floats as an expansion of {terms} components.",
        f"<mcf renormalize {'a partial sum of ' * partial}{count} to {terms}>",
        ZERO=ZERO,
        rn=rn,
        where=where,
        leading=leading,
        two_sum=two_sum,
        fast_two_sum=fast_two_sum,
    )
