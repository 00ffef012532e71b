"""The table of bounds is complete and says what its rows say in formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.operators import TRANSFORMS
from mcf.kernels.pair_bounds import BOUNDS, Bound, pair_bound


def test_every_operation_has_one_row() -> None:
    assert [b.operation for b in BOUNDS] == [o.name for o in TRANSFORMS]
    assert all(pair_bound(o.name).operation == o.name for o in TRANSFORMS)


@pytest.mark.parametrize("row", BOUNDS, ids=lambda b: b.operation)
def test_rows_are_whole(row: Bound) -> None:
    # Registrant code, slash, and something after it.
    assert row.doi.startswith("10.")
    assert len(row.doi.split("/", 1)[1]) > 3
    assert row.source
    assert row.precondition
    assert row.exact == (row.formula == "0 (exact)")
    # Every format of the library is precise enough.
    assert row.minimum_p <= min(f.p for f in (BF16, FP16, FP32, FP64))


def test_error_is_exact_in_u() -> None:
    u = Fraction(1, 2**8)
    assert pair_bound("two_sum").error(u) == 0
    assert pair_bound("grow").error(u) == 2 * u**2
    assert pair_bound("scale").error(u) == Fraction(3, 2) * u**2 + 4 * u**3
    assert pair_bound("scale").formula == "3/2 u^2 + 4 u^3"
    assert pair_bound("mul").error(FP64.u) == Fraction(5, 2**106)


def test_least_products() -> None:
    assert pair_bound("grow").least_product_exponent(FP16) is None
    assert pair_bound("two_prod").least_product_exponent(FP16) == -14 + 11 - 1
    assert pair_bound("mul").least_product_exponent(BF16) == -126 + 8


def test_unknown_operation() -> None:
    with pytest.raises(KeyError, match="divide"):
        pair_bound("divide")
