"""One kernel for an operation on complex expansions: the bits of the operations of its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.complexes import arithmetic
from mcf.kernels import registry
from mcf.kernels.algorithms import complex_numbers
from tests.helpers.complexes import numbers
from tests.helpers.everyday import everyday

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
VALUES = (0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan"))
FORMATS = [(F64, 2), (F32, 3), (BF16, 2), (F16, 1), (F64, 4)]


def operands(dtype: torch.dtype, terms: int) -> tuple[Any, Any]:
    """Numbers of all components, and every pair of two special ones."""
    both = [complex(a, b) for a, b in itertools.product(VALUES, VALUES)]
    t = torch.tensor(both, dtype=torch.complex128)
    x, y = (
        torch.cat((numbers(dtype, terms, 20, seed=seed), mcf.complex_tensor(special, terms, dtype)))
        for seed, special in ((1, t.repeat_interleave(len(t))), (2, t.repeat(len(t))))
    )
    return x, y


def parts_agree(z: Any, parts: tuple[Any, Any]) -> None:
    """Bit for bit, but for which NaN it is."""
    for mine, theirs in zip((z.real, z.imag), parts, strict=True):
        for a, b in zip(mine.components, theirs.components, strict=True):
            assert bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, complex_numbers.plus),
    "sub": (lambda x, y: x - y, complex_numbers.minus),
    "mul": (lambda x, y: x * y, complex_numbers.times),
}


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_a_kernel_has_the_bits_of_the_operations_of_the_parts(
    dtype: torch.dtype, terms: int
) -> None:
    x, y = operands(dtype, terms)
    short, third = y.to(dtype, terms=1), 1 / 3 + 1j
    for operator, formula in OPERATIONS.values():
        parts_agree(operator(x, y), formula(x.real, x.imag, y.real, y.imag))
        # A single float has algorithms of its own.
        parts_agree(operator(x, short), formula(x.real, x.imag, short.real, short.imag))
        parts_agree(operator(x, third), formula(x.real, x.imag, third.real, third.imag))
    parts_agree(x * y.real, complex_numbers.times_real(x.real, x.imag, y.real))
    parts_agree(x / y.real, complex_numbers.over_real(x.real, x.imag, y.real))
    parts_agree(short * x, complex_numbers.times(x.real, x.imag, short.real, short.imag))


# The others' kernels are as long; each takes a second to compile.
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(
        [(n, *f) for n in ("mul", "div") for f in FORMATS], [("mul", F64, 2), ("div", BF16, 2)]
    ),
)
def test_executors_agree(name: str, dtype: torch.dtype, terms: int) -> None:
    x, y = operands(dtype, terms)
    found = []
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            found.append(x * y if name == "mul" else x / y)
    parts_agree(found[0], (found[1].real, found[1].imag))


def test_one_element_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan per kind of operands, numbers and views among them, and no operation of the parts."""
    x, y = numbers(F64, 2, 1), numbers(F64, 2, 1, seed=1)
    calls: list[str] = []
    run = arithmetic.planned

    def counted(operation: Any, *values: Any) -> Any:
        calls.append(operation.name)
        found = run(operation, *values)
        assert found is not None
        return found

    monkeypatch.setattr(arithmetic, "planned", counted)
    _ = x * y, x + y, x * 2.0
    assert calls == ["complex_mul", "complex_add", "complex_scale"]
    with torch.enable_grad():
        assert (x.requires_grad_() * y).requires_grad
    assert len(calls) == 3
