"""Error bounds of the operations on expansions by number of components, for docs and tests.

With eta the smallest subnormal number of the format and t the exact result on the given
components, a result r satisfies

    |r - t| <= relative(u) * |t| + of_product(u) * |x * y| + absolute * eta * s

of_product is that of `fma`, x * y + z, and zero elsewhere. s is 1 for sums, products and squares,
1 + 1/|y| for x / y, 1 + 1/t for t = sqrt(x), and for 1/sqrt(x) it is t * (1 + x + 1/x). The last
part covers underflow; it is negligible if no product is near the smallest normal number. No
operation may overflow: all arguments and the result must be below an eighth of the largest number.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import torch

from mcf.kernels.formats import format_of
from mcf.kernels.pair_bounds import pair_bound


@dataclasses.dataclass(frozen=True)
class ExpansionBound:
    """One row of the table.

    Args:
        operation: its name in `mcf.kernels.operations`.
        terms: components of the result.
        coefficients: (power, coefficient) pairs of the relative part, a polynomial in u.
        absolute: the absolute part, in units of eta.
        algorithm: the name of the algorithm.
        source: the publication with the proof; "observed" for a bound that no trial in
            `docs/numerics.md` exceeded and that is not proved.
        float_second: whether the row is for a float as second argument.
        of_product: like `coefficients`, for the part relative to |x * y| in `fma`.
    """

    operation: str
    terms: int
    coefficients: tuple[tuple[int, Fraction], ...]
    absolute: int
    algorithm: str
    source: str
    float_second: bool = False
    of_product: tuple[tuple[int, Fraction], ...] = ()

    @property
    def proven(self) -> bool:
        """Whether there is a proof that covers all four formats."""
        return self.source != "observed"

    @property
    def formula(self) -> str:
        """The relative parts as written in the documentation."""
        own, product = _text(self.coefficients), _text(self.of_product)
        return f"{own}, and {product} of x y" if product else own

    def relative(self, dtype: torch.dtype) -> Fraction:
        """Return the relative part for a dtype, exactly."""
        return _value(self.coefficients, dtype)

    def relative_to_product(self, dtype: torch.dtype) -> Fraction:
        """Return the coefficient of |x * y| for a dtype, exactly."""
        return _value(self.of_product, dtype)


def _text(polynomial: tuple[tuple[int, Fraction], ...]) -> str:
    return " + ".join(f"{c} u^{k}" if c != 1 else f"u^{k}" for k, c in polynomial)


def _value(polynomial: tuple[tuple[int, Fraction], ...], dtype: torch.dtype) -> Fraction:
    u = format_of(dtype).u
    return sum((c * u**k for k, c in polynomial), Fraction(0))


EXACT = "0 (exact)"
_JMP = "Joldes, Muller, Popescu 2017, doi:10.1145/3121432"
_IEEE = "IEEE 754"
# A test propagates the magnitudes of every step for these rows.
_DERIVED = "derived, tests/kernels/test_derived_bounds.py"
_SMT = "SMT solver, tests/kernels/test_smt_networks.py"
_INSERTED = "derived, docs/numerics.md; insertion: Shewchuk 1997, doi:10.1007/PL00009321"

# A row: relative part, absolute part, algorithm, source.
_Cells = tuple[list[tuple[int, int | Fraction]], int, str, str]


def _pair(operation: str, absolute: int) -> _Cells:
    """Return the row of pairs from `mcf.kernels.pair_bounds`."""
    row = pair_bound(operation)
    return list(row.terms), absolute, row.algorithm, f"{row.source}, doi:{row.doi}"


# Rows by operation; entry n - 1 of each list is for n components.
_ROWS: dict[str, list[_Cells]] = {
    "add": [
        ([(1, 1)], 0, "rounding", _IEEE),
        _pair("add", 0),
        ([(3, 45)], 0, "network of Zhang and Aiken", _SMT),
        ([(4, 8), (5, 16)], 0, "network of Zhang and Aiken", _SMT),
    ],
    "mul": [
        ([(1, 1)], 1, "rounding", _IEEE),
        _pair("mul", 4),
        ([(3, 24), (4, 50)], 8, "network of Zhang and Aiken", _DERIVED),
        ([(4, 14), (5, 300)], 12, "products by order, sums of u^3 compensated", _DERIVED),
    ],
    "div": [
        ([(1, 1)], 1, "rounding", _IEEE),
        ([(2, 15), (3, 56)], 6, "DWDivDW2", _JMP),
        ([(3, 16), (4, 400)], 12, "DWDivDW2, twice", _DERIVED),
        ([(4, 6), (5, 1900)], 20, "DWDivDW2, a digit, DWDivDW2", _DERIVED),
    ],
    "fma": [
        ([(1, 1), (2, 2)], 4, "2MultFMA and 2Sum", "two roundings"),
        ([(2, 2)], 5, "mul, then add", "mul and add"),
        ([(3, 45)], 9, "mul, then add", "mul and add"),
        ([(4, 8), (5, 16)], 13, "mul, then add", "mul and add"),
    ],
    "square": [
        ([(1, 1)], 1, "rounding", _IEEE),
        _pair("mul", 4),
        ([(3, Fraction(25, 2)), (4, 30)], 8, "products by order", _DERIVED),
        ([(4, Fraction(25, 2)), (5, 30)], 16, "products by order", _DERIVED),
    ],
    "sqrt": [
        ([(1, 1)], 1, "rounding", _IEEE),
        (
            [(2, Fraction(25, 8))],
            6,
            "SQRTDWtoDW",
            "Lefèvre, Louvet, Muller, Picot, Rideau 2023, doi:10.1145/3568672",
        ),
        ([(3, Fraction(9, 2)), (4, 110)], 12, "SQRTDWtoDW, then DWDivDW2", _DERIVED),
        ([(4, 2), (5, 350)], 20, "SQRTDWtoDW, a digit, DWDivDW2", _DERIVED),
    ],
    "reciprocal": [
        ([(1, 1)], 1, "rounding", _IEEE),
        ([(2, 15), (3, 56)], 6, "DWDivDW2", _JMP),
        ([(3, 16), (4, 400)], 12, "DWDivDW2, twice", _DERIVED),
        ([(4, 6), (5, 1900)], 20, "DWDivDW2, a digit, DWDivDW2", _DERIVED),
    ],
    "rsqrt": [
        ([(1, 1), (2, 20)], 8, "sqrt, then reciprocal, of pairs", "sqrt and reciprocal"),
        ([(2, 19)], 12, "sqrt, then reciprocal", "sqrt and reciprocal"),
        ([(3, Fraction(41, 2)), (4, 520)], 24, "sqrt, then reciprocal", "sqrt and reciprocal"),
        ([(4, 8), (5, 2350)], 40, "sqrt, then reciprocal", "sqrt and reciprocal"),
    ],
    "renormalize": [
        ([(1, 1), (2, 2)], 0, "VecSum sweeps", _INSERTED),
        ([(2, 1), (3, 2)], 0, "VecSum sweeps", _INSERTED),
        ([(3, 1), (4, 2)], 0, "VecSum sweeps", _INSERTED),
        ([(4, 1), (5, 2)], 0, "VecSum sweeps", _INSERTED),
    ],
}
# Part of the error of `fma` that is relative to |x * y|: the product's error, rounded into the sum.
_OF_PRODUCT: dict[int, list[tuple[int, int | Fraction]]] = {
    1: [(2, 2)],
    2: [(2, 5), (4, 10)],
    3: [(3, 24), (4, 51)],
    4: [(4, 14), (5, 301)],
}
# Rows of operations that have an algorithm of their own for a float as second argument.
_BY_FLOAT: dict[tuple[str, int], _Cells] = {
    ("add", 2): _pair("grow", 0),
    ("mul", 2): _pair("scale", 3),
    ("mul", 3): ([(3, 4), (4, 5)], 6, "products by order", _DERIVED),
    ("mul", 4): ([(4, 3)], 8, "products by order", _DERIVED),
    ("div", 2): ([(2, 3)], 6, "DWDivFP3", _JMP),
}


def _row(operation: str, terms: int, float_second: bool, cells: _Cells) -> ExpansionBound:
    coefficients, absolute, algorithm, source = cells
    exact = tuple((k, Fraction(c)) for k, c in coefficients)
    product = _OF_PRODUCT[terms] if operation == "fma" else []
    of_product = tuple((k, Fraction(c)) for k, c in product)
    return ExpansionBound(
        operation, terms, exact, absolute, algorithm, source, float_second, of_product
    )


# Names of the operations in the table.
EXPANSIONS = tuple(_ROWS)

EXPANSION_BOUNDS = (
    *(_row(name, n + 1, False, c) for name, rows in _ROWS.items() for n, c in enumerate(rows)),
    *(_row(name, terms, True, cells) for (name, terms), cells in _BY_FLOAT.items()),
)


def expansion_bound(operation: str, terms: int, *, float_second: bool = False) -> ExpansionBound:
    """Return the row of an operation, preferring the row for a float as second argument if asked.

    Raises:
        ValueError: for an operation or a number of components that the table lacks.
    """
    found = [r for r in EXPANSION_BOUNDS if (r.operation, r.terms) == (operation, terms)]
    if not found:
        raise ValueError(
            f"no bound for operation {operation!r} with {terms!r} terms; operations are "
            f"{', '.join(_ROWS)}, terms 1 to 4"
        )
    return found[-1] if float_second else found[0]


def markdown() -> str:
    """Return the table in Markdown, as shown in `docs/numerics.md`."""
    lines = [
        "| operation | n | relative | absolute | algorithm | proof |",
        "|---|---|---|---|---|---|",
    ]
    for r in EXPANSION_BOUNDS:
        name = f"`{r.operation}`" + (" by a float" if r.float_second else "")
        cells = (name, r.terms, r.formula, f"{r.absolute} eta", r.algorithm, r.source)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
