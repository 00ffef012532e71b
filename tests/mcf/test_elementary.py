"""Elementary functions against ball arithmetic: every function, format and number of components.

A few arguments of each; `test_elementary_many.py` has more, by another oracle. The bounds are the
table of `mcf.elementary.function_bounds`. What they catch, of which `test_elementary_mutants.py`
has some: a constant cut to its leading component, a reduction left out, a series one term short.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mcf
import mcf.elementary
from mcf.elementary.function_bounds import FUNCTIONS, bound, markdown
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers.elementary import REFERENCE, inputs, worst

# Values: on the torch executor, which runs the programs and compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

FORMATS = {f.name: f for f in (BF16, FP16, FP32, FP64)}
ALL = [(f, n) for f in FORMATS for n in (1, 2, 3, 4)]


def _check(name: str, fmt: Format, terms: int, count: int, seed: int) -> tuple[float, float]:
    relative, absolute = 0.0, 0.0
    for arguments in inputs(name, fmt, terms, count, seed):
        result = getattr(mcf.elementary, name)(*arguments)
        assert len(result) == terms
        r, a = worst(name, fmt, arguments, result)
        relative, absolute = max(relative, r), max(absolute, a)
    return relative, absolute


def test_every_function_has_a_reference_and_a_row() -> None:
    assert set(REFERENCE) == set(FUNCTIONS)
    assert set(FUNCTIONS) <= set(vars(mcf.elementary))


@pytest.mark.sampled(every=28)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_within_the_bound(name: str) -> None:
    for fmt, terms in ALL:
        relative, _ = _check(name, FORMATS[fmt], terms, 10, seed=terms)
        assert relative <= bound(name, FORMATS[fmt], terms), (fmt, terms)


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
