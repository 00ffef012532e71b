"""One arithmetic: tuples of components give what expansion tensors give, special values too.

Caught mutant: the bare networks, in which an infinity meets its own error and becomes NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

SPECIAL = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan]
FUNCTIONS: dict[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "rsqrt": 1, "reciprocal": 1,
    "square": 1,
}  # fmt: skip


def arguments(count: int, terms: int, dtype: torch.dtype) -> list[mcf.MCFTensor]:
    rows = list(itertools.product([*SPECIAL, "0.1", "3.3"], repeat=count))
    return [mcf.tensor(list(column), terms, dtype) for column in zip(*rows, strict=True)]


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tuples_are_what_tensors_are(name: str, terms: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        given = arguments(FUNCTIONS[name], terms, dtype)
        got = getattr(mcf, name)(*(x.components for x in given))
        assert isinstance(got, tuple)
        want = getattr(mcf, name)(*given).components
        # Which NaN is not part of the promise.
        clean = [[torch.where(c.isnan(), torch.nan, c) for c in x] for x in (got, want)]
        assert_all_same_bits(*clean)
        plain = [x.components[0].double() for x in given]
        if terms == 1 and name in ("add", "sub", "mul", "div"):
            assert torch.equal(got[0].isnan(), getattr(torch, name)(*plain).isnan())
        assert all((c[~got[0].isfinite()] == 0).all() for c in got[1:])


def test_infinities() -> None:
    inf, one, zero = (torch.tensor(x) for x in (math.inf, 1.0, 0.0))
    for result in (
        mcf.add((inf, zero), (one, zero)),
        mcf.mul((inf, zero), (one, zero)),
        mcf.grow((inf, zero), one),
        mcf.scale((inf, zero), one),
        mcf.div((one, zero), (zero, zero)),
        mcf.sqrt((inf, zero)),
    ):
        assert [c.item() for c in result] == [math.inf, 0.0]
    assert math.isnan(mcf.add((inf, zero), (-inf, zero))[0].item())


def test_a_plain_tensor_beside_a_tuple_is_one_component() -> None:
    x = mcf.tensor(["0.1", "3.3"], 3).components
    y = torch.tensor([2.0, 7.0])
    assert_all_same_bits(mcf.mul(x, y), mcf.mul(x, (y,)))
    assert len(mcf.sub(y, x)) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda x, c: mcf.add(x, c),
        lambda x, c: mcf.fma(c, x, c),
        lambda x, c: mcf.div(c, x),
    ],
)
def test_tuples_beside_expansion_tensors_are_refused(call: Callable[..., Any]) -> None:
    x = mcf.tensor([1.0])
    with pytest.raises(
        TypeError, match=r"cannot combine a tuple of components with an mcf.MCFTensor"
    ):
        call(x, x.components)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_neither_is_refused(name: str) -> None:
    given = (torch.ones(2),) * FUNCTIONS[name]
    with pytest.raises(TypeError, match=f"{name} needs an mcf.MCFTensor or a tuple of 1 to 4"):
        getattr(mcf, name)(*given)
