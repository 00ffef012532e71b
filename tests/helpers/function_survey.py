"""Elementary functions, tried on numbered inputs against MPFR; `survey` does this for arithmetic.

Input number i of a case (a function, a number of components, a format) is element i % CHUNK of
chunk i // CHUNK, which is the seed. The batches of `elementary.inputs` lie one after another in it,
so some numbers at the end of a chunk have no input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

import mcf.elementary
from mcf.elementary.function_bounds import FUNCTIONS, bound
from mcf.kernels.formats import Format
from tests.helpers.elementary import Components, disordered, inputs
from tests.helpers.references import errors, full_precision
from tests.helpers.survey import Trial

CHUNK = 50_000


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of expansions of `terms` components of a format."""

    function: str
    terms: int
    fmt: Format

    def __str__(self) -> str:
        return f"{self.function}-{self.terms}-{self.fmt.name}"

    @property
    def label(self) -> str:
        """As in the tables of the documentation."""
        return f"`{self.function}`"

    @property
    def bound(self) -> float:
        """What the tests allow, in units of u**terms."""
        return bound(self.function, self.fmt, self.terms)

    def arguments(self, chunk: int) -> tuple[Components, ...]:
        """A chunk of at most CHUNK elements."""
        few = inputs(self.function, self.fmt, self.terms, 2, 0)
        share = 2 * CHUNK // sum(len(batch[0][0]) for batch in few)
        batches = inputs(self.function, self.fmt, self.terms, share, chunk)
        return tuple(
            tuple(torch.cat(parts) for parts in zip(*argument, strict=True))
            for argument in zip(*batches, strict=True)
        )

    def trial(self, chunk: int, elements: slice = slice(None)) -> Trial:
        """Run the function, on the executor in force, on a chunk or a part of it."""
        given = tuple(tuple(t[elements] for t in a) for a in self.arguments(chunk))
        return judge(self, given).numbered(chunk * CHUNK + (elements.start or 0))


def cases(fmt: Format, terms: int) -> Iterator[Case]:
    """All functions."""
    for function in FUNCTIONS:
        yield Case(function, terms, fmt)


def judge(case: Case, arguments: tuple[Components, ...]) -> Trial:
    """Run the function on any arguments and compare with the exact results.

    The worst error and all that break the bound are those of a second evaluation with at least four
    times the result's bits. An infinite result of an argument whose exact one is finite, or the
    other way round, breaks every bound.
    """
    result = getattr(mcf.elementary, case.function)(*arguments)
    assert len(result) == case.terms
    found = errors(case.function, case.fmt, arguments, result)
    suspects = np.flatnonzero(found.relative > case.bound * (1 - 2**-30))
    some = torch.from_numpy(np.append(suspects, np.nanargmax(found.relative)))
    again = errors(
        case.function,
        case.fmt,
        tuple(tuple(t[some] for t in a) for a in arguments),
        tuple(t[some] for t in result),
        full_precision(case.fmt, case.terms),
    ).relative
    at = int(np.nanargmax(again))
    broken = {*some[torch.from_numpy(again > case.bound)].tolist(), *found.wrong}
    return Trial(
        float(again[at]),
        int(some[at]),
        len(found.relative),
        sorted(broken),
        disordered(case.fmt, result),
    )
