"""Transforms of what has no numbers, before and after some that have: shapes, and the same bits.

Caught mutant: tables of roots that are kept from call to call outside of an operator, which a trace
met, or made.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import mcf
from mcf.fourier import transform
from tests.helpers import assert_all_same_bits
from tests.helpers.complexes import numbers

pytestmark = pytest.mark.usefixtures("on_torch")


def _power(x: Any) -> Any:
    """|rfft(x)|^2, with a length of one step, a chirp, halves."""
    z = torch.fft.rfft(x)
    return z.real * z.real + z.imag * z.imag


@pytest.mark.parametrize("n", [6, 131, 4096])
def test_what_has_no_numbers_keeps_no_tables_and_meets_none(n: int) -> None:
    for kept in (
        transform._twiddles,
        transform._matrix,
        transform.chirps,
        transform._cached_turns,
    ):
        kept.cache_clear()
    x = numbers(torch.float64, 2, n).real
    found = []
    for _ in range(2):
        with FakeTensorMode() as mode:
            assert _power(mode.from_tensor(x)).shape == (n // 2 + 1,)
        found.append(_power(x))
    assert_all_same_bits(found[0].components, found[1].components, n)


def test_a_length_of_one_is_a_copy() -> None:
    z = numbers(torch.float64, 2, 1, 1)
    found: Any = torch.fft.fft(z)
    found.real.fill_(3)
    assert not bool((z.real == 3).any())


@pytest.mark.slow
def test_compiled_after_numbers() -> None:
    x = mcf.tensor([["0.1", 2, 3, 4], [5, "0.7", 7, 8]], dtype=torch.float64)
    want = _power(x)
    torch._dynamo.reset()
    got: Any = torch.compile(_power, backend="aot_eager")(x)
    assert_all_same_bits(got.components, want.components, "compiled")
    torch._dynamo.reset()
