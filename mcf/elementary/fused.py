"""The kernels of elementary functions: their formulas, on the executors that make kernels.

The program of a function over tensors is what the torch executor runs; the others run its formula
(`mcf.elementary.recording`), with the same bits, as one kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import recording
from mcf.elementary.tables import Components, table
from mcf.elementary.working import working_terms
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32, FP64, Format

# What computes a function: arguments in the format, the format, how many components to return.
Compute = Callable[[tuple[Components, ...], Format, int], Components]


class Program(NamedTuple):
    """A function over tensors and the names of its arguments."""

    compute: Compute
    arguments: tuple[str, ...]


PROGRAMS: dict[str, Program] = {}

# The functions that run as one kernel, and the formats in which they do.
FUNCTIONS = frozenset({"exp", "expm1", "log", "tanh"})
FORMATS = (FP32, FP64)
# How many components they compute with at most: a kernel of four takes more than ten seconds to
# compile on a CPU.
MOST_TERMS = 3

_NO_SCALARS = torch.zeros(1, 0, dtype=torch.float64, device="cpu")


@functools.cache
def kernel(name: str, fmt: Format, *terms: int) -> Elementwise:
    """The kernel of a function on expansions of these numbers of components.

    Its fields are the components of the result, those of the arguments, and tables.
    """
    compute, arguments = PROGRAMS[name]
    function, tables = recording.formula(name, compute, arguments, fmt, terms)
    results = tuple(f"r{k}" for k in range(max(terms)))
    groups = tuple(
        (a, tuple(f"{a}{k}" for k in range(n))) for a, n in zip(arguments, terms, strict=True)
    )
    return Elementwise(
        name=function.__name__,
        function=function,
        results=results,
        fields=(
            *(Field(r, fmt, read=False, written=True) for r in results),
            *(Field(c, fmt) for _, names in groups for c in names),
            *(Field(t, FP64, uniform=True, table=True) for t in tables),
        ),
        stores=tuple((r, r) for r in results),
        arithmetic=FP64,
        roundings=(("rc", FP64), ("narrow", fmt)),
        groups=groups,
        rounded=results,
    )


def run(
    name: str, fmt: Format, terms: Sequence[int], given: Sequence[Tensor], out: Sequence[Tensor]
) -> bool:
    """Compute a function on contiguous components in one kernel; False where there is none."""
    device = given[0].device
    if (
        name not in FUNCTIONS
        or fmt not in FORMATS
        or working_terms(fmt, max(terms)) > MOST_TERMS
        or registry.executor_for(device) == "torch"
    ):
        return False
    spec = kernel(name, fmt, *terms)
    tables = [table(f.name, device) for f in spec.fields if f.table]
    registry.run(spec, [[*out, *given, *tables]], _NO_SCALARS)
    return True
