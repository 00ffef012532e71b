"""What `search` climbs on for arithmetic: its first populations, and the part of a bound.

A case is an operation, a number of components and a format. The first populations are random bit
patterns and the hard inputs of `survey`; every second seed begins at the bottom of the range, where
underflow is. What is maximised is the part of the bound that an error is, beyond what underflow may
cost; a result that is not normalised counts as infinitely wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mcf.kernels.formats import FP16
from tests.helpers.climbing import Climb
from tests.helpers.expansions import tensors
from tests.helpers.mutation import Array, Inputs, Space, unrelated
from tests.helpers.residuals import residuals
from tests.helpers.survey import Case, ranges
from tests.helpers.worst import apply, tied

CHILDREN = 8000

_ARGUMENTS = {"fma": 3, "add": 2, "mul": 2, "div": 2}


def shapes(case: Case) -> list[int]:
    """Components of each argument."""
    if case.operation == "renormalize":
        return [max(4, case.terms + 3, 2 * case.terms)]
    if case.float_second:
        return [case.terms, 1]
    return [case.terms] * _ARGUMENTS.get(case.operation, 1)


def space(case: Case, seed: int = 0) -> Space:
    """The inputs of a case in the middle of the range, or at its bottom for odd seeds.

    The middle of float16 goes to its top, where three components are above the smallest number.
    """
    low, high = ranges(case.fmt)[1] if seed % 2 else (-3, 12 if case.fmt == FP16 else 4)
    positive = case.operation in ("sqrt", "rsqrt")
    return Space(case.fmt, low, high, positive, case.operation == "renormalize")


def start(case: Case, seed: int, count: int) -> Inputs:
    """The first population: random bit patterns and hard inputs."""
    among, rows = space(case, seed), shapes(case)
    random = unrelated(among, rows, count, np.random.default_rng([seed, 1]))
    hard = [torch.stack([t.double() for t in a]).numpy() for a in case.arguments(seed)]
    if case.operation == "renormalize":
        # With the sums next to ties that broke its bound when it had a sweep less.
        unit = 2.0 ** (among.high - case.fmt.p)
        ties = [float(v) * unit for v in tied(case.fmt, min(case.terms, 3))]
        hard = [
            np.concatenate([_padded(np.array([ties]).T, rows[0]), _padded(hard[0], rows[0])], 1)
        ]
    return [np.concatenate([r, h[:, :count]], axis=1) for r, h in zip(random, hard, strict=True)]


def _padded(x: Array, rows: int) -> Array:
    """With zeros below."""
    return np.pad(x, ((0, rows - len(x)), (0, 0)))


def trial(
    case: Case, inputs: Inputs, function: Callable[..., Any] | None = None
) -> tuple[Array, Array]:
    """Errors beyond what underflow may cost, in u^n, and the part of the bound that each is.

    Args:
        case: the operation.
        inputs: its arguments.
        function: what computes it in place of the library's.
    """
    given = [tensors(case.fmt, list(x)) for x in inputs]
    result = function(*given) if function else apply(case.operation, given, case.terms)
    found = residuals(case.operation, case.fmt, given, result)
    dtype, unit = case.fmt.dtype, 2 ** (case.terms * case.fmt.p)
    assert dtype is not None
    own = float(case.bound.relative(dtype) * unit)
    product = float(case.bound.relative_to_product(dtype) * unit)
    error = found.beyond(case.bound.absolute)
    part = error / (own + (product - own) * found.share)
    # A zero's error has no ratio; exact integers judge it where bounds are tested.
    part = np.where(np.isfinite(part), part, -1.0)
    return error, np.where(found.disordered, math.inf, part)


# What is kept is tried as exactly as the search has it: residuals have no rounding.
measured = trial


def climb(
    case: Case,
    seed: int,
    *,
    children: int = CHILDREN,
    known: Sequence[Inputs] = (),
    function: Callable[..., Any] | None = None,
) -> Climb:
    """A climb from its first population.

    Args:
        case: the operation.
        seed: of all choices.
        children: in each generation.
        known: inputs to start from besides.
        function: what computes it in place of the library's.
    """
    first = start(case, seed, children)
    if known:
        some = [[_padded(x, len(f)) for x, f in zip(k, first, strict=True)] for k in known]
        first = [np.concatenate(columns, axis=1) for columns in zip(first, *some, strict=True)]
    return Climb(
        space(case, seed),
        first,
        lambda inputs: trial(case, inputs, function)[1],
        seed=seed,
        children=children,
    )
