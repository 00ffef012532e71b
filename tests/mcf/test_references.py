"""The fast oracle of elementary functions, MPFR, against ball arithmetic.

What it catches: a function or a constant that is not the one meant, too few bits on the way, a
component of an argument or a result left out, infinities and subnormal results told wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mcf.elementary
from mcf.elementary.function_bounds import FUNCTIONS
from mcf.kernels import BF16, FP16, FP32, FP64
from tests.helpers import mpfr
from tests.helpers.elementary import inputs, worst
from tests.helpers.references import errors, full_precision

pytestmark = pytest.mark.skipif(mpfr.missing() is not None, reason=str(mpfr.missing()))
CASES = [(BF16, 1), (FP16, 2), (FP32, 3), (FP64, 1), (FP64, 4)]


@pytest.mark.sampled(every=40)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("on_torch")
def test_errors_are_those_of_ball_arithmetic(name: str) -> None:
    for fmt, terms in CASES:
        for arguments in inputs(name, fmt, terms, 8, seed=17):
            result = getattr(mcf.elementary, name)(*arguments)
            # The library's result, and one whose last component is off by half.
            for r in (result, (*result[:-1], result[-1] * 1.5)):
                if not all(bool(t.isfinite().all()) for t in r):
                    continue
                relative, _ = worst(name, fmt, arguments, r, ordered=False)
                for precision in (None, full_precision(fmt, terms)):
                    found = errors(name, fmt, arguments, r, precision)
                    assert found.wrong == []
                    # 64 bits beyond the result's, of which what is put together loses 12.
                    near = pytest.approx(relative, rel=2**-48, abs=2**-48)
                    assert found.relative.max() == near


def test_infinities_are_told() -> None:
    x = torch.tensor([100.0, -104.0, 1.0, 1.0])
    result = torch.tensor([torch.inf, 0.0, torch.inf, 2.0])
    found = errors("exp", FP32, ((x,),), (result,))
    assert found.wrong == [2]
    assert np.isnan(found.relative[0])
    assert found.absolute[1] == pytest.approx(math.exp(-104.0) / 2.0**-149, rel=1e-12)
    assert found.relative[1] == 0
    assert found.relative[3] > 1e6


def test_without_the_library_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpfr, "_candidates", lambda: iter(["/nowhere/libmpfr.so"]))
    mpfr._library.cache_clear()
    try:
        assert "/nowhere/libmpfr.so" in str(mpfr.missing())
        with pytest.raises(RuntimeError, match="no usable libmpfr"):
            mpfr.function("exp")
    finally:
        monkeypatch.undo()
        mpfr._library.cache_clear()
    assert mpfr.missing() is None
