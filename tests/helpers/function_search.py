"""What `search` climbs on for elementary functions: first populations, and the part of a bound.

A case is a function, a number of components and a format. The first inputs, and every eighth
generation, are those of `elementary.inputs`: near ties, zeros, poles, multiples of pi/2 and the
ends of the range. The worst of all are mutated, and those of each leading exponent. Errors come
from MPFR (`references`); an infinity where the exact result is finite, or the other way round, and
a result that is not normalised count as infinitely wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

import mcf.elementary
from mcf.kernels.formats import Format
from tests.helpers.climbing import Climb, worst_of_each_exponent
from tests.helpers.elementary import Components, disordered, inputs
from tests.helpers.function_survey import Case
from tests.helpers.mutation import Array, Inputs, Space
from tests.helpers.references import errors, full_precision

CHILDREN = 2000

# Where arguments below 2**-260 give what 0 gives: MPFR takes milliseconds for those.
_FLAT = ("exp", "cos", "cosh", "sigmoid", "erfc", "normal_cdf", "normal_pdf", "gelu", "gelu_tanh")
_POSITIVE = ("log", "log2", "log10", "acosh")
# References hold 448 bits of an argument.
_DEPTH = 390


def inside(name: str, x: Array) -> Array:
    """Which arguments are within the domain, without its poles and ends; [terms, count]."""
    first, rest = x[0], x[1] if len(x) > 1 else np.zeros_like(x[0])
    size = np.abs(first)
    if name in ("log", "log2", "log10", "pow"):
        return first > 0
    if name == "log1p":
        return (first > -1) | ((first == -1) & (rest > 0))
    if name in ("asin", "acos", "atanh"):
        return (size < 1) | ((size == 1) & (rest * np.sign(first) < 0))
    if name == "acosh":
        return (first > 1) | ((first == 1) & (rest > 0))
    return np.ones(first.shape, bool)


def space(case: Case) -> Space:
    """All numbers of the format, but for those that are as good as zero."""
    low = case.fmt.emin - case.fmt.p + 1
    return Space(
        case.fmt,
        max(low, -260) if case.function in _FLAT else low,
        case.fmt.emax - 1,
        case.function in _POSITIVE,
        far=True,
        depth=_DEPTH,
    )


def start(case: Case, seed: int, count: int) -> Inputs:
    """Inputs of no parents, about as many as asked for."""
    batches = inputs(case.function, case.fmt, case.terms, count // 4, seed)
    return [
        np.concatenate([torch.stack(b).double().numpy() for b in column], axis=1)
        for column in zip(*batches, strict=True)
    ]


def trial(case: Case, inputs: Inputs, precision: int | None = None) -> tuple[Array, Array]:
    """Errors in u^n, and the part of the bound that each is; -inf outside of the domain.

    Args:
        case: the function.
        inputs: its arguments.
        precision: bits for the exact results, by default those for a search.
    """
    good = inside(case.function, inputs[0])
    for x in inputs:
        good &= (x[0] != 0) & np.isfinite(x).all(0)
    error, wrong = np.full((2, len(good)), -math.inf)
    arguments = tuple(tensors(case.fmt, x[:, good]) for x in inputs)
    if good.any():
        result = getattr(mcf.elementary, case.function)(*arguments)
        found = errors(case.function, case.fmt, arguments, result, precision)
        # Both are beyond the largest number.
        error[good] = np.where(np.isnan(found.relative), 0.0, found.relative)
        bad = np.flatnonzero(good)[[*found.wrong, *disordered(case.fmt, result)]]
        wrong[bad] = math.inf
    return error, np.maximum(error / case.bound, wrong)


def measured(case: Case, inputs: Inputs) -> tuple[Array, Array]:
    """The same with at least four times the result's bits."""
    return trial(case, inputs, full_precision(case.fmt, case.terms))


def climb(
    case: Case, seed: int, *, children: int = CHILDREN, known: Sequence[Inputs] = ()
) -> Climb:
    """A climb from its first population.

    Args:
        case: the function.
        seed: of all choices.
        children: in each generation.
        known: inputs to start from besides.
    """
    first = start(case, seed, children)
    return Climb(
        space(case),
        [np.concatenate(columns, axis=1) for columns in zip(first, *known, strict=True)],
        lambda inputs: trial(case, inputs)[1],
        seed=seed,
        children=children,
        keep=worst_of_each_exponent(children // 4),
        fresh=lambda generation: start(case, seed + 1000 * generation, children),
    )


def tensors(fmt: Format, x: Array) -> Components:
    """Rows as components of a format."""
    return tuple(torch.from_numpy(np.ascontiguousarray(c)).to(fmt.dtype) for c in x)
