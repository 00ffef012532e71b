"""Error bounds of folds as exact functions of their length; derived in `docs/numerics.md`.

With T the sum of the absolute values of the terms, |result - exact| <= relative * |exact| +
absolute * T, without overflow and with every product above the underflow of its error.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from mcf.kernels.fold import BLOCK, GROUP, LANES, state_for
from mcf.kernels.formats import FP32, FP64, Format

# Error bounds in units of u**s T by number of registers s: `_TREE` for a term and its summation
# tree, `_STEP` for each later combination.
_TREE = {2: 36, 3: 250, 4: 3000}
_STEP = {2: 3, 3: 24, 4: 240}


@dataclasses.dataclass(frozen=True)
class FoldBound:
    """The two coefficients of a fold's error bound."""

    relative: Fraction
    absolute: Fraction

    def error(self, exact: Fraction, size: Fraction) -> Fraction:
        """Return the largest error, given the exact result and the sum T of absolute values."""
        return self.relative * abs(exact) + self.absolute * size


def depth(length: int, lanes: int = LANES) -> int:
    """Return the number of combinations between a term's tree and the sum of `length` terms."""
    if lanes == 1:
        return -(-length // GROUP) + GROUP
    rows = -(-min(length, BLOCK) // lanes)
    blocks = -(-length // BLOCK)
    return -(-rows // GROUP) + GROUP + lanes.bit_length() + blocks.bit_length()


def register_bound(
    fmt: Format, terms: int, length: int, lanes: int, register: Format = FP64
) -> FoldBound:
    """Return the bound of the sum in registers, before rounding; arguments as in `fold_bound`."""
    state = state_for(fmt, terms, register)
    steps = depth(length, lanes)
    absolute = (_TREE[state] + _STEP[state] * steps) * register.u**state
    if register == FP32:
        absolute *= _growth(steps)
    if fmt != register:
        absolute += _LOST[register][state] * register.u * fmt.u ** (state - 1)
    return FoldBound(Fraction(0), absolute)


# Errors below the first component (below the first two, with three registers) when components are
# narrower than registers. Units: u of the registers times u**(s - 1) of the format.
# docs/numerics.md counts each rounding.
_LOST = {FP64: {2: 4, 3: 8}, FP32: {2: 5, 3: 12}}


def _growth(steps: int) -> Fraction:
    """Return the growth factor of second-order errors over many steps in float32 registers.

    A step multiplies what came before by 1 + 8 u at most, and (1 + x)**n < 1 / (1 - n x).
    """
    grown = 8 * steps * FP32.u
    if grown >= 1:
        raise ValueError(
            f"count leads to {steps} combinations in a row; float32 registers have a bound for "
            f"fewer than {int(1 / (8 * FP32.u))}"
        )
    return 1 / (1 - grown)


def rounded(bound: FoldBound, fmt: Format, terms: int, register: Format = FP64) -> FoldBound:
    """Return the bound after registers are rounded to a format and number of components."""
    if fmt == register:
        # Surplus components are dropped, which happens only for results of one component.
        unit = fmt.u if terms == 1 else Fraction(0)
    else:
        unit = fmt.u**terms
    return FoldBound(bound.relative * (1 + unit) + unit, bound.absolute * (1 + unit))


def fold_bound(
    fmt: Format, terms: int, length: int, lanes: int = LANES, register: Format = FP64
) -> FoldBound:
    """Return the bound of a sum or dot product of `length` terms; one lane is a matrix product.

    Args:
        fmt: the components' format.
        terms: components of the operands and of the result.
        length: the number of terms.
        lanes: LANES, or 1 for a matrix product.
        register: the format of the registers.
    """
    found = register_bound(fmt, terms, length, lanes, register)
    return rounded(found, fmt, terms, register)
