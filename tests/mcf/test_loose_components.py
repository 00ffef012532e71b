"""Components that are not normalised: an index into a table that follows from them is inside it.

What a function makes of them means nothing, but no executor may read beside its tables, and those
on this page have the same bits.

Caught mutant: `entries` without its clamp, for which the torch executor raised an IndexError where
Numba had a result; `airy_ai` with the NaN that its steps end with, which has another sign and other
components on each executor.
"""

from __future__ import annotations

import math

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits

FUNCTIONS = (
    torch.sin, torch.exp, torch.expm1, torch.log, torch.log2, torch.log1p, torch.tan, torch.acos,
    torch.atan, torch.tanh, torch.erf, torch.erfinv, torch.lgamma, torch.digamma, torch.special.i0,
    torch.special.ndtri, torch.special.erfcx, torch.special.bessel_j0, torch.special.bessel_y0,
    torch.special.modified_bessel_k0, torch.special.airy_ai,
)  # fmt: skip


def loose() -> mcf.MCFTensor:
    largest = torch.finfo(torch.float64).max
    first = [-2.0, 7.25, 0.4375, -1.0, -0.0, 0.25, 22.5, 0.5, 0.5, 40.5, -0.25]
    second = [3.0, -2.0, -2.0, 1.0, math.nan, -largest, largest, math.inf, -math.inf, -1.0, 8.0]
    return mcf.MCFTensor([torch.tensor(c, dtype=torch.float64) for c in (first, second)])


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_no_function_reads_beside_its_tables(function) -> None:
    with mcf.executor("torch"):
        assert function(loose()).shape == loose().shape


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_all_executors_have_the_same_bits(function) -> None:
    with mcf.executor("torch"):
        wanted = function(loose()).components
    with mcf.executor("numba"):
        assert_all_same_bits(function(loose()).components, wanted)
