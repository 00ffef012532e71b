"""Airy's function and its derivative: special values, coefficients, rows of the tables.

Errors and mutants are in `test_special_functions.py` and `test_special_branches.py`, zeros in
`test_bessel_functions.py`, derivatives in `test_error_functions.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from mcf.elementary import airy, tables
from mcf.elementary.airy import ZEROS, asymptotic
from mcf.elementary.format import computing_in
from mcf.elementary.tables import Components
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.everyday import everyday

_SLOW = pytest.mark.slow
NAMES = airy.NAMES
FORMATS = (BF16, FP16, FP32, FP64)
PROGRAMS: dict[str, Callable[..., Components]] = {
    "airy_ai": airy.airy_ai,
    "airy_ai_1": airy.airy_ai_1,
}


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    ("name", "fmt", "terms"),
    everyday(itertools.product(NAMES, (FP32, FP64), (1, 3)), [(NAMES[0], FP64, 3)]),
)
def test_special_values(name: str, fmt: Format, terms: int) -> None:
    """As torch has them, NaN at infinities; 0 where no bit of the phase is known."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 110.0, 1e30, 0.0, -0.0], dtype=fmt.dtype)
    theirs = torch.special.airy_ai(x)
    ours = PROGRAMS[name]((x, *(torch.zeros_like(x) for _ in range(terms - 1))))
    assert torch.equal(ours[0].isnan(), theirs.isnan())
    assert all(bool((c[:5] == 0).all()) for c in ours[1:])
    assert ours[0][3:5].tolist() == theirs[3:5].tolist() == [0.0, 0.0]
    if name == "airy_ai":
        assert ours[0][5:].tolist() == pytest.approx([0.3550280538878172] * 2, rel=1e-7)
    rows = [1e18, 1e37] if fmt is FP32 else [1e18, 1e42, 1e43, 1e300]
    far = -torch.tensor(rows, dtype=fmt.dtype)
    found = PROGRAMS[name]((far,))[0].double()
    size = far.double().abs() ** (-0.25 if name == "airy_ai" else 0.25)
    assert bool((found.abs() <= size).all())
    assert bool((found[far.abs() <= 2.0**142] != 0).all())
    assert bool((found[far.abs() > 2.0**142] == 0).all())


def test_coefficients() -> None:
    """DLMF 9.7.2: u_1 = 5/72, u_2 = 385/10368, v_1 = -7/72, v_2 = -455/10368."""
    assert [asymptotic(0, k) for k in (1, 2)] == [Fraction(5, 72), Fraction(385, 10368)]
    assert [asymptotic(1, k) for k in (1, 2)] == [Fraction(-7, 72), Fraction(-455, 10368)]


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("m", [0, pytest.param(1, marks=_SLOW)])
def test_every_float_has_the_row_of_an_interval_around_it(m: int) -> None:
    """And rows ascend, so that `the bounds` knows them by their ends."""
    a = torch.arange(-(1 << 12), (64 << 12) + 1, dtype=torch.float64) / (1 << 12)
    row = airy.row_of(m, a)
    assert bool((row.diff() >= 0).all())
    assert row.diff().max() == 1
    assert (row[0], row[-1] >= ZEROS) == (0, True)
    points = tables.table(f"{NAMES[m]}_points", torch.device("cpu"))[0]
    # The coefficients of a row fall for these distances.
    assert bool(((a - points[row.long()]).abs() * a.clamp(min=1).sqrt() < 1.9).all())


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_a_row_is_that_of_a_root_rounded_correctly(fmt: Format) -> None:
    """Beside the ends of rows, where the last bit of the root decides; NumPy's is rounded so.

    Mutant: `torch.sqrt`, of which one in five of float32 is not, with MKL on some processors.
    """
    own: Any = {FP32: np.float32, FP64: np.float64}[fmt]
    scale, shift = own(2 / (3 * math.pi)), own(airy.SHIFT[0])
    ends = [(3 * math.pi / 2 * (k - airy.SHIFT[0])) ** (2 / 3) for k in range(6, ZEROS)]
    near = np.array(ends, own)[:, None] + np.arange(-200, 201, dtype=own) * own(2.0 ** (6 - fmt.p))
    wanted = np.floor(near * np.sqrt(near) * scale + shift)
    assert (np.unique(wanted - wanted.min(1, keepdims=True)) == [0, 1]).all()
    with computing_in(fmt):
        row = airy.row_of(0, torch.from_numpy(near))
    first = float(row.min() - wanted.min())
    assert (row.numpy() - first == wanted).all()
