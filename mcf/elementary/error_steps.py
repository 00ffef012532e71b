"""Errors of the steps of elementary functions, relative to their results.

A step's own error is that of `mcf.kernels.expansion_bounds` for float64 components, so all derived
bounds follow that table. Errors are added to first order; second-order errors, about u^n of the
first, are covered by `SLACK`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch

from mcf.elementary import series, tables
from mcf.elementary.tables import TERMS
from mcf.kernels.expansion_bounds import ExpansionBound, expansion_bound
from mcf.kernels.formats import FP64, Format

# The error relative to the result, and the one relative to the terms of a reflection.
Errors = tuple[float, float]

# Covers second-order errors, and those of the floats in which bounds are computed.
SLACK = 1 + 2.0**-40
U = float(FP64.u)


class Steps:
    """Relative errors of operations on expansions, and which rows of the table were used.

    Args:
        terms: components that are computed with.
        fmt: their format, float64 or float32.
        result: components of the result.
    """

    def __init__(self, terms: int, fmt: Format = FP64, result: int = 0) -> None:
        self.terms, self.fmt, self.u, self.result = terms, fmt, float(fmt.u), result
        self.used: set[ExpansionBound] = set()
        self._found: dict[tuple[str, int], float] = {}

    def _of(self, operation: str, terms: int) -> float:
        """Return the larger of the rows for an expansion and for a float as second argument."""
        key = operation, terms
        if key not in self._found:
            rows = {expansion_bound(operation, terms, float_second=f) for f in (False, True)}
            self.used |= rows
            self._found[key] = max(float(row.relative(self._dtype)) for row in rows)
        return self._found[key]

    @property
    def _dtype(self) -> torch.dtype:
        assert self.fmt.dtype is not None
        return self.fmt.dtype

    @property
    def proven(self) -> bool:
        """Whether all rows that were used are proved."""
        return all(row.proven for row in self.used)

    def add(self, terms: int | None = None) -> float:
        """Return the error of a sum."""
        return self._of("add", terms or self.terms)

    def absorb(self, terms: int | None = None) -> float:
        """Return the error of a sum with |y| <= 0.51 |x|.

        Relative to |x|, for three components: x0 + y0 has a rounding error of 1.51 u. Adding x1
        gives 2.51 u and y1 3.02 u, with errors of 2.51 u^2 and 3.02 u^2; x2 and y2 are 1.51 u^2. Of
        these the three sums round 5.53, 1.51 and 7.04 u^3, and the result is at least 0.49 |x|. Two
        and four components are similar.
        """
        n = terms or self.terms
        if n == 1:
            return self.add(n)
        return {2: 10, 3: 30, 4: 88}[n] * self.constant(n)

    def plus(self) -> float:
        """Return the error of `working.plus`."""
        return self.absorb() if self.terms < TERMS else self.add()

    def mul(self, terms: int | None = None) -> float:
        """Return the error of a product."""
        return self._of("mul", terms or self.terms)

    def div(self) -> float:
        """Return the error of a quotient."""
        return self._of("div", self.terms)

    def sqrt(self) -> float:
        """Return the error of a square root."""
        return self._of("sqrt", self.terms)

    def collect(self) -> float:
        """Return the error of a sum of floats that is exact except for its final rounding."""
        return self._of("renormalize", self.terms)

    def constant(self, terms: int | None = None) -> float:
        """Return the error of a constant rounded to n components."""
        return float(self.u ** (terms or self.terms))

    def at_node(self, needed: Sequence[int], first: int | None = 0) -> list[float]:
        """Return the errors of the sums of `series.at_node`, one for each coefficient."""
        return [
            max(self.add(m), self.absorb(m)) if series.absorbed(k, m, first) else self.add(m)
            for k, m in enumerate(needed)
        ]

    def beside(self) -> float:
        """Return the error of `sums.beside`."""
        return 4 * self.constant()

    def polynomial(
        self,
        limit: float,
        bits: float,
        coefficient: Callable[[int], Fraction],
        weight: float,
        argument: float,
    ) -> float:
        """Return the error of `series.polynomial`, whose value is 1 plus small terms.

        Args:
            limit: bound of the argument's magnitude.
            bits: as in `series.polynomial`.
            coefficient: as in `series.polynomial`.
            weight: as in `series.polynomial`.
            argument: relative error of the argument.
        """
        rows, cut = self.rows(bits, coefficient, weight)
        cut *= limit ** len(rows)
        add = series.adding(weight)
        steps = [max(self.add(m), self.absorb(m)) if add(m) else self.add(m) for _, m in rows]
        error, size = self.horner(rows, limit, argument, steps)
        # Truncated terms fall at least by half from term to term.
        return (error + 2 * cut) / (2 * rows[0][0] - size)

    def at_table(
        self, nodes: series.Nodes, argument: float = 0.0, *, falling: bool = False
    ) -> float:
        """Return the error of `series.Nodes.at` for a function without zeros, |v| <= 1.

        Args:
            nodes: the table.
            argument: the relative error of the argument, which is below 128 half-widths of its
                interval; coefficients fall by at least five bits.
            falling: whether the coefficients alternate in sign.
        """
        degree, terms = nodes.degree(self.terms), self.terms
        needed = [nodes.components(terms, k) for k in range(degree)]
        steps = self.at_node([*needed, 1], nodes.steep)
        table = tables.table(nodes.name, torch.device("cpu"))[0].reshape(-1, nodes.degrees)
        worst = 0.0
        for row in table.abs().tolist():
            rows = [*zip(row, needed, strict=False), (row[degree], 1)]
            found, size = self.horner(rows, 1.0, self.beside(), steps)
            left = row[degree] * 2.0**-series.FALL if nodes.more < 2 else row[degree + 1]
            found += 128 * 2 * row[1] * argument + 2 * left
            least = 2 * row[0] - size
            if falling:
                # The value at the far end: all signs alternate.
                end = math.fsum((-1) ** k * c for k, c in enumerate(row[: degree + 1]))
                least = max(least, end - 2 * left)
            worst = max(worst, found / least)
        return worst

    def rows(
        self, bits: float, coefficient: Callable[[int], Fraction], weight: float
    ) -> tuple[list[tuple[float, int]], float]:
        """Return the coefficients of `series.polynomial`, and the first omitted one."""
        wanted = self.fmt.p * self.terms + 8 - weight
        needed = series.terms_needed(wanted, bits, coefficient, self.fmt.p)
        rows = [(abs(float(c)), min(m, self.terms)) for c, m in needed]
        return rows, abs(float(coefficient(len(rows))))

    def horner(
        self,
        rows: list[tuple[float, int]],
        limit: float,
        argument: float,
        steps: list[float] | None = None,
    ) -> tuple[float, float]:
        """Return absolute error and largest magnitude of a polynomial by Horner's rule.

        Args:
            rows: for every coefficient its magnitude and the components it is added in, the
                constant first.
            limit: bound of the argument's magnitude.
            argument: its relative error.
            steps: errors of the sums, for every coefficient; None for those of `add`.
        """
        steps = [self.add(m) for _, m in rows] if steps is None else steps
        size, terms = rows[-1]
        error = size * self.constant(terms)
        for (c, more), step in zip(rows[-2::-1], steps[-2::-1], strict=True):
            # The argument is truncated to as many components.
            given = argument + (self.constant(terms) if terms < self.terms else 0.0)
            product = limit * size
            error = limit * error + product * (given + self.mul(terms))
            size = c + product
            error += c * self.constant(more) + step * size
            terms = more
        return error, size


class Magnitudes:
    """The error of `mcf.elementary.working.Sums`: its steps on bounds of each magnitude.

    Args:
        e: the steps.
        first: magnitude of the first number.

    Attributes:
        lost: absolute error so far.
    """

    def __init__(self, e: Steps, first: float) -> None:
        self._u, self.lost = e.u, 0.0
        self._places = [first, *[0.0] * (e.terms - 1)]

    def add(self, x: float, place: int) -> None:
        """Mirror `Sums.add`: carry each rounding error into the next term; drop the last."""
        for k in range(place, len(self._places)):
            if self._places[k] == 0:
                self._places[k] = x
                return
            self._places[k] += x
            x = self._u * self._places[k]
        self.lost += x

    def add_product(self, size: float) -> None:
        """Mirror `Sums.add_product`: floats of order k of a product are u^k of its magnitude."""
        last = len(self._places) - 1
        for order in range(last):
            for _ in range(order + 1):
                self.add(size * self._u**order, order)
                self.add(size * self._u ** (order + 1), order + 1)
        low = size * self._u**last
        self.add((last + 1) * low, last)
        # Each product and the sums of 2, 3, ... products are rounded; `last` products are left out.
        self.lost += self._u * low * (last + 1 + sum(range(2, last + 2)) + last)
