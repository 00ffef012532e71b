"""Error bounds of all operations: one lookup in the tables of pairs and of expansions.

`pair_bounds` has the error-free transforms and the networks of pairs, `expansion_bounds` the
operations on expansions, `fold_bounds` sums by their length. Documentation and tests read them too.
"""

from __future__ import annotations

import dataclasses

import torch

from mcf.kernels.expansion_bounds import EXACT, EXPANSIONS, expansion_bound
from mcf.kernels.formats import format_of
from mcf.kernels.pair_bounds import pair_bound

# Operations whose bound is that of another one; True if the second argument is a float.
_SAME = {"sub": ("add", False), "grow": ("add", True), "scale": ("mul", True)}
# Error-free transforms return two components. Sign operations act on bits and are exact.
_TRANSFORMS = ("two_sum", "fast_two_sum", "split", "two_prod")
_SIGNS = ("neg", "abs")
OPERATIONS = (*EXPANSIONS, *_SAME, *_TRANSFORMS, *_SIGNS, "ldexp")


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The answer of `mcf.bound`.

    Args:
        relative: the coefficient of the exact result in the bound of the error.
        absolute: the error from underflow, to be added (scaled for quotients and roots, see
            `mcf.kernels.expansion_bounds`).
        proven: whether there is a proof; otherwise the bound was observed.
        formula: the relative part, a polynomial in u = 2**-p; for an operation with a count the
            bound to first order, in the notation of `docs/numerics.md`.
        algorithm: the name of the algorithm.
        source: the publication with the proof, or "observed".
        of_terms: the coefficient of the size of the terms, to be added: |x * y| for "fma".
        requires: the conditions besides normalised arguments and the absence of overflow.
    """

    relative: float
    absolute: float
    proven: bool
    formula: str
    algorithm: str
    source: str
    of_terms: float = 0.0
    requires: str = ""


def bound(
    operation: str,
    terms: int = 2,
    dtype: torch.dtype = torch.float32,
    *,
    count: int | None = None,
) -> Guarantee:
    """Return the error bound of an operation on expansions.

    Args:
        operation: one of `OPERATIONS`. "grow" and "scale" are "add" and "mul" with a float as
            second argument. "two_sum", "fast_two_sum", "split" and "two_prod" are exact under the
            preconditions in `requires`, and give two components.
        terms: components of the result, 1 to 4.
        dtype: the dtype of the components.
        count: for "renormalize" the number of floats, if known; the result is exact if it is at
            most `terms`.

    Raises:
        ValueError: for another operation, number of terms or of floats.
        TypeError: for another dtype.
    """
    fmt = format_of(dtype)
    if operation not in OPERATIONS:
        raise ValueError(
            f"no bound for operation {operation!r} with {terms!r} terms; operations are "
            f"{', '.join(OPERATIONS)}, terms 1 to 4"
        )
    if operation in _TRANSFORMS:
        if terms != 2:
            raise ValueError(f"{operation} gives 2 components, got terms={terms!r}")
        row = pair_bound(operation)
        # The error of a product below this range is itself rounded.
        absolute = float(fmt.min_subnormal) if row.product_margin is not None else 0.0
        source = f"{row.source}, doi:{row.doi}"
        return Guarantee(
            0.0, absolute, True, row.formula, row.algorithm, source, requires=row.precondition
        )
    name, float_second = _SAME.get(operation, (operation, False))
    if operation in _SIGNS or operation == "ldexp":
        expansion_bound("add", terms)
        # A component that leaves the normal range is rounded.
        absolute = terms * float(fmt.min_subnormal) / 2 if operation == "ldexp" else 0.0
        return Guarantee(0.0, absolute, True, EXACT, "by component", "IEEE 754")
    found = expansion_bound(name, terms, float_second=float_second)
    if operation == "renormalize" and count is not None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"renormalize: count must be an int of 1 or more, got {count!r}")
        if count <= terms:
            source = "every step is a TwoSum, and no component is left out"
            return Guarantee(0.0, 0.0, True, EXACT, found.algorithm, source)
    return Guarantee(
        float(found.relative(dtype)),
        float(found.absolute * fmt.min_subnormal),
        found.proven,
        found.formula,
        found.algorithm,
        found.source,
        float(found.relative_to_product(dtype)),
    )
