"""The errors of the elementary functions, as observed; `docs/numerics.md` shows the same table.

Rounding a number to n components of precision p is in error by at most 2**(1 - n) u**n of it. What
is computed with bits to spare shows that error and hardly more; four components of float64 are
computed with four, and show what those operations add up to, most of it in one division.
"""

from __future__ import annotations

from mcf.kernels.formats import FP32, FP64, Format

# Of the bits that the working precision has to spare. Four components of float32 are rounded with
# an error of 2**-99, from two of float64 that err by a few 2**-106.
_MARGIN = 1 + 2**-6
_MARGIN_OF_FOUR = 1 + 2**-4
# Of what 2e5 arguments did not meet.
_UNSEEN = 1.5

# The worst of some 2e5 arguments a function, random and adversarial, in units of u^4, for float64
# and four components.
WORST_OF_FOUR: dict[str, float] = {
    "exp": 0.23,
    "expm1": 0.70,
    "log": 16.6,
    "log1p": 15.1,
    "log2": 16.6,
    "log10": 16.6,
    "sin": 2.5,
    "cos": 2.6,
    "tan": 13.8,
    "asin": 10.3,
    "acos": 9.8,
    "atan": 5.1,
    "atan2": 18.8,
    "sinh": 10.0,
    "cosh": 5.7,
    "tanh": 17.7,
    "asinh": 9.1,
    "acosh": 16.0,
    "atanh": 8.1,
    "sigmoid": 20.0,
    "erf": 9.8,
    "erfc": 3.3,
    "normal_cdf": 3.4,
    "normal_pdf": 3.3,
    "gelu": 7.3,
    "gelu_tanh": 17.5,
    "pow": 0.48,
    "hypot": 11.4,
}
FUNCTIONS = tuple(WORST_OF_FOUR)


def observed(function: str, fmt: Format, terms: int) -> float:
    """The bound that the tests check, in units of u**terms relative to the exact result.

    Observed, not proved. Where the smallest subnormal number is not small beside that, half of it
    comes on top, with the same margin.

    Raises:
        KeyError: for a function without a row.
    """
    worst = WORST_OF_FOUR[function]
    if fmt is FP64:
        # Two or three components are renormalised without a choice between ties.
        return worst * _UNSEEN if terms == 4 else _MARGIN
    margin = _MARGIN_OF_FOUR if fmt is FP32 and terms == 4 else _MARGIN
    return 2.0 ** (1 - terms) * margin


def markdown() -> str:
    """The table as `docs/numerics.md` shows it."""
    lines = ["| function | worst seen, float64 x 4 |", "|---|---|"]
    lines += [f"| `{name}` | {worst:g} u^4 |" for name, worst in WORST_OF_FOUR.items()]
    return "\n".join(lines)
