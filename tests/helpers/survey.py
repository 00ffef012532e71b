"""Bounds of arithmetic on expansions, tried on numbered inputs.

Input number i of a case (an operation, with a float as second argument or not, a number of
components, a format) is element i % CHUNK of chunk i // CHUNK, which is the seed. Chunks take their
leading exponents by turns from the middle of the range and from its bottom, where underflow is.
So the first inputs of a long search by hand are those of the tests, and each can be had again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.expansion_bounds import ExpansionBound, expansion_bound
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers.residuals import Found, residuals
from tests.helpers.worst import OPERATIONS, apply, arguments, errors

CHUNK = 50_000
FORMATS = (BF16, FP16, FP32, FP64)


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation on expansions of `terms` components of a format."""

    operation: str
    float_second: bool
    terms: int
    fmt: Format

    @property
    def bound(self) -> ExpansionBound:
        """Its row of the table."""
        return expansion_bound(self.operation, self.terms, float_second=self.float_second)

    @property
    def label(self) -> str:
        """As in the tables of the documentation."""
        return f"`{self.operation}`" + (" by a float" if self.float_second else "")

    def arguments(self, chunk: int) -> list[tuple[Tensor, ...]]:
        """The arguments of a chunk."""
        low, high = ranges(self.fmt)[chunk % 2]
        given = arguments(self.operation, self.fmt, self.terms, CHUNK, chunk, low, high)
        return [given[0], given[1][:1]] if self.float_second else given

    def trial(self, chunk: int, elements: slice = slice(None)) -> Trial:
        """Run the operation, on the executor in force, on a chunk or a part of it."""
        given = [tuple(t[elements] for t in c) for c in self.arguments(chunk)]
        result = apply(self.operation, given, self.terms)
        found = residuals(self.operation, self.fmt, given, result)
        broken = judged(self, given, result, found)
        beyond = found.beyond(self.bound.absolute)
        # A zero's error has no ratio; the exact count above has judged it.
        beyond = np.where(np.isfinite(beyond), beyond, -1.0)
        at = int(beyond.argmax())
        live = int((~np.isnan(found.error)).sum())
        disordered = np.flatnonzero(found.disordered).tolist()
        return Trial(max(float(beyond[at]), 0.0), at, live, broken, disordered).numbered(
            chunk * CHUNK + (elements.start or 0)
        )

    def __str__(self) -> str:
        return f"{self.operation}{'_float' * self.float_second}-{self.terms}-{self.fmt.name}"


def cases(fmt: Format, terms: int) -> Iterator[Case]:
    """All operations; with one component a float as second argument is nothing of its own."""
    for operation, float_second in OPERATIONS:
        if terms > 1 or not float_second:
            yield Case(operation, float_second, terms, fmt)


ALL = [c for fmt in FORMATS for terms in (1, 2, 3, 4) for c in cases(fmt, terms)]


def ranges(fmt: Format) -> list[tuple[int, int]]:
    """Leading exponents in the middle of the range, and from its bottom on."""
    bottom = fmt.emin - fmt.p + 1
    return [(-8, 8), (bottom, min(bottom + 4 * fmt.p, 0))]


@dataclasses.dataclass
class Trial:
    """What a chunk showed.

    Args:
        error: the largest error less what underflow may cost, relative to the reference, in units
            of u^n.
        number: of the input that had it.
        live: how many inputs were within the range for which the bound is stated.
        broken: numbers of the inputs whose results break the bound, decided in exact integers.
        disordered: numbers of the inputs whose results are not normalised.
    """

    error: float
    number: int
    live: int
    broken: list[int]
    disordered: list[int]

    def numbered(self, start: int) -> Trial:
        """The same of inputs whose numbers begin at `start`."""
        return dataclasses.replace(
            self,
            number=start + self.number,
            broken=[start + k for k in self.broken],
            disordered=[start + k for k in self.disordered],
        )


def judged(
    case: Case, given: list[tuple[Tensor, ...]], result: tuple[Tensor, ...], found: Found
) -> list[int]:
    """The elements that break the bound: what floats leave open, integers decide."""
    row, dtype, unit = case.bound, case.fmt.dtype, 2 ** (case.terms * case.fmt.p)
    assert dtype is not None
    parts = float(row.relative(dtype) * unit), float(row.relative_to_product(dtype) * unit)
    some = torch.from_numpy(found.suspects(*parts, row.absolute))
    if len(some) == 0:
        return []
    exact = errors(
        case.operation,
        case.fmt,
        [tuple(t[some] for t in c) for c in given],
        tuple(t[some] for t in result),
    )
    return some[torch.from_numpy(exact.breaks(row, case.fmt))].tolist()
