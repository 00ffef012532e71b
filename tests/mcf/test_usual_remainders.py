"""Exact: remainders and quotients of usual numbers as one kernel are those of integers.

Caught mutants: an element taken whose quotient is long, which is at an end of the range or not
finite; a zero's sign lost; `fmod` for `remainder`; a number beside a row that stands for its first
element alone; a kernel that is asked for before it is worth it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.convert.few import rows
from mcf.elementary import fused
from mcf.elementary.format import computing_in
from mcf.elementary.remainders import modulo, quotient
from mcf.elementary.usual_remainders import NAMES
from mcf.elementary.working import left_out
from mcf.kernels import often, registry
from mcf.kernels.formats import FP32, FP64, Format
from mcf.tensor import plans
from tests.helpers import assert_alike
from tests.helpers.modes import Seen
from tests.mcf.tensor.inputs import hard

Pair = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


def pairs(fmt: Format, terms: int) -> Pair:
    """Numbers of all sizes, whole multiples and what is beside them, and what is no number."""
    dtype = fmt.dtype
    assert dtype is not None
    x, y = hard(dtype, terms, 400, 1), hard(dtype, terms, 400, 2)
    # Of like sizes: quotients of a few bits to those of all.
    span = torch.arange(400) % (fmt.p + 6)
    near = tuple(torch.ldexp(c, (span - 3).to(dtype)) for c in y)
    near = tuple(c + 0 * k for k, c in enumerate(near))
    whole = [(k, d) for k in (0, 1, -1, 2, 3, -7, 2**20 + 1) for d in (1.0, -0.75, 3.0)]
    of = [[k * d for k, d in whole] for _ in range(2)]
    tiny = [0.0] * len(whole)
    above = [abs(a) * 2.0 ** (-fmt.p - 3) for a in of[0]]
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, fmt.largest, float(fmt.min_normal), 1.0, -1.0]
    a = [*of[0], *of[1], *of[1], *[e for e in ends for _ in ends]]
    low = [*tiny, *above, *[-t for t in above], *tiny[:1] * len(ends) ** 2]
    b = [*[d for _, d in whole] * 3, *[e for _ in ends for e in ends]]
    zeros = [torch.zeros(len(a), dtype=dtype) for _ in range(terms - 1)]
    first = [torch.tensor(a, dtype=dtype), *zeros]
    if terms > 1:
        first[1] = torch.tensor(low, dtype=dtype)
    second = [torch.tensor(b, dtype=dtype), *zeros]
    return (
        tuple(torch.cat([p, q, r]) for p, q, r in zip(x, near, first, strict=True)),
        tuple(torch.cat([p, p, r]) for p, r in zip(y, second, strict=True)),
    )


def by_integers(name: str, given: Pair, fmt: Format, terms: int) -> Tensor:
    towards_zero, whole = NAMES[name]
    function = quotient if whole else modulo
    x, y = map(rows, given)
    found = [function(a, b, towards_zero, fmt, terms) for a, b in zip(x, y, strict=True)]
    return torch.tensor(found, dtype=torch.float64).T


def same(a: Tensor, b: Tensor) -> Tensor:
    return (a.double().view(torch.int64) == b.view(torch.int64)) | (a.isnan() & b.isnan())


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fmt", [FP64, FP32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("name", NAMES)
def test_elements_that_are_not_left_out_are_those_of_integers(
    name: str, fmt: Format, terms: int
) -> None:
    given = pairs(fmt, terms)
    conditions: list[Tensor] = []
    token = left_out.set(conditions)
    try:
        with computing_in(FP64), registry.executor("torch"):
            found = fused.PROGRAMS[name].compute(given, fmt, terms)
    finally:
        left_out.reset(token)
    kept = ~torch.stack(conditions).any(0)
    for got, wanted in zip(found, by_integers(name, given, fmt, terms), strict=True):
        assert got.dtype is fmt.dtype
        assert same(got, wanted)[kept].all()
    x, y = (c[0].double().abs() for c in given)
    usual = (y > 2.0**-20) & (y < 2.0**20) & (x > 2.0**-20) & (x < 2.0**20 * y)
    for c in (*given[0][1:], *given[1][1:]):
        usual &= (c == 0) | (c.abs() > 2.0**-300)
    assert usual.sum() > 60
    # A remainder of numbers of four components of float64 may have more than the kernel computes.
    assert kept[usual].all() if terms < 4 or fmt is FP32 else kept[usual].sum() > 60


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["torch", pytest.param("numba", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fmt", [FP64, FP32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("name", NAMES)
def test_executors_have_the_formula(name: str, fmt: Format, executor: str) -> None:
    x, y = (tuple(c[:200] for c in v) for v in pairs(fmt, 2))
    good = (x[0].abs() < 2.0**60) & (y[0].abs() > 2.0**-60) & (x[0] / y[0]).abs().lt(2.0**18)
    good &= (y[0].abs() < 2.0**60) & (x[0].abs() > 2.0**-60)
    x, y = (tuple(c[good] for c in v) for v in (x, y))
    assert len(x[0]) > 20
    spec = fused.kernel(name, fmt, 2, 2)
    out = [torch.empty_like(c) for c in x]
    with registry.executor(executor):
        left = registry.run(spec, [[*out, *x, *y]], fused.NO_SCALARS)
        assert left is not None
        assert left.item() == 0
        for got, wanted in zip(out, by_integers(name, (x, y), fmt, 2), strict=True):
            assert same(got, wanted).all()
        ends = torch.tensor([math.inf, math.nan, 1.0, 1e30, 1.0, 1.0], dtype=fmt.dtype)
        by = torch.tensor([1.0, 1.0, math.nan, 1e-30, 0.0, math.inf], dtype=fmt.dtype)
        zero = torch.zeros_like(ends)
        out = [torch.empty_like(ends) for _ in range(2)]
        left = registry.run(spec, [[*out, ends, zero, by, zero]], fused.NO_SCALARS)
    assert left is not None
    assert left.item() == 6


class Own(mcf.MCFTensor):
    """A type of a user's."""


