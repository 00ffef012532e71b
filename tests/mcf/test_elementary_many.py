"""Elementary functions on many arguments against MPFR: every function, format and length.

With one component of bf16 every argument there is, of fp16 under marker `slow`. The bounds are the
table of `mcf.elementary.function_bounds`; what they catch is in `test_function_mutants.py`.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import mcf.elementary
from mcf.elementary.function_bounds import FUNCTIONS, bound
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers import mpfr
from tests.helpers.elementary import HALF, Components, inputs
from tests.helpers.everyday import everyday
from tests.helpers.function_survey import Case, judge
from tests.helpers.references import errors

pytestmark = pytest.mark.skipif(mpfr.missing() is not None, reason=str(mpfr.missing()))

# Arguments of each of two to four batches. 1e5 in all are marked slow: in 448 cases they are 45
# million evaluations of some ten microseconds, by the function and by MPFR.
INPUTS = int(os.environ.get("MCF_FUNCTION_INPUTS", "1000"))
CASES = [(fmt, n) for fmt in (BF16, FP16, FP32, FP64) for n in (1, 2, 3, 4)]


def check(name: str, fmt: Format, terms: int, arguments: tuple[Components, ...]) -> None:
    found = judge(Case(name, terms, fmt), arguments)
    assert found.broken == [], (fmt.name, terms, found.error)
    assert found.disordered == [], (fmt.name, terms)


def check_batches(name: str, count: int, seed: int) -> None:
    for fmt, terms in CASES:
        for arguments in inputs(name, fmt, terms, count, seed + terms):
            check(name, fmt, terms, arguments)


# The other functions are marked slow, for time.
EVERYDAY = ("exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin")
EVERYDAY += ("pow", "hypot")


# Of values: the programs, which compile nothing; the slow tests run the kernels.
@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
@pytest.mark.sampled(every=28)
@pytest.mark.parametrize("name", everyday(FUNCTIONS, EVERYDAY))
def test_error_of_many(name: str) -> None:
    check_batches(name, INPUTS, 200)


# Half a minute each. What is new in a function shows in its thousands (above) or its worst inputs.
@pytest.mark.slow
@pytest.mark.sampled(slow=4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_of_a_hundred_thousand(name: str) -> None:
    check_batches(name, 50_000, 300)


def every(name: str, fmt: Format) -> torch.Tensor:
    """Every finite number of a 16-bit format at which the function is finite and not a pole."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(fmt.dtype)
    x = x[x.isfinite()]
    inside = {
        "log": x > 0, "log2": x > 0, "log10": x > 0, "log1p": x > -1, "acosh": x >= 1,
        "asin": x.abs() <= 1, "acos": x.abs() <= 1, "atanh": x.abs() < 1,
    }  # fmt: skip
    return x[inside[name]] if name in inside else x


@pytest.mark.usefixtures("on_torch")
@pytest.mark.sampled(every=16)
@pytest.mark.parametrize(
    "fmt", [BF16, pytest.param(FP16, marks=pytest.mark.slow)], ids=lambda f: f.name
)
@pytest.mark.parametrize("name", [f for f in FUNCTIONS if f not in ("atan2", "pow", "hypot")])
def test_error_of_every_argument(name: str, fmt: Format) -> None:
    x = every(name, fmt)
    assert len(x) > 15_000
    check(name, fmt, 1, ((x,),))


def test_a_unit_in_the_last_place_is_too_much() -> None:
    """The check is of every element: one result that is off fails it."""
    x = every("exp", BF16)
    result = mcf.elementary.exp((x,))
    moved = result[0].clone()
    middle = int((x == 1).nonzero())
    moved[middle] = torch.nextafter(moved[middle], torch.tensor(torch.inf).bfloat16())
    found = errors("exp", BF16, ((x,),), (moved,))
    assert np.nanargmax(found.relative) == middle
    assert found.relative[middle] > 1.0 > bound("exp", BF16, 1) - HALF
