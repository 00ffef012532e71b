"""Functions of complex expansions: C99's branch cuts, zeros and infinities; one kernel each."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.elementary.operator import with_kernels
from mcf.kernels import registry
from tests.helpers.complexes import numbers
from tests.helpers.everyday import everyday

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
NAMES = "asin acos atan asinh acosh atanh sqrt".split()
PARTS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 1e-160, 1e300, -1e300, 1.7e308, math.inf, -math.inf)


@pytest.mark.sampled(every=2)
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", NAMES)
def test_cuts_zeros_and_infinities_are_those_of_c99(name: str) -> None:
    """Python's cmath has Annex G's; its values err by some units of float64, no sign does."""
    points = [*itertools.product(PARTS, PARTS)]
    z = mcf.complex(*(mcf.tensor([p[k] for p in points], 2, F64) for k in (0, 1)))
    result = getattr(torch, name)(z)
    for (x, y), *found in zip(points, result.real.tolist(), result.imag.tolist(), strict=True):
        pole = (name, abs(x), abs(y)) in (("atan", 0, 1), ("atanh", 1, 0))
        if pole:
            # An infinity, where cmath raises.
            assert sorted(map(abs, found)) == [0, math.inf]
            assert [math.copysign(1, v) for v in found] == [math.copysign(1, v) for v in (x, y)]
            continue
        want = getattr(cmath, name)(complex(x, y))
        for mine, theirs in zip(found, (want.real, want.imag), strict=True):
            assert math.copysign(1, mine) == math.copysign(1, theirs), (x, y, found, want)
            assert mine == theirs or math.isclose(mine, theirs, rel_tol=2.0**-45), (x, y, found)


@pytest.mark.usefixtures("on_torch")
def test_a_small_part_beside_a_large_one_is_kept() -> None:
    z = mcf.complex(mcf.tensor([1e300], 2, F64), mcf.tensor([1e-160], 2, F64))
    assert math.isclose(torch.sqrt(z).imag.item(), 5e-311, rel_tol=1e-12)


# What a kernel has of its own is its formula; the executors are the same for all.
USUAL = [("sqrt", F64, 2)]


@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(
        [
            (n, d, k)
            for n in (name.removeprefix("complex_") for name in with_kernels(2))
            for d, k in ((F64, 2), (F32, 2), (BF16, 2), (F64, 1))
        ],
        USUAL,
    ),
)
def test_executors_agree(name: str, dtype: torch.dtype, terms: int) -> None:
    values = (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan)
    special = [complex(*v) for v in itertools.product(values, values)]
    z = torch.cat(
        [numbers(dtype, terms, 30, seed=k, exponent=e) for k, e in enumerate((0, 4, -30))]
        + [mcf.complex_tensor(torch.tensor(special, dtype=torch.complex128), terms, dtype)]
    )
    found = []
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            result = getattr(torch, name)(z)
            found.append([*result.real.components, *result.imag.components])
    for a, b in zip(*found, strict=True):
        assert bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


T = torch.tensor([[1 + 2j, 3.0], [0.5, 1j]], dtype=torch.complex128)
MIXED: dict[str, Callable[[Any], Any]] = {
    "mul": lambda x: torch.mul(x, 1j),
    "add": lambda x: torch.add(x, 2 + 1j),
    "sub": lambda x: torch.sub(T, x),
    "div": lambda x: torch.div(x, T),
    "alpha": lambda x: torch.add(x, T, alpha=2),
    "method": lambda x: x.mul(1j),
    "matmul": lambda x: torch.matmul(T, x),
    "where": lambda x: torch.where(T.real > 1, x, T),
    "cat": lambda x: torch.cat([x, T]),
    "dot": lambda x: torch.dot(x[0], T[1]),
    "pow": lambda x: torch.pow(x, 1j),
    "eq": lambda x: torch.eq(x, 1 + 0j),
    "solve": lambda x: torch.linalg.solve(x, T),
}


@pytest.mark.sampled(every=3)
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("name", MIXED)
def test_functions_of_real_expansions_and_complex_numbers(name: str) -> None:
    x = mcf.tensor([[1, 2], [3, 4]], 2, F64)
    found, want = MIXED[name](x), MIXED[name](x.to_plain().to(T.dtype))
    if want.dtype is torch.bool:
        assert torch.equal(found, want)
    else:
        assert torch.allclose(found.to_plain(), want, rtol=2.0**-45)


@pytest.mark.usefixtures("on_torch")
def test_what_writes_to_a_real_expansion_refuses_complex_numbers() -> None:
    x = mcf.tensor([1.0, 2.0])
    for write in (lambda: x.mul_(1j), lambda: torch.mul(x, 1j, out=x)):
        with pytest.raises(TypeError, match="expansion tensors are real, got the complex number"):
            write()
    assert x.tolist() == [1, 2]
    y = x.clone().requires_grad_()
    (abs(torch.mul(y, 1j)) ** 2).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [2, 4]
