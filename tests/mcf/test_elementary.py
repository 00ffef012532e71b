"""Elementary functions: bounds and the fast oracle MPFR against ball arithmetic; pieces; refusals.

Every function, format and number of components. A few arguments of each; `test_elementary_many.py`
has more, by MPFR. The bounds are the table of `mcf.elementary.function_bounds`. What they catch, of
which `test_function_mutants.py` has some: a constant cut to its leading component, a reduction left
out, a series one term short. What is caught of the oracle: a function or a constant that is not the
one meant, too few bits on the way, infinities and subnormal results told wrong.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
import mcf.elementary
from mcf.elementary import operator
from mcf.elementary.function_bounds import FUNCTIONS, bound, markdown
from mcf.kernels import BF16, FP16, FP32, FP64
from tests.helpers import assert_all_same_bits, mpfr
from tests.helpers.elementary import REFERENCE, inputs, worst
from tests.helpers.references import errors, full_precision

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")
needs_mpfr = pytest.mark.skipif(mpfr.missing() is not None, reason=str(mpfr.missing()))
ALL = [(f, n) for f in (BF16, FP16, FP32, FP64) for n in (1, 2, 3, 4)]


def test_every_function_has_a_reference_and_a_row() -> None:
    assert set(REFERENCE) == set(FUNCTIONS)
    assert set(FUNCTIONS) <= set(vars(mcf.elementary))


@pytest.mark.sampled(every=28)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_within_the_bound_and_those_of_mpfr(name: str) -> None:
    for fmt, terms in ALL:
        for arguments in inputs(name, fmt, terms, 10, seed=terms):
            result = getattr(mcf.elementary, name)(*arguments)
            assert len(result) == terms
            relative, _ = worst(name, fmt, arguments, result)
            assert relative <= bound(name, fmt, terms), (fmt, terms)
            if mpfr.missing() is not None:
                continue
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


@needs_mpfr
def test_infinities_are_told() -> None:
    x = torch.tensor([100.0, -104.0, 1.0, 1.0])
    result = torch.tensor([torch.inf, 0.0, torch.inf, 2.0])
    found = errors("exp", FP32, ((x,),), (result,))
    assert found.wrong == [2]
    assert np.isnan(found.relative[0])
    assert found.absolute[1] == pytest.approx(math.exp(-104.0) / 2.0**-149, rel=1e-12)
    assert found.relative[1] == 0
    assert found.relative[3] > 1e6


@needs_mpfr
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


def test_bound_answers_for_elementary_functions() -> None:
    row = mcf.bound("sin", terms=2, dtype=torch.float32)
    assert row.relative == bound("sin", FP32, 2) * 2.0**-48
    assert row.proven
    # These are computed with four components, whose sum is proved.
    assert mcf.bound("sin", terms=3, dtype=torch.float64).proven
    assert mcf.bound("sin", terms=4, dtype=torch.float64).proven
    assert mcf.bound("mul", 2, torch.float64).relative > 0
    with pytest.raises(ValueError, match="1 to 4, got 5"):
        mcf.bound("sin", terms=5)


def test_the_documented_table_is_this_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    inside = text.split("<!-- elementary: begin -->\n")[1].split("\n<!-- elementary: end -->")[0]
    assert inside == markdown()


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["sin", "atan2"])
def test_bits_do_not_depend_on_neighbours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are skipped where no element of a piece needs them change nothing else."""
    for arguments in inputs(name, FP64, 2, 40, seed=5):
        together = getattr(mcf.elementary, name)(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(operator, "CHUNK", 3)
            apart = getattr(mcf.elementary, name)(*arguments)
        assert_all_same_bits(apart, together)


def test_shapes_broadcast_and_may_be_empty() -> None:
    y = (torch.rand(3, 1), torch.zeros(3, 1))
    x = (torch.rand(2), torch.zeros(2))
    hi, lo = mcf.elementary.atan2(y, x)
    assert hi.shape == lo.shape == (3, 2)
    (nothing,) = mcf.elementary.exp((torch.zeros(0, 4),))
    assert nothing.shape == (0, 4)
    strided = torch.rand(4, 6, dtype=torch.float64).t()[::2]
    (a,) = mcf.elementary.exp((strided,))
    (b,) = mcf.elementary.exp((strided.contiguous(),))
    assert torch.equal(a, b)


def test_bad_input_is_refused() -> None:
    x = torch.ones(2)
    with pytest.raises(TypeError, match="argument 0 must be a tuple"):
        mcf.elementary.exp(x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 to 4 components, got 5"):
        mcf.elementary.exp((x,) * 5)
    with pytest.raises(TypeError, match="dtype"):
        mcf.elementary.exp((x, x.double()))
    with pytest.raises(TypeError, match="int64"):
        mcf.elementary.exp((torch.ones(2, dtype=torch.int64),))
    with pytest.raises(ValueError, match="do not broadcast"):
        mcf.elementary.atan2((x,), (torch.ones(3),))
    with pytest.raises(RuntimeError, match="derivative"):
        mcf.elementary.exp((x.requires_grad_(),))


@pytest.mark.slow
def test_one_operator_under_compile() -> None:
    x = (torch.linspace(-3, 3, 7), torch.zeros(7))

    def f(*c: Tensor) -> tuple[Tensor, ...]:
        return mcf.elementary.sin(mcf.elementary.exp(c))

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")(*x)
    for a, b in zip(compiled, f(*x), strict=True):
        assert torch.equal(a, b)
