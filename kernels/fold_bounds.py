"""What folds guarantee, as exact functions of their length; derived in `docs/numerics.md`.

With T the sum of the absolute values of the terms, |result - exact| <= relative * |exact| +
absolute * T, without overflow and with every product above the underflow of its error.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from mcf.kernels.fold import BLOCK, GROUP, LANES, state_for
from mcf.kernels.formats import FP64, Format

# Per number of registers s: errors of a term and of a tree of terms, and of each combination after
# it, in units of u**s T.
_TREE = {2: 36, 3: 250, 4: 3000}
_STEP = {2: 3, 3: 24, 4: 240}


@dataclasses.dataclass(frozen=True)
class FoldBound:
    """The two coefficients of a bound."""

    relative: Fraction
    absolute: Fraction

    def error(self, exact: Fraction, size: Fraction) -> Fraction:
        """The largest error for an exact result and its T."""
        return self.relative * abs(exact) + self.absolute * size


def depth(length: int, lanes: int = LANES) -> int:
    """Combinations between a term's tree and the sum, for lanes of `length` elements in all."""
    if lanes == 1:
        return -(-length // GROUP) + GROUP
    rows = -(-min(length, BLOCK) // lanes)
    blocks = -(-length // BLOCK)
    return -(-rows // GROUP) + GROUP + lanes.bit_length() + blocks.bit_length()


def register_bound(fmt: Format, terms: int, length: int, lanes: int) -> FoldBound:
    """The bound of the registers' sum, before it is rounded; arguments as `fold_bound`."""
    state = state_for(fmt, terms)
    wide = FP64.u
    absolute = (_TREE[state] + _STEP[state] * depth(length, lanes)) * wide**state
    if fmt != FP64:
        # Terms hold 53 bits below their first component, or below two in three registers.
        absolute += 4 * wide * fmt.u ** (state - 1)
    return FoldBound(Fraction(0), absolute)


def rounded(bound: FoldBound, fmt: Format, terms: int) -> FoldBound:
    """The bound of float64 expansions that are rounded to a format and components."""
    if fmt == FP64:
        # Components that are not wanted are dropped: there are some for one only.
        unit = fmt.u if terms == 1 else Fraction(0)
    else:
        unit = fmt.u**terms
    return FoldBound(bound.relative * (1 + unit) + unit, bound.absolute * (1 + unit))


def fold_bound(fmt: Format, terms: int, length: int, lanes: int = LANES) -> FoldBound:
    """The bound of a sum or dot product of `length` terms, with one lane that of a matrix product.

    Args:
        fmt: the components' format.
        terms: components of the operands and of the result.
        length: how many terms there are.
        lanes: LANES, or 1 for a matrix product.
    """
    return rounded(register_bound(fmt, terms, length, lanes), fmt, terms)
