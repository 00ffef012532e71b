"""Kernels of elementary functions, and of operations on complex expansions, for the table."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mcf.elementary import fused
from mcf.elementary.operator import IN_FLOAT32, with_kernels
from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FORMATS, FP32, FP64

# Products: the longest, one of some, and one with a quotient.
POWERS = ("power_3", "power_16", "power_minus_5")


@functools.cache
def elementary_kernels() -> dict[str, Callable[[], Elementwise]]:
    """Elementary functions that are one kernel, of pairs: others have more of the same.

    By name what makes them: to write down the formulas of all takes seconds.
    """
    found = {}
    names = [*with_kernels(), *with_kernels(2), *POWERS]
    for n in names:
        terms = [2] * len(fused.PROGRAMS[n].arguments)
        name = f"{n}_{''.join(map(str, terms))}"
        for f in (FP64, FP32):
            found[f"{name}_{f.name}"] = functools.partial(fused.kernel, n, f, *terms)
        if n in IN_FLOAT32:
            narrow = functools.partial(fused.kernel, n, FP32, *terms, register=FP32)
            found[f"{name}_fp32_in_fp32"] = narrow
    return found


def complex_kernels() -> list[Elementwise]:
    """The operations on complex expansions: pairs of each format, and four of float64."""
    shapes = [*((fmt, 2) for fmt in FORMATS.values()), (FP64, 4)]
    return [
        operators.kernel(o, fmt, *(n,) * len(o.arguments))
        for o in operators.COMPLEX
        for fmt, n in shapes
    ]
