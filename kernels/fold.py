"""Declare a sum of terms, from which each executor generates its own kernels.

A fold adds up terms computed from the elements of one or two operands. Its order is part of its
definition, so that every executor, any number of threads and any vector length give the same bits:

1. The K elements are cut into blocks of BLOCK, and those into whole chunks of CHUNK = GROUP * LANES
   and a rest.
2. Element i of a chunk belongs to lane i // (GROUP * STEP) * STEP + i % STEP: GROUP elements, STEP
   apart, are a lane's, so that a loop over lanes reads memory from one end to the other. A lane
   adds them as a tree, (t0 + t1) + (t2 + t3), and combines the trees in order.
3. Element i of the rest belongs to lane i % LANES, which combines it with its partial sum.
4. Lanes are halved: c of them become ceil(c / 2) by combining lane j with lane j + ceil(c / 2).
5. Blocks are halved in the same way.

A matrix product folds over the inner dimension as one lane: trees of GROUP terms, then the
remaining terms one by one.
"""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels.algorithms import accumulate, fold_terms
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP32, FP64, Format

LANES = 256
GROUP = 4
# Number of float64 elements in a cache line.
STEP = 8
CHUNK = GROUP * LANES
BLOCK = 64 * LANES


# Compared and hashed by identity, as `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """A sum of terms in float64 or float32 registers.

    Args:
        name: for error messages and generated code.
        term: an algorithm of one tuple per operand; returns `state` registers.
        formats: the format of each operand.
        components: the number of components of each operand.
        state: the number of registers of a partial sum.
        register: the format of these registers.
        fixed: the number of trailing operands with one element per row.
    """

    name: str
    term: Algorithm
    formats: tuple[Format, ...]
    components: tuple[int, ...]
    state: int
    register: Format = FP64
    fixed: int = 0

    @property
    def merge(self) -> Algorithm:
        """The algorithm that adds two partial sums inside a tree of GROUP terms."""
        return accumulate.MERGE[self.state]

    @property
    def combine(self) -> Algorithm:
        """The algorithm that adds two partial sums outside the trees."""
        return accumulate.combine[self.state]


def state_for(fmt: Format, terms: int, register: Format = FP64) -> int:
    """Return the number of registers of a partial sum for results of `terms` components."""
    if fmt == register:
        return max(2, terms)
    if register == FP32:
        # Two registers hold 48 bits, enough for two components of 11 bits.
        return 2 if terms <= 2 else 3
    return 3 if fmt == FP32 and terms == 4 else 2


@functools.cache
def sum_fold(fmt: Format, components: int, terms: int, register: Format = FP64) -> Fold:
    """Return the fold that sums expansions, accurate for a result of `terms` components."""
    state = state_for(fmt, max(components, terms), register)
    table = fold_terms.WIDE_SUM if fmt == register else fold_terms.NARROW_SUM
    term = table[components, state]
    name = f"sum_{fmt.name}_{components}_{state}{_suffix(register)}"
    return Fold(name, term, (fmt,), (components,), state, register)


@functools.cache
def product_fold(fmt: Format, left: int, right: int, terms: int, register: Format = FP64) -> Fold:
    """Return the fold that sums products of expansions with `left` and `right` components.

    Components are those of one format.
    """
    state = state_for(fmt, max(left, right, terms), register)
    table = fold_terms.WIDE_PRODUCT if fmt == register else fold_terms.NARROW_PRODUCT
    term = table[left, right, state]
    name = f"product_{fmt.name}_{left}_{right}_{state}{_suffix(register)}"
    return Fold(name, term, (fmt, fmt), (left, right), state, register)


@functools.cache
def deviation_fold(terms: int) -> Fold:
    """Return the fold of squared differences between float64 expansions and one number per row."""
    term = fold_terms.squared_gap[terms]
    formats, components = (FP64, FP64), (terms, terms)
    return Fold(f"deviation_{terms}", term, formats, components, terms, fixed=1)


@functools.cache
def narrow_deviation_fold(fmt: Format, components: int, terms: int, enter: Algorithm) -> Fold:
    """Return `deviation_fold` for narrow expansions; `enter` converts them to float64."""
    term, formats = fold_terms.gap_of(enter, components, terms), (fmt, FP64)
    name = f"deviation_{fmt.name}_{components}_{terms}"
    return Fold(name, term, formats, (components, terms), terms, fixed=1)


def _suffix(register: Format) -> str:
    return "" if register == FP64 else f"_in_{register.name}"
