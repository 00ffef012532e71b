"""Exact: one element as a float, and pairs as plain tensors, are their sum rounded once.

Caught mutants: components added one after the other; a sum that loses the sign of a zero; an
overflow that is not an infinity; the first component alone; a result laid out as its operand.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels.formats import format_of
from tests.mcf.expansions.inputs import hard

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


def _numbers(dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    parts = hard(dtype, terms, 96, terms)
    ends = [torch.tensor([*SPECIAL, 1.0, 1.0], dtype=dtype)]
    # Half a place, and what decides it from below.
    half = torch.finfo(torch.float64).eps / 2 if dtype is torch.float64 else 0.0
    ends += [torch.tensor([0.0] * 5 + [half, half], dtype=dtype)]
    ends += [torch.tensor([0.0] * 5 + [sign * half * 2.0**-60 for sign in (1, -1)], dtype=dtype)]
    ends += [torch.zeros(7, dtype=dtype)]
    return mcf.MCFTensor([torch.cat([c, e]) for c, e in zip(parts, ends, strict=False)])


def _bits(x: float) -> bytes:
    return struct.pack("d", x) if x == x else b"nan"


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_items(dtype: torch.dtype, terms: int, on_torch: None) -> None:
    x: Any = _numbers(dtype, terms)
    columns = [c.tolist() for c in x.components]
    for k, parts in enumerate(zip(*columns, strict=True)):
        if math.isfinite(parts[0]) and parts[0] != 0:
            try:
                expected = float(sum(map(Fraction, parts)))
            except OverflowError:
                expected = math.copysign(math.inf, parts[0])
        else:
            expected = parts[0]
        one = mcf.MCFTensor([c[k].clone() for c in x.components])
        assert _bits(one.item()) == _bits(float(one)) == _bits(expected)
        assert bool(one) is (expected != 0)
    with pytest.raises(RuntimeError, match="one element"):
        x.item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pairs_as_plain_tensors(dtype: torch.dtype, on_torch: None) -> None:
    """The sum's rounding is that of the operation on one component."""
    fmt = format_of(dtype)
    largest, half = torch.finfo(dtype).max, 2.0 ** (fmt.emax - fmt.p)
    ends = [torch.tensor([end, -end], dtype=dtype) for end in (largest, half)]
    x: Any = torch.cat([_numbers(dtype, 2), mcf.MCFTensor(ends)])
    plain = x.to_plain()
    whole = torch.int64 if dtype is torch.float64 else torch.int32
    for first, second, got in zip(*x.components, plain, strict=True):
        expected = first + second if second != 0 else first
        assert got.view(whole) == expected.view(whole)
        exact = abs(Fraction(float(first)) + Fraction(float(second))) if first.isfinite() else 0
        assert not got.isfinite() or abs(Fraction(float(got))) - exact <= exact / 2**23
    assert plain[-2:].tolist() == [math.inf, -math.inf]
    assert x[::2].to_plain().is_contiguous()
    # With a derivative as well.
    y = x[:8].clone().requires_grad_()
    assert y.to_plain().grad_fn is not None
    assert torch.equal(y.to_plain().view(whole), plain[:8].view(whole))
