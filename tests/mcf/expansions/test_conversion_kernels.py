"""*Exact*: conversions of many numbers as kernels have the bits of the program over tensors.

The program is compared with exact arithmetic in `test_rounding.py`. Caught mutant: a sweep less in
`_settle`, after which elements are counted as left out.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.convert import conversions, rounding
from mcf.elementary.fused import NO_SCALARS, stored
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

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
PAIRS = [(s, t) for s in DTYPES for t in DTYPES]


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
    kinds = [FORMATS[source], FORMATS[target]]
    small = executor == "numba"
    spec = conversions.kernel(rounding.nearest, kinds[0], terms, kinds[1], into, small)
    held = [(f if small else stored(f)).dtype for f in kinds]
    given = [c.to(held[0]) for c in x]
    out = [torch.empty_like(x[0], dtype=held[1]) for _ in range(into)]
    with registry.executor(executor):
        left_out = registry.run(spec, [[*out, *given]], NO_SCALARS)
    assert left_out is None or left_out.item() == 0
    for a, b in zip(wanted, out, strict=True):
        assert torch.equal(bits(a), bits(b.to(target))), (source, target, terms, into)


@pytest.mark.sampled(every=6)
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


@pytest.mark.parametrize(
    ("source", "target", "terms", "into"),
    everyday(
        [
            (torch.float64, torch.float32, 2, 2),
            (torch.float32, torch.float64, 2, 2),
            (torch.float64, torch.float64, 2, 3),
            (torch.float64, torch.float64, 3, 2),
            (torch.float64, torch.float32, 3, 4),
            (torch.float32, torch.float64, 4, 1),
            (torch.float32, torch.float32, 2, 1),
            (torch.float64, torch.float64, 1, 2),
        ],
        [(torch.float64, torch.float32, 2, 2), (torch.float32, torch.float64, 2, 2)],
    ),
    ids=str,
)
def test_few_numbers_that_are_asked_for_often(
    source: torch.dtype, target: torch.dtype, terms: int, into: int, monkeypatch: Any
) -> None:
    """Mutants: the kernel of another number of components; operands that are views read as dense;
    what is counted as left out taken."""
    monkeypatch.setattr(conversions, "OFTEN", 1)
    monkeypatch.setattr(conversions, "_prepared", {})
    x = numbers(source, terms, 200)
    for given in (
        x,
        tuple(c[:1] for c in x),
        tuple(c[7] for c in x),
        tuple(c[:6].view(2, 3) for c in x),
        tuple(c[200:] for c in x),
    ):
        found = conversions.run_few(rounding.nearest, given, target, into)
        assert found is not None
        wanted = rounding.nearest(given, target, into)
        for got in (found, rounding.convert(given, target, into)):
            assert [c.shape for c in got] == [given[0].shape] * into
            assert all(c.dtype is target and c.is_contiguous() for c in got)
            for a, b in zip(wanted, got, strict=True):
                assert torch.equal(bits(a), bits(b))
    for given in (
        tuple(c[:8:2] for c in x),
        tuple(c[:6].view(2, 3).t() for c in x),
        tuple(torch._neg_view(c[:3]) for c in x),
        tuple(c[:0] for c in x),
    ):
        calls = len(conversions._prepared)
        got = rounding.convert(given, target, into)
        assert len(conversions._prepared) == calls
        dense = tuple(c.clone().contiguous().resolve_neg() for c in given)
        for a, b in zip(rounding.nearest(dense, target, into), got, strict=True):
            assert torch.equal(bits(a), bits(b))
    launches: list[int] = []
    monkeypatch.setattr(conversions.registry, "prepare", lambda *_: Left(launches))
    monkeypatch.setattr(conversions, "_prepared", {})
    assert conversions.run_few(rounding.nearest, x, target, into) is None
    assert launches == [len(x) + into]


class Left:
    """A launch that leaves an element out."""

    def __init__(self, launches: list[int]) -> None:
        self._launches = launches

    def row(self, scalars: Any) -> Any:
        return self

    def __call__(self, addresses: list[int]) -> list[float]:
        self._launches.append(len(addresses))
        return [1.0]


@pytest.mark.usefixtures("on_torch")
def test_few_numbers_that_are_asked_for_seldom(monkeypatch: Any) -> None:
    """Nothing is prepared for them, and nothing for what somebody sees or no memory holds."""
    asked: list[Any] = []
    monkeypatch.setattr(conversions, "_launch", lambda *given: asked.append(given))
    monkeypatch.setattr(conversions, "_requests", Counter())
    monkeypatch.setattr(conversions, "_prepared", {})
    x = mcf.tensor(["0.1", "-3"], dtype=torch.float64)
    for _ in range(conversions.OFTEN - 1):
        x.float()
    assert not asked
    x.float(), x.float(), x.to(torch.float32)
    assert len(asked) == 1
    monkeypatch.setattr(conversions, "OFTEN", 0)
    with Seen():
        x.double(), x.half()
    meta = x.to("meta").half()
    assert meta.dtype is torch.float16
    assert len(asked) == 1
    assert torch.equal(torch.func.vmap(lambda t: t.half())(x), x.half())
    y = x.clone().requires_grad_()
    assert y.half().requires_grad
