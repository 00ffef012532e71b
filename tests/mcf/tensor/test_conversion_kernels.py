"""*Exact*: conversions of many numbers as kernels have the bits of the program over tensors.

The program is compared with exact arithmetic in `test_rounding.py`. Caught mutant: a sweep less in
`_settle`, after which elements are counted as left out.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import mcf
from mcf.convert import conversions, rounding
from mcf.elementary.fused import NO_SCALARS, stored
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS
from tests.mcf.tensor.inputs import hard

DTYPES = tuple(FORMATS)
# Zeros, infinities, NaN, both sides of the largest numbers, and of the smallest.
ENDS = (
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    65519.0,
    65520.0,
    -(2.0**128 - 2.0**103),
    2.0**128,
)
ENDS += (1e300, 5e-324, -(2.0**-149), 2.0**-150, 3 * 2.0**-150, -(2.0**-25), 2.0**-24, 2.0**-1022)
TERMS = ((2, 2), (3, 2), (2, 1), (1, 3), (4, 3))
# Those in one format of 16 bits alone have no kernel.
PAIRS = [(s, t) for s in DTYPES for t in DTYPES if torch.promote_types(s, t).itemsize > 2]


def numbers(dtype: torch.dtype, terms: int, count: int) -> tuple[Tensor, ...]:
    """Ties, components that are zero and far apart, and the ends of the ranges."""
    ends = torch.tensor(ENDS, dtype=torch.float64).to(dtype)
    first, *lower = hard(dtype, terms, count, seed=terms)
    zeros = torch.zeros_like(ends)
    return (torch.cat([first, ends]), *(torch.cat([c, zeros]) for c in lower))


def bits(x: Tensor) -> Tensor:
    """As integers; which NaN a conversion makes is the processor's choice."""
    return torch.where(x.isnan(), math.nan, x.double()).view(torch.int64)


def check(executor: str, source: torch.dtype, target: torch.dtype, terms: int, into: int) -> None:
    x = numbers(source, terms, 2200 if executor == "numba" else 300)
    wanted = rounding.nearest(x, target, into)
    spec = conversions.kernel(rounding.nearest, FORMATS[source], terms, FORMATS[target], into)
    given = [c.to(stored(FORMATS[source]).dtype) for c in x]
    out = [torch.empty_like(x[0], dtype=stored(FORMATS[target]).dtype) for _ in range(into)]
    with registry.executor(executor):
        left_out = registry.run(spec, [[*out, *given]], NO_SCALARS)
    assert left_out is None or left_out.item() == 0
    for a, b in zip(wanted, out, strict=True):
        assert torch.equal(bits(a), bits(b.to(target))), (source, target, terms, into)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda d: FORMATS[d].name)
def test_formula_has_the_bits_of_the_program(source: torch.dtype, target: torch.dtype) -> None:
    for terms, into in TERMS:
        check("torch", source, target, terms, into)


@pytest.mark.slow
@pytest.mark.parametrize(("terms", "into"), TERMS)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda d: FORMATS[d].name)
def test_numba_has(source: torch.dtype, target: torch.dtype, terms: int, into: int) -> None:
    check("numba", source, target, terms, into)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), PAIRS[::3], ids=lambda d: FORMATS[d].name)
def test_triton_has(source: torch.dtype, target: torch.dtype) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    check("triton", source, target, 3, 2)


def test_many_numbers_go_that_way_and_few_by_the_program() -> None:
    x = mcf.MCFTensor(numbers(torch.float64, 2, conversions.FEWEST))
    with mcf.executor("torch"):
        wanted = x.to(torch.float32).components
    for a, b in zip(wanted, x.to(torch.float32).components, strict=True):
        assert torch.equal(bits(a), bits(b))
        assert b.is_contiguous()
    few = [c[:64] for c in x.components]
    assert conversions.run(rounding.nearest, few, torch.float32, 2) is None
    assert conversions.run(rounding.nearest, x.components, torch.float32, 2) is not None
