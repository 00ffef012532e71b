"""The declaration of a kernel: scalars, sums, several rows, slots, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP32, registry
from mcf.kernels.algorithms import two_sum
from mcf.kernels.algorithms.primitives import rn
from mcf.kernels.bind import PRIMITIVE_NAMES, Binder
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.numba.cpu import ITEM, SERIAL
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell
from tests.helpers.executors import on_each_executor


def axpy(x, y, scale, offset):
    return (rn(rn(scale * shape(x)) + rn(y + offset)),)  # noqa: F821


def double(x):
    return x + x


def sums(x, new_y, out_y, scale):
    return x, new_y - out_y, scale * out_y


SPEC = Elementwise(
    name="axpy",
    function=axpy,
    results=("y",),
    fields=(Field("x", BF16), Field("y", BF16, written=True)),
    stores=(("y", "y"),),
    arithmetic=FP32,
    scalars=("scale", "offset"),
    slots=(("shape", double),),
    sums=sums,
    sum_count=3,
)


def run(rows: list[list[Tensor]], scalars: list[list[float]]) -> Tensor | None:
    return registry.run(SPEC, rows, torch.tensor(scalars, dtype=torch.float64))


def rows(*shapes: tuple[int, ...]) -> list[list[Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [[bell(s, g, torch.bfloat16) for _ in range(2)] for s in shapes]


def plain(x: Tensor, y: Tensor, scale: float, offset: float) -> Tensor:
    wide = (x.float() + x.float()) * torch.tensor(scale) + (y.float() + torch.tensor(offset))
    return wide


@on_each_executor
def test_rows_of_many_shapes_and_scalars_of_their_own(executor: str) -> None:
    given = rows((5,), (0,), (3, 700), (), (2000,), (31, 33))
    # One row dense, one strided in one tensor, one dense but not contiguous.
    given[2][0] = given[2][0].T.contiguous().T
    given[5] = [t.T for t in given[5]]
    scalars = [[0.1 * k, 1e-3 / (k + 1)] for k in range(len(given))]
    expected = [plain(x, y, *s) for (x, y), s in zip(given, scalars, strict=True)]
    with mcf.executor(executor):
        total = run(given, scalars)
    assert total is not None
    for (x, y), wanted, s, line in zip(given, expected, scalars, total, strict=True):
        assert_same_bits(y, wanted.bfloat16(), executor)
        # Some executors sum in float32: 2,000 terms of size 1 at 2**-24 each.
        terms = (x.double(), y.double() - wanted.double(), s[0] * wanted.double())
        for got, term in zip(line.tolist(), terms, strict=True):
            assert got == pytest.approx(term.sum().item(), abs=2.0**-24 * 2000)


def test_sums_do_not_depend_on_the_number_of_threads(set_threads: Callable[[int], None]) -> None:
    found = []
    for count in (1, 2, 3):
        set_threads(count)
        with mcf.executor("numba"):
            found.append(run(rows((3 * SERIAL + 11,), (ITEM + 1,)), [[0.3, 0.0]] * 2))
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])


@on_each_executor
def test_no_rows(executor: str) -> None:
    with mcf.executor(executor):
        total = registry.run(SPEC, [], torch.zeros(0, 2, dtype=torch.float64))
        assert total is not None
        assert total.shape == (0, 3)
        without = dataclasses.replace(SPEC, sums=None, sum_count=0, serial=-1)
        assert registry.run(without, [], torch.zeros(0, 2, dtype=torch.float64)) is None


def test_stores_must_match_what_is_written() -> None:
    with pytest.raises(ValueError, match=r"kernel axpy: stores \(\) do not match \['y'\]"):
        dataclasses.replace(SPEC, stores=())


@pytest.mark.parametrize("name", ["share", "end", "turn", "item", "parts"])
def test_names_of_the_loops_are_no_scalars(name: str) -> None:
    """A scalar called `share` made threads take an item twice."""
    with pytest.raises(ValueError, match=rf"generated code has other things named .*'{name}'"):
        dataclasses.replace(SPEC, scalars=(*SPEC.scalars, name))


def test_every_parameter_needs_a_source() -> None:
    with pytest.raises(ValueError, match=r"kernel axpy: nothing supplies \['offset'\]"):
        dataclasses.replace(SPEC, scalars=("scale",))
    # A constant 0 will do, and so does a field under another name.
    spec = dataclasses.replace(
        SPEC, scalars=("scale",), absent=("offset",), loads=(("x", "y"),), sums=None, sum_count=0
    )
    assert spec.expression("offset") == "ZERO"
    assert spec.expression("x") == "y"


def test_parameters() -> None:
    assert parameters(axpy) == ("x", "y", "scale", "offset")


def test_unbound_algorithms_say_so() -> None:
    with pytest.raises(TypeError, match="rc is a primitive: bind the algorithm to an executor"):
        two_sum(1.0, 2.0)


def test_a_binder_shares_what_it_bound_and_leaves_the_original_alone() -> None:
    names = {name: (lambda x: x) for name in PRIMITIVE_NAMES}
    bind = Binder(lambda f: f, names)
    bound = bind(two_sum)
    assert bound is bind(two_sum)
    assert bound is not two_sum
    assert bound.__code__ is two_sum.__code__
    assert bound(1.0, 2.0) == (3.0, 0.0)
    with pytest.raises(TypeError, match="is a primitive"):
        two_sum(1.0, 2.0)


def twice(x):
    return x + x


def fourfold(x):
    return twice(twice(x))


def test_a_binder_takes_its_own_version_of_an_algorithm_wherever_it_is_called() -> None:
    bind = Binder(lambda f: f, {}, own={twice: lambda x: 10 * x})
    assert (bind(twice)(1), bind(fourfold)(1)) == (10, 100)
    more = bind.with_own({fourfold: lambda x: -x})
    assert (more(twice)(1), more(fourfold)(1)) == (10, -1)
    # The first one is as it was.
    assert bind(fourfold)(1) == 100
