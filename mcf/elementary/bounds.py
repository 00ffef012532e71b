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
# Of what 1e6 arguments did not meet.
_UNSEEN = 1.5

# The worst of 1e6 arguments a function, random and adversarial, in units of u^4, for float64 and
# four components (`python -m tests.helpers.search run STATE.json --functions`); of `erf`, `pow` and
# `sinh` an earlier search found worse.
WORST_OF_FOUR: dict[str, float] = {
    "exp": 0.25,
    "expm1": 1,
    "log": 19.9,
    "log1p": 16.7,
    "log2": 20,
    "log10": 19.9,
    "sin": 3.27,
    "cos": 2.69,
    "tan": 14.1,
    "asin": 14.8,
    "acos": 12.3,
    "atan": 11.1,
    "atan2": 19.9,
    "sinh": 10.0,
    "cosh": 6.51,
    "tanh": 21.6,
    "asinh": 17,
    "acosh": 21,
    "atanh": 17.9,
    "sigmoid": 22.7,
    "erf": 9.8,
    "erfc": 3.68,
    "normal_cdf": 4.42,
    "normal_pdf": 3.49,
    "gelu": 7.37,
    "gelu_tanh": 20.5,
    "pow": 0.48,
    "hypot": 16.9,
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
