"""Number formats have the constants of IEEE 754 and of torch."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from mcf.kernels import BF16, FP16, FP32, FP64, Format, format_of, toy

REAL = [BF16, FP16, FP32, FP64]


@pytest.mark.parametrize("fmt", REAL, ids=lambda f: f.name)
def test_constants_are_those_of_torch(fmt: Format) -> None:
    info = torch.finfo(fmt.dtype)
    assert fmt.max == Fraction(info.max)
    assert fmt.min_normal == Fraction(info.tiny)
    assert fmt.u == Fraction(info.eps) / 2
    smallest = torch.nextafter(torch.zeros((), dtype=fmt.dtype), torch.ones((), dtype=fmt.dtype))
    assert fmt.min_subnormal == Fraction(smallest.item())
    assert format_of(fmt.dtype) is fmt


def test_registers() -> None:
    assert [f.register for f in REAL] == [FP32, FP32, FP32, FP64]
    assert toy(3).register is FP64


def test_toy_numbers() -> None:
    fmt = toy(3, -2, 1)
    assert (fmt.max, fmt.min_normal, fmt.min_subnormal) == (
        Fraction(7, 2),
        Fraction(1, 4),
        Fraction(1, 16),
    )


@pytest.mark.parametrize("arguments", [(1,), (25,), (3, 2, 1), (3, -201, 1), (3, 0, 201)])
def test_toy_out_of_range(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"toy format needs 2 <= p <= 24 .* got p="):
        toy(*arguments)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"weights has dtype .* expected one of torch.bfloat16"):
        format_of(dtype, "weights")
