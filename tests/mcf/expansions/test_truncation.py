"""*Exact*: integers of expansions without a part beyond the floats' whole numbers.

Caught mutants: the first component's integer alone; lower components looked at where the first has
a fraction, or away from zero; numbers with NaN by the short way.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.kernels.formats import FORMATS, Format

each_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


@each_format
def test_integers_of_short_numbers(fmt: Format, on_torch: None) -> None:
    assert fmt.dtype is not None
    heads = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 0.5, -0.75, float(2 ** (fmt.p - 1) - 1)]
    first = torch.tensor(heads, dtype=fmt.dtype).repeat_interleave(3)
    below = first.abs().double() * 2.0 ** (1 - 2 * fmt.p)
    # Below numbers of few bits is what their last place has room for.
    lower = (below * torch.tensor([-1.0, 0.0, 1.0]).repeat(len(heads))).to(fmt.dtype)
    for components in ((first,), (first, lower), (first, lower, torch.zeros_like(first))):
        x = mcf.MCFTensor([c.clone() for c in components])
        values = [0 if isinstance(v, float) else math.trunc(v) for v in x.to_fractions()]
        assert x.long().tolist() == values


def test_what_is_not_finite_is_what_torch_makes_of_it(on_torch: None) -> None:
    """Where two such integers were added up, 0."""
    x = mcf.tensor([1.5, math.nan, math.inf, -2.0], 2, torch.float64)
    assert x.long().tolist() == x.to_plain().long().tolist()


def test_finite_numbers_have_no_nan_to_replace(on_torch: None) -> None:
    x = mcf.tensor(["0.1", "-0.2"], 2, torch.float64)
    y = x.nan_to_num(nan=3.0)
    assert torch.equal(y, x)
    assert all(
        a.data_ptr() != b.data_ptr() for a, b in zip(x.components, y.components, strict=True)
    )
    mixed = mcf.tensor([1.0, math.nan, math.inf], 2, torch.float64)
    assert mixed.nan_to_num(nan=3.0, posinf=4.0).tolist() == [1.0, 3.0, 4.0]


def test_what_is_cut_off_to_the_least_integer(on_torch: None) -> None:
    values = [Fraction(-(2**63)) - Fraction(1, 3), 2**63 - Fraction(1, 3), -(2**63), 1 - 2**63]
    x = mcf.tensor([*values, -(2**62) - Fraction(1, 3)] * 2, 3, torch.float64)
    assert x.long().tolist() == [*map(math.trunc, values), -(2**62)] * 2
