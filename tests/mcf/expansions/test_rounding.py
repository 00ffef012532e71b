"""Exact: `to` gives the nearest expansion, x0 = RN(v), x1 = RN(v - x0), ... of the exact value.

Caught mutants: rounding float64 to the 16-bit types through float32; dropping components instead
of breaking a tie by those below; `round_odd` without its test of the last bit.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.convert import rounding
from mcf.convert.numbers import components_of
from mcf.kernels.formats import FORMATS, format_of
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.draws import bell
from tests.mcf.expansions.inputs import hard

DTYPES = tuple(FORMATS)


def nearest(x: mcf.MCFTensor, dtype: torch.dtype, terms: int) -> list[torch.Tensor]:
    rows = [components_of(v, format_of(dtype), terms) for v in x.to_fractions()]
    columns = torch.tensor(rows, dtype=torch.float64).reshape(-1, terms).unbind(1)
    return [c.to(dtype) for c in columns]


@pytest.mark.sampled
@pytest.mark.parametrize("source", DTYPES, ids=lambda d: FORMATS[d].name)
@pytest.mark.parametrize("target", DTYPES, ids=lambda d: FORMATS[d].name)
def test_to_is_the_nearest_expansion(source: torch.dtype, target: torch.dtype) -> None:
    for terms, into in ((1, 1), (1, 3), (2, 1), (3, 2), (4, 2), (4, 3), (2, 4)):
        x = mcf.MCFTensor(hard(source, terms, 120, seed=into))
        got = rounding.convert(x.components, target, into)
        assert_all_same_bits(got, nearest(x, target, into), f"{terms} to {into}")


@pytest.mark.sampled
@pytest.mark.parametrize("source", DTYPES, ids=lambda d: FORMATS[d].name)
@pytest.mark.parametrize("target", DTYPES, ids=lambda d: FORMATS[d].name)
def test_components_of_a_pair_may_come_in_any_order(
    source: torch.dtype, target: torch.dtype
) -> None:
    """Mutants: the shorter sum of two in place of `_two_sum`, -0 below a sum that is exact."""
    high, low = hard(source, 2, 120, seed=3)
    zero = torch.zeros_like(low)
    given = [(low, high), (high, high.flip(0)), (low, low), (high, -zero)]
    a, b = (torch.cat(each) for each in zip(*given, strict=True))
    values = [Fraction(u) + Fraction(v) for u, v in zip(a.tolist(), b.tolist(), strict=True)]
    for into in (1, 2, 3):
        rows = [components_of(v, format_of(target), into) for v in values]
        wanted = torch.tensor(rows, dtype=torch.float64).to(target).unbind(1)
        got = rounding.convert((a, b), target, into)
        # Of 0 the sign is that of the first component.
        usual = torch.tensor([v != 0 for v in values])
        assert_all_same_bits([c[usual] for c in got], [c[usual] for c in wanted], f"{into}")
        assert not any((c.signbit() & (c == 0)).any() for c in got[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: FORMATS[d].name)
def test_a_format_that_holds_the_value_gives_it_back(dtype: torch.dtype) -> None:
    wider = [d for d in DTYPES if torch.promote_types(d, dtype) is d]
    for terms, via in itertools.product((1, 2, 4), wider):
        c = rounding.convert(hard(dtype, terms, 64, seed=0), dtype, terms)
        x = mcf.MCFTensor(c)
        back = x.to(via, terms=4).to(dtype, terms=terms)
        assert_all_same_bits(back.components, c, f"{terms} terms through {via}")


def test_plain_float64_needs_three_components_of_float32() -> None:
    t = bell(1000)
    assert_same_bits(mcf.tensor(t, 3, torch.float32).to_plain(torch.float64), t)
    assert not torch.equal(mcf.tensor(t, 2, torch.float32).to_plain(torch.float64), t)


def test_infinities_nan_and_signed_zeros_keep_their_leading_component() -> None:
    t = torch.tensor(
        [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e300, -1e-300]
    ).double()
    t[5], t[6] = 1e300, -1e-300
    for dtype in DTYPES:
        x = mcf.tensor(t, terms=3, dtype=dtype)
        assert_same_bits(x.components[0], rounding.round_to(t, dtype), str(dtype))
        if dtype is not torch.float64:
            assert not any(c.any() for c in x.components[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: FORMATS[d].name)
@pytest.mark.parametrize("count", [1, 100, 3000])
def test_nan_and_infinities_behind_a_finite_component_are_the_value(
    dtype: torch.dtype, count: int
) -> None:
    for first, last in itertools.product((0.0, 1.5), (math.nan, math.inf, -math.inf)):
        for terms in (2, 3, 4):
            parts = [torch.full((count,), first, dtype=dtype)]
            parts += [torch.zeros_like(parts[0]) for _ in range(terms - 2)]
            x = mcf.MCFTensor([*parts, torch.full((count,), last, dtype=dtype)])
            right = torch.full((count,), last, dtype=torch.float64)
            found = [*map(x.to_plain, DTYPES), torch.from_numpy(x.numpy(float))]
            found += [torch.tensor(x.tolist()), *(x.to(d, terms=1).components[0] for d in DTYPES)]
            for got in found:
                torch.testing.assert_close(got.double(), right, rtol=0, atol=0, equal_nan=True)


def test_integers_are_truncated_by_value() -> None:
    x = mcf.tensor(["2.5", "-2.5", "-1e-20", "2.99999999999", "-3", str(2**62 + 1)], terms=4)
    assert x.long().tolist() == [2, -2, 0, 2, -3, 2**62 + 1]
    # 3 - 2**-60: the leading component is 3.
    assert mcf.tensor([3 - Fraction(1, 2**60)], terms=3).int().tolist() == [2]
    assert x.bool().tolist() == [True] * 6


@pytest.mark.usefixtures("on_torch")
def test_gradients_pass_through_conversions() -> None:
    x = mcf.tensor(["0.1", "0.2"], requires_grad=True)
    y = x.to(torch.float64, terms=3).to_plain(torch.float32)
    y.backward(torch.tensor([0.5, 2.0]))
    assert isinstance(x.grad, mcf.MCFTensor)
    assert x.grad.terms == 2
    assert x.grad.dtype is torch.float32
    assert x.grad.tolist() == [0.5, 2.0]
    c = torch.tensor([1.0, 2.0], requires_grad=True)
    (mcf.from_components((c, c * 1e-9)) * mcf.tensor(["0.1"])).sum().backward()
    assert c.grad is not None
    assert type(c.grad) is torch.Tensor
    assert_same_bits(c.grad, torch.tensor([0.1, 0.1]))


def test_what_lies_just_beside_a_midpoint_is_not_a_tie() -> None:
    middle = 1 + 2.0**-23 + 2.0**-24
    for step in (-1.0, 1.0):
        x = mcf.MCFTensor(
            [
                torch.tensor([v], dtype=torch.float64)
                for v in (middle + step * 2.0**-52, -step * 2.0**-54)
            ]
        )
        wanted = torch.tensor([middle + step * 2.0**-24], dtype=torch.float64).float()
        assert_same_bits(x.to_plain(torch.float32), wanted)
