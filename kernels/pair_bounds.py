"""Error bounds of error-free transforms and of the networks of pairs.

An error bound is relative to the exact result on the given components and a polynomial in
u = 2**-p, exactly as its source states it.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from mcf.kernels.formats import Format


@dataclasses.dataclass(frozen=True)
class Bound:
    """One row: |result - exact| <= error(u) * |exact| under the preconditions.

    Args:
        operation: its name in `mcf` and under `torch.ops.mcf`.
        terms: (power, coefficient) pairs of the bound's polynomial in u; none if it is exact.
        minimum_p: the least precision for which the source proves it.
        algorithm: the algorithm's name in the literature.
        source: the publication with the proof.
        doi: the source's DOI.
        precondition: a sentence; every row also requires finite arguments.
        product_margin: for products, the least exponent(a) + exponent(b) - emin - p of the leading
            components for which underflow is harmless (an argument of 0 always is); None for
            operations which underflow cannot harm.
        normalized: whether expansions given must have RN(hi + lo) = hi.
    """

    operation: str
    terms: tuple[tuple[int, Fraction], ...]
    minimum_p: int
    algorithm: str
    source: str
    doi: str
    precondition: str
    product_margin: int | None = None
    normalized: bool = False

    @property
    def exact(self) -> bool:
        """Whether the components returned add up to the exact result."""
        return not self.terms

    def error(self, u: Fraction) -> Fraction:
        """Return the largest relative error, an exact function of u."""
        return sum((c * u**k for k, c in self.terms), Fraction(0))

    @property
    def formula(self) -> str:
        """The bound as written in the documentation, for example 3/2 u^2 + 4 u^3."""
        return " + ".join(f"{c} u^{k}" for k, c in self.terms) or "0 (exact)"

    def least_product_exponent(self, fmt: Format) -> int | None:
        """Return the least sum of leading exponents without harm; None if there is no limit."""
        return None if self.product_margin is None else fmt.emin + fmt.p + self.product_margin


_JMP = "Joldes, Muller, Popescu 2017"
_JMP_DOI = "10.1145/3121432"
_HANDBOOK = "Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed. 2018"
_HANDBOOK_DOI = "10.1007/978-3-319-76526-6"

BOUNDS = (
    Bound(
        "two_sum",
        (),
        2,
        "2Sum (Knuth 1969, Møller 1965)",
        "Boldo, Graillat, Muller 2017",
        "10.1145/3054947",
        "a + b does not overflow, and b is not the largest number or its negative",
    ),
    Bound(
        "fast_two_sum",
        (),
        2,
        "Fast2Sum (Dekker 1971)",
        "Dekker 1971; Boldo, Graillat, Muller 2017 for overflow",
        "10.1007/BF01397083",
        "a = 0 or exponent(a) >= exponent(b); a + b does not overflow",
    ),
    Bound(
        "split",
        (),
        3,
        "Veltkamp's splitting",
        "Boldo 2006",
        "10.1007/11814771_6",
        "(2**ceil(p/2) + 1) * a does not overflow",
    ),
    Bound(
        "two_prod",
        (),
        2,
        "2MultFMA",
        f"{_HANDBOOK}, 4.4",
        _HANDBOOK_DOI,
        "a * b does not overflow; a * b = 0 or exponent(a) + exponent(b) >= emin + p - 1",
        product_margin=-1,
    ),
    Bound(
        "grow",
        ((2, Fraction(2)),),
        3,
        "DWPlusFP",
        _JMP,
        _JMP_DOI,
        "x normalised; no sum overflows",
        normalized=True,
    ),
    Bound(
        "scale",
        ((2, Fraction(3, 2)), (3, Fraction(4))),
        4,
        "DWTimesFP1",
        _JMP,
        _JMP_DOI,
        "x normalised; x * a does not overflow; "
        "x * a = 0 or exponent(x_hi) + exponent(a) >= emin + p",
        product_margin=0,
        normalized=True,
    ),
    Bound(
        "add",
        ((2, Fraction(2)),),
        8,
        "the two-term network of Zhang and Aiken (madd)",
        "Zhang, Aiken 2025 (CAV), computer-verified",
        "10.1007/978-3-031-98682-6_12",
        "x and y normalised; no sum overflows",
        normalized=True,
    ),
    Bound(
        "mul",
        ((2, Fraction(5)),),
        6,
        "DWTimesDW1",
        "Muller, Rideau 2022 (7u^2 in Joldes, Muller, Popescu 2017)",
        "10.1145/3484514",
        "x and y normalised; x * y does not overflow; "
        "x * y = 0 or exponent(x_hi) + exponent(y_hi) >= emin + p",
        product_margin=0,
        normalized=True,
    ),
    Bound(
        "renormalize",
        (),
        2,
        "2Sum (Knuth 1969, Møller 1965)",
        "Boldo, Graillat, Muller 2017",
        "10.1145/3054947",
        "hi + lo does not overflow, and lo is not the largest number or its negative",
    ),
)

_BY_OPERATION = {b.operation: b for b in BOUNDS}


def pair_bound(operation: str) -> Bound:
    """Return the row of an operation; KeyError if it has none."""
    return _BY_OPERATION[operation]


def markdown() -> str:
    """Return the table as `docs/numerics.md` shows it."""
    lines = [
        "| operation | algorithm | error at most | smallest p | requires | proved in |",
        "|---|---|---|---|---|---|",
    ]
    for b in BOUNDS:
        source = f"{b.source}, [doi:{b.doi}](https://doi.org/{b.doi})"
        cells = (f"`{b.operation}`", b.algorithm, b.formula, b.minimum_p, b.precondition, source)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
