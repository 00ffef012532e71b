"""`torch.round(x, decimals=d)` of many numbers, against fractions: bit for bit.

Caught mutants: ties that are not seen, of x 10**d and of a result that is a quotient exactly;
results that are taken where an error decides.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import mcf
from mcf.elementary import integral_parts
from mcf.expansions.ops.arithmetic import division
from mcf.kernels.components import Components
from mcf.kernels.formats import FORMATS, Format
from tests.helpers.everyday import everyday
from tests.mcf.expansions.inputs import hard

ENDS = (0.0, -0.0, math.inf, -math.inf, math.nan, 0.005, -0.001, 1e300, 5e-324, 2.0**52 + 0.5)
ENDS += (2.0**70, 0.125, -2.5, 2.0**149)
SHAPES = [(f, n) for f in FORMATS.values() for n in (1, 2, 3, 4)]
EVERYDAY = [("fp64", 2), ("fp64", 4), ("fp32", 2), ("bf16", 3)]
cases = pytest.mark.parametrize(
    ("fmt", "terms"),
    everyday(SHAPES, lambda f, n: (f.name, n) in EVERYDAY),
    ids=lambda c: getattr(c, "name", str(c)),
)


def numbers(fmt: Format, terms: int, count: int = 300) -> Components:
    """Of all sizes, next to decimals, half of one, sums of a half and something far below."""
    assert fmt.dtype is not None
    k = torch.arange(-count // 2, count // 2, dtype=torch.float64) * 7
    with mcf.executor("torch"):
        thousandths = (mcf.tensor(k, 4) / 1000).to(fmt.dtype, terms=terms).components
    eighths = ((k / 8).to(fmt.dtype), *(torch.zeros_like(k, dtype=fmt.dtype),) * (terms - 1))
    beside = [(k / 8).to(fmt.dtype), *(torch.zeros_like(eighths[0]) for _ in range(terms - 1))]
    if terms > 1:
        # Beyond what float64 keeps of products.
        beside[-1] = torch.where(k != 0, 2.0 ** (fmt.emin // 2), 0.0).to(fmt.dtype)
    ends = torch.tensor(ENDS, dtype=torch.float64).to(fmt.dtype)
    alone = torch.zeros_like(ends)
    parts = (hard(fmt.dtype, terms, count, seed=3), thousandths, eighths, beside)
    return tuple(torch.cat([*(p[j] for p in parts), alone if j else ends]) for j in range(terms))


def bits(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), math.nan, x.double()).view(torch.int64)


def check(fmt: Format, terms: int) -> None:
    x = mcf.MCFTensor(numbers(fmt, terms))
    for d in (1, 2, 9, 22):
        wanted = division._by_fractions(x.components, d).components
        for a, b in zip(torch.round(x, decimals=d).components, wanted, strict=True):
            assert torch.equal(bits(a), bits(b)), d


@pytest.mark.sampled
@cases
def test_decimals_are_those_of_fractions(fmt: Format, terms: int, on_torch: None) -> None:
    check(fmt, terms)


def test_hardly_any_needs_fractions(on_torch: None) -> None:
    for fmt in FORMATS.values():
        x = numbers(fmt, 2)
        _, known = integral_parts.rounded(tuple(c[:900] for c in x), fmt, 2, 3)
        assert known.double().mean() > 0.97


def test_what_rounds_beside_a_tie_has_the_components_of_fractions(on_torch: None) -> None:
    """A sum that is a tie of its first component may stand for a number that is none.

    1.99609 is below 2 - 2**-8, which two components of bfloat16 hold as 2 - 2**-8 or as
    (2 - 2**-7) + 2**-8: its nearest expansion is the latter, of few numbers and of many.
    """
    x = mcf.MCFTensor([torch.full((300,), v, dtype=torch.bfloat16) for v in (2.0, -(2.0**-8))])
    for some in (x, x[:1], -x):
        found = torch.round(some, decimals=5).components
        for c, v in zip(found, (2 - 2.0**-7, 2.0**-8), strict=True):
            assert torch.equal(c.double(), some.components[0].sign().double() * v)


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "terms"), SHAPES, ids=lambda c: getattr(c, "name", str(c)))
def test_numba_has_the_bits(fmt: Format, terms: int) -> None:
    check(fmt, terms)
