"""The fast oracle of arithmetic against mpmath: exact residuals, what underflow may cost, order.

Results are those of the library, and the same with wrong bits, so that errors are of every size.
What it catches: a digit's carry lost, a component of the residual left out, a wrong scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64
from tests.helpers.residuals import SLACK, residuals
from tests.helpers.survey import ALL, Case, ranges
from tests.helpers.worst import apply, arguments

COUNT = 24
# Every number of float64 as a sum of four, and products of three of these, are exact.
BITS = 8000


def numbers(x: Sequence[Tensor]) -> list[mpf]:
    columns = [t.double().tolist() for t in x]
    return [mpmath.fsum(row) for row in zip(*columns, strict=True)]


def expected(case: Case, given: list[list[mpf]], r: mpf, k: int) -> tuple[mpf, mpf]:
    """Error and what an eta may cost, relative to the reference, by the table's definitions."""
    x, *others = (v[k] for v in given)
    y = others[0] if others else x
    name = case.operation
    scale = mpf(1)
    if name in ("add", "renormalize"):
        t = x + y if name == "add" else x
    elif name in ("mul", "square"):
        t = x * y
    elif name == "fma":
        t = x * y + others[1]
    elif name in ("div", "reciprocal"):
        t = x / y if name == "div" else 1 / y
        scale += 1 / abs(y)
    else:
        t = mpmath.sqrt(x)
        scale += 1 / t
        if name == "rsqrt":
            t = 1 / t
            scale = t * (1 + x + 1 / x)
    reference = abs(x * y) + abs(t) if name == "fma" else abs(t)
    if reference == 0:
        # Where a sum cancels.
        return mpf(math.inf) if r else mpf(0), mpf(0)
    return abs(r - t) / reference, scale / reference


def perturbed(result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every second element with its last component doubled, every third without it."""
    last = result[-1].clone()
    last[::2] *= 2
    last[::3] = 0
    return (*result[:-1], last)


@pytest.mark.sampled(every=54)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_errors_are_those_of_mpmath(case: Case) -> None:
    fmt, unit = case.fmt, mpf(2) ** (case.terms * case.fmt.p)
    eta = mpf(2) ** (fmt.emin - fmt.p + 1)
    for low, high in ranges(fmt):
        given = arguments(case.operation, fmt, case.terms, COUNT, 11, low, high)
        if case.float_second:
            given[1] = given[1][:1]
        with mcf.executor("torch"):
            result = apply(case.operation, given, case.terms)
        for r in (result, perturbed(result)):
            found = residuals(case.operation, fmt, given, r)
            with mpmath.workprec(BITS):
                values, results = [numbers(g) for g in given], numbers(r)
                live = 0
                for k in range(COUNT):
                    if math.isnan(found.error[k]) or any(v[k] == 0 for v in values):
                        continue
                    error, part = expected(case, values, results[k], k)
                    # Below 1e-290 float64 has not all its bits.
                    assert abs(found.error[k] - error * unit) <= SLACK * error * unit + 1e-300 or (
                        found.error[k] == error == math.inf
                    )
                    if part * eta * unit < 1e300:
                        assert found.absolute[k] == pytest.approx(
                            float(part * eta * unit), rel=1e-12
                        )
                    live += 1
            assert live > COUNT // 3


def one(*values: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([v], dtype=dtype) for v in values)


def test_zeros() -> None:
    zero, x = one(0.0, 0.0), one(3.0, 2.0**-60)
    for name, given in (("mul", [zero, x]), ("div", [zero, x]), ("sqrt", [zero])):
        assert residuals(name, FP64, given, zero).error[0] == 0
        assert residuals(name, FP64, given, one(2.0**-1074, 0.0)).error[0] == math.inf
    minus = one(-3.0, -(2.0**-60))
    assert residuals("add", FP64, [x, minus], zero).error[0] == 0
    assert residuals("add", FP64, [x, minus], x).error[0] == math.inf


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
def test_what_has_no_bound_is_nan(fmt: mcf.kernels.Format) -> None:
    x, y = one(1.0, dtype=fmt.dtype), one(2.0, dtype=fmt.dtype)
    huge = one(float(fmt.max), dtype=fmt.dtype)
    for bad in (huge, one(math.inf, dtype=fmt.dtype), one(math.nan, dtype=fmt.dtype)):
        assert math.isnan(residuals("add", fmt, [x, bad], y).error[0])
        assert math.isnan(residuals("add", fmt, [x, y], bad).error[0])
    zero = one(0.0, dtype=fmt.dtype)
    assert math.isnan(residuals("div", fmt, [x, zero], y).error[0])
    assert math.isnan(residuals("rsqrt", fmt, [zero], y).error[0])
    assert residuals("add", fmt, [x, x], y).error[0] == 0


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
def test_order(fmt: mcf.kernels.Format) -> None:
    half = float(fmt.u)
    cases = [(1.0, half), (1.0, half * (1 + 2 * half)), (1.0, -half), (0.0, half), (half, 0.0)]
    cases += [(float(fmt.min_subnormal), float(fmt.min_subnormal)), (1.0, half / 2)]
    x = tuple(torch.tensor(c, dtype=fmt.dtype) for c in zip(*cases, strict=True))
    found = residuals("renormalize", fmt, [x], x)
    assert found.disordered.tolist() == [False, True, False, True, False, True, False]
    assert (found.error == 0).all()
