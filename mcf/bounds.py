"""`mcf.bound`: how large the error of an operation can be."""

from __future__ import annotations

import torch

from mcf.elementary.bounds import FUNCTIONS, observed
from mcf.kernels import expansion_bounds
from mcf.kernels.expansion_bounds import Guarantee
from mcf.kernels.formats import format_of


def bound(operation: str, terms: int = 2, dtype: torch.dtype = torch.float32) -> Guarantee:
    """How large the error of an operation on expansions can be.

    Args:
        operation: "add" (and "sub"), "mul", "div", "fma", "square", "sqrt", "reciprocal", "rsqrt",
            "renormalize", or an elementary function such as "exp" or "atan2".
        terms: components of the result, 1 to 4.
        dtype: of the components.

    Raises:
        ValueError: for another operation or number of terms.
        TypeError: for another dtype.
    """
    if operation not in FUNCTIONS:
        return expansion_bounds.bound(operation, terms, dtype)
    if isinstance(terms, bool) or terms not in (1, 2, 3, 4):
        raise ValueError(f"terms must be 1 to 4, got {terms!r}")
    fmt = format_of(dtype)
    coefficient = observed(operation, fmt, terms)
    return Guarantee(
        relative=coefficient * float(fmt.u**terms),
        absolute=0.51 * float(fmt.min_subnormal),
        proven=False,
        formula=f"{coefficient:.4g} u^{terms}",
        algorithm="float64 expansions, rounded once",
        source="observed",
    )