def test_operators_and_functions_take_the_kernel_where_it_is_worth_it(monkeypatch: Any) -> None:
    given = pairs(FP64, 2)
    x, y = (mcf.MCFTensor([c[400:430].clone() for c in v]) for v in given)
    calls = {
        "rows": lambda: x % y,
        "number": lambda: x % 0.7,
        "int": lambda: torch.remainder(x, -3),
        "one": lambda: x[:1] % y[:1],
        "no dimensions": lambda: x[0] % y[1],
        "views": lambda: x[::2] % y[1::2],
        "broadcast": lambda: x[:, None] % y[:5],
        "first": lambda: x[0] % y,
        "inf": lambda: x % math.inf,
        "rare": lambda: (x * 2.0**200) % y,
        "zero": lambda: x % 0,
        "own": lambda: Own(x.components) % y,
        "plain": lambda: x % y.components[0],
        "terms": lambda: x % y.to(terms=1),
        "other terms": lambda: x.to(terms=1) % y,
        "formats": lambda: x % y.float(),
        "empty": lambda: x[:0] % y[:0],
        "meta": lambda: (x.to("meta") % y.to("meta")).shape,
    }
    expected = {name: call() for name, call in calls.items()}
    prepared: list[Any] = []
    before = plans.Plan.of_formula

    def counted(formula: Any, groups: Any) -> Any:
        prepared.append(formula.name)
        return before(formula, groups)

    monkeypatch.setattr(plans.Plan, "of_formula", counted)
    monkeypatch.setattr(often, "_asked", Counter())
    for _ in range(often.OFTEN // 2 - 1):
        # Each is asked for as an operator and as a function of torch.
        x[:2] % y[:2]
    assert "usual_remainder" not in prepared
    monkeypatch.setattr(often, "OFTEN", 0)
    for name, call in calls.items():
        got, wanted = call(), expected[name]
        assert type(got) is type(wanted)
        if isinstance(got, torch.Tensor):
            assert_alike(got, wanted, name)
    assert "usual_remainder" in prepared
    recorded = x.detach().clone().requires_grad_()
    assert (recorded % y).requires_grad
    assert (x % y.detach().clone().requires_grad_()).requires_grad
    with Seen() as seen:
        x % y
    assert torch.ops.mcf.elementary.default in seen.seen
    mapped = torch.func.vmap(lambda a, b: a % b)(x, y)
    assert_alike(mapped, expected["rows"], "mapped")
    with torch.inference_mode():
        assert_alike((x % y).clone(), expected["rows"].clone(), "inference")
    with pytest.raises(TypeError):
        x % "1"
    with pytest.raises((RuntimeError, ValueError)):
        x % y[:7]
