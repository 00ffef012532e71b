"""The errors of the elementary functions, as observed; `docs/numerics.md` shows the same table.

Rounding a number to n components of precision p is in error by at most 2**(1 - n) u**n of it. What
is computed with bits to spare shows that error and hardly more; four components of float64 are
computed with four, and show what those operations add up to.
"""

from __future__ import annotations

from mcf.kernels.formats import FP64, Format

# Of the bits that the working precision has to spare, in units of 2**(1 - n) u**n.
_MARGIN = 1 + 2**-6

# In units of u^4, for float64 and four components.
FOUR_OF_FLOAT64: dict[str, float] = {
    "exp": 1.0,
    "expm1": 1.0,
    "log": 8.0,
    "log1p": 11.0,
    "log2": 8.0,
    "log10": 9.0,
    "sin": 4.0,
    "cos": 4.0,
    "tan": 11.0,
    "asin": 8.0,
    "acos": 6.0,
    "atan": 2.0,
    "atan2": 13.0,
    "sinh": 7.0,
    "cosh": 7.0,
    "tanh": 14.0,
    "asinh": 16.0,
    "acosh": 13.0,
    "atanh": 14.0,
    "sigmoid": 14.0,
    "erf": 6.0,
    "erfc": 4.0,
    "normal_cdf": 6.0,
    "normal_pdf": 6.0,
    "gelu": 5.0,
    "gelu_tanh": 4000.0,
    "pow": 1.0,
    "hypot": 18.0,
}
FUNCTIONS = tuple(FOUR_OF_FLOAT64)


def observed(function: str, fmt: Format, terms: int) -> float:
    """The bound that the tests check, in units of u**terms relative to the exact result.

    Observed, not proved. A result below the smallest normal number times u**(1 - terms) is instead
    in error by at most half the smallest subnormal number, with the same margin.

    Raises:
        KeyError: for a function without a row.
    """
    row = FOUR_OF_FLOAT64[function]
    if fmt is FP64 and terms == 4:
        return row
    # Two or three components of float64 are renormalised without a choice between ties.
    return (1.0 if fmt is FP64 else 2.0 ** (1 - terms)) * _MARGIN
