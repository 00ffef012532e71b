"""float32 and float64 parameters: bits and states of every precision are those of "plain".

Contract: float64 parameters have the bits and states of `precision="plain"` under every
precision. float32 parameters have them where the precision rounds no moment stochastically;
`test_float32_parameters.py` has the other precisions. What the bits of "plain" are:
`test_register_rounding.py` (the documented formulas), `test_exact_rules.py` and
`test_torch_inputs.py` (torch's steps, to 1e-12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim.precision import strategy_of
from mcf.optim.storage.strategies import PLAIN
from tests.optim.helpers import FP32, FP64, assert_same, parameter, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")


FULL = [FP32, FP64]


def plain_cases(precisions: Sequence[str]) -> list[tuple[torch.dtype, str]]:
    """Return the dtypes and precisions under which parameters are stored as under "plain"."""
    fewer = {p for p in precisions if strategy_of(p).of_float32() != PLAIN}
    assert {"bf16_sr", "8bit"} <= fewer
    return [(d, p) for d in FULL for p in precisions if d == FP64 or p not in fewer]


ADAMW = [
    (mcf.optim.AdamW, *case, compute_dtype)
    for case in plain_cases(list(mcf.optim.PRECISIONS))
    for compute_dtype in (FP32, torch.bfloat16, torch.float16)
]
SGD = [(mcf.optim.SGD, *case, FP32) for case in plain_cases(mcf.optim.SGD.precisions)]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("make", "dtype", "precision", "compute_dtype"), [*ADAMW, *SGD])
def test_every_precision_is_plain(
    make: Any, dtype: torch.dtype, precision: str, compute_dtype: torch.dtype
) -> None:
    rule = {"momentum": 0.9} if make is mcf.optim.SGD else {}
    results = []
    for options in (
        {"precision": "plain"},
        {"precision": precision, "compute_dtype": compute_dtype},
    ):
        optimizer = make([parameter((5, 7), dtype)], 1e-2, **rule, **options)
        steps(optimizer, 5)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])
    moments = ("momentum_buffer",) if rule else ("exp_avg", "exp_avg_sq")
    assert results[0].keys() == {f"0.{n}" for n in ("param", "grad", "step", *moments)}
    assert {results[0][f"0.{n}"].dtype for n in moments} == {dtype}
