"""Zeros, infinities and NaN of complex functions: C99's Annex G, row by row.

A word of the table that is changed fails here. `torch.complex128` departs in one place of the
table, the sign of acos(0 + 0i)'s imaginary part, and agrees elsewhere; which of torch's versions
and processors do is not tested.
"""

from __future__ import annotations

import pytest
import torch

import mcf
from tests.helpers.everyday import everyday
from tests.mcf.complexes.annex_g import NAMES, departs, rows

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
# Formats share the program up to its last rounding.
FORMATS = [(F64, 2, 2.0**-50), (F64, 4, 2.0**-50), (F32, 1, 2.0**-22), (BF16, 2, 2.0**-15)]


@pytest.mark.sampled(every=3)
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("dtype", "terms", "near"),
    everyday(FORMATS, FORMATS[:1]),
    ids=[f"{dtype}-{terms}".removeprefix("torch.") for dtype, terms, _ in FORMATS],
)
@pytest.mark.parametrize("name", NAMES)
def test_function(name: str, dtype: torch.dtype, terms: int, near: float) -> None:
    table = rows(name)
    assert len(table) > 60
    z = mcf.complex_tensor(torch.tensor([r[0] for r in table]), terms, dtype)
    found = getattr(torch, name)(z)
    values = zip(table, found.real.tolist(), found.imag.tolist(), strict=True)
    wrong = [(row, x, y) for row, x, y in values if departs(complex(x, y), row[1], near)]
    assert not wrong
    for part in (found.real, found.imag):
        first, *rest = part.components
        # What stands below a zero, an infinity or NaN is 0.
        plain = (first == 0) | ~first.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in rest)
