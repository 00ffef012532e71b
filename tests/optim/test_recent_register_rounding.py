"""The rules of recent years in the default arithmetic: the contract of `test_register_rounding`."""

from __future__ import annotations

import pytest

from tests.optim.helpers import AT_RANDOM, BF16, FP32, FP64, Case
from tests.optim.register_recent import RecentRegisters
from tests.optim.test_register_rounding import N, differing
from tests.optim.variants import RECENT, Variant, pairs

# Scalars of these are not computed as the model computes them, which float64 registers would see.
_SCALARS = ("ademamix", "ademamix-from-0", "stable-adamw")
PAIRS = [
    (v, case)
    for v, case in pairs(RECENT, "cases") + pairs(RECENT, "full")
    if not case.strict and case.precision not in AT_RANDOM
    if case.dtype != FP64 or v.name not in _SCALARS
]


def model_of(case: Case, *, fused: bool = False) -> RecentRegisters:
    full = case.dtype.itemsize > 2
    return RecentRegisters("plain" if full else case.precision, case.dtype, fused)


@pytest.mark.sampled(every=36)
@pytest.mark.parametrize(("variant", "case"), PAIRS, ids=str)
def test_optimizer_is_the_model(variant: Variant, case: Case) -> None:
    assert differing(variant, case, model_of(case)) == 0


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("variant", RECENT, ids=str)
def test_fused_model_is_rejected(variant: Variant) -> None:
    case = Case("master", BF16, FP32)
    assert differing(variant, case, model_of(case, fused=True)) > N
