"""Complex arithmetic and functions within `mcf.bound("complex_...")`, against mpmath.

Proven bounds; each with a mutant that exceeds it by a factor. Each part of what is componentwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.complexes import complex_bounds
from tests.helpers.complexes import numbers, with_real, worst
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16

TWO: dict[str, Callable[[Any, Any], Any]] = {
    "complex_add": lambda x, y: x + y,
    "complex_mul": lambda x, y: x * y,
    "complex_div": lambda x, y: x / y,
}
NAMES = [name.removeprefix("complex_") for name in complex_bounds.FUNCTIONS]
# Errors of these are relative to the modulus alone.
OF_THE_MODULUS = ("log", "log1p", "log2", "log10", "expm1")
FORMATS = everyday([(F64, 2), (F64, 1), (F64, 3), (F64, 4)], [(F64, 2)])
FORMATS += [pytest.param(F32, 4, marks=pytest.mark.slow), (BF16, 2)]
COUNT = 12


def regions(dtype: torch.dtype, terms: int) -> Any:
    """Around 0, far out, near the units, near the imaginary axis and pi / 2."""
    wide = 0 if dtype is BF16 else 1
    found = [
        numbers(dtype, terms, COUNT, seed=1),
        numbers(dtype, terms, COUNT, seed=2, exponent=5),
        numbers(dtype, terms, COUNT, seed=3, exponent=-30 * wide - 4, real=1.0),
        numbers(dtype, terms, COUNT, seed=4, exponent=-12, real=-1.0) * 1j,
        numbers(dtype, terms, COUNT, seed=5, exponent=-6 - 9 * wide) + 1.5703125,
        numbers(dtype, terms, COUNT, seed=6, exponent=-6 - 9 * wide) + 1.5703125j,
        numbers(dtype, terms, COUNT, seed=7, exponent=-30),
    ]
    return torch.cat(found)


def exactly(name: str) -> Callable[..., Any]:
    """mpmath's function; of |z| Python's."""
    others: dict[str, Any] = {"abs": abs, "log2": lambda z: mpmath.log(z) / mpmath.log(2)}
    return others[name] if name in others else getattr(mpmath, name)  # type: ignore[no-any-return]


def error(name: str, function: Callable[..., Any], *arguments: Any) -> float:
    """How much of the bound of "complex_name" the worst error is."""
    z = arguments[0]
    limit = mcf.bound(f"complex_{name}", z.terms, z.dtype)
    exact: Callable[..., Any] = TWO.get(f"complex_{name}") or exactly(name)
    found = worst(with_real(function(*arguments)), exact, *arguments, absolute=limit.absolute)
    return found / limit.relative


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_arithmetic(name: str, dtype: torch.dtype, terms: int) -> None:
    x, y = (numbers(dtype, terms, 200, seed=k) for k in (1, 2))
    assert error(name, TWO[f"complex_{name}"], x, y) <= 1
    assert error(name, TWO[f"complex_{name}"], x, torch.conj(x)) <= 1


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(
        [
            (name, dtype, terms)
            for name in [*NAMES, "abs"]
            for dtype, terms in [
                (F64, 2),
                (F64, 1),
                (F64, 3),
                (F64, 4),
                (F32, 2),
                (F32, 4),
                (BF16, 2),
            ]
        ],
        lambda name, dtype, terms: (
            ((dtype, terms) == (F64, 2) and name not in ("log2", "log10"))
            or (name, dtype) == ("log", BF16)
        ),
    ),
)
def test_functions(name: str, dtype: torch.dtype, terms: int) -> None:
    function = getattr(torch, name)
    exact = exactly(name)
    limit = mcf.bound(f"complex_{name}", terms, dtype)
    z = regions(dtype, terms)
    found = worst(with_real(function(z)), exact, z, absolute=limit.absolute)
    assert found <= limit.relative


@pytest.mark.parametrize(
    "name", everyday([n for n in NAMES if n not in OF_THE_MODULUS], ["sqrt", "tanh", "sin"])
)
def test_each_part(name: str) -> None:
    """All but these are componentwise: also where one part is small beside the other."""
    z = numbers(F64, 2, COUNT, seed=8)
    limit = mcf.bound(f"complex_{name}", 2, F64).relative
    result = getattr(torch, name)(z)
    for part in ("real", "imag"):
        mine = with_real(getattr(result, part))
        assert worst(mine, lambda t, part=part: getattr(getattr(mpmath, name)(t), part), z) <= limit


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "name", everyday(["mul", "div", *NAMES], ["mul", "div", "exp", "log", "tan"])
)
def test_a_lost_component_is_found_out(name: str) -> None:
    """Mutant: the argument's imaginary part has lost its last component."""
    x, y = (numbers(F64, 2, COUNT, seed=k) for k in (1, 2))

    def lossy(z: Any) -> Any:
        return mcf.complex(z.real, z.imag.to(terms=1).to(terms=2))

    if name in ("mul", "div"):
        whole = TWO[f"complex_{name}"]
        assert error(name, lambda x, y: whole(x, lossy(y)), x, y) > 1000
    else:
        assert error(name, lambda x: getattr(torch, name)(lossy(x)), x) > 1000


def test_a_short_logarithm_is_found_out() -> None:
    """Mutant: log |z| of the modulus, which loses what is left of it near 1."""
    z = numbers(F64, 2, COUNT, seed=3, exponent=-30, real=1.0)
    assert error("log", lambda z: mcf.complex(torch.log(abs(z)), z.angle()), z) > 1000


def test_a_short_tangent_is_found_out() -> None:
    """Mutant: sin 2x + i sinh 2y over cos 2x + cosh 2y, which cancels near the poles."""
    z = numbers(F64, 2, COUNT, seed=5, exponent=-15) + 1.5703125

    def tan(z: Any) -> Any:
        x, y = 2 * z.real, 2 * z.imag
        size = torch.cos(x) + torch.cosh(y)
        return mcf.complex(torch.sin(x) / size, torch.sinh(y) / size)

    assert error("tan", tan, z) > 1000


def test_a_short_root_is_found_out() -> None:
    """Mutant: both parts by (|z| + x) / 2 and (|z| - x) / 2, one of which cancels."""
    z = numbers(F64, 2, COUNT, seed=3, exponent=-30, real=1.0)

    def sqrt(z: Any) -> Any:
        size = abs(z)
        imag = torch.copysign(torch.sqrt((size - z.real) / 2), z.imag)
        return mcf.complex(torch.sqrt((size + z.real) / 2), imag)

    assert error("sqrt", sqrt, z) > 1000


@pytest.mark.parametrize("exponent", [900, -900])
def test_scaling(exponent: int) -> None:
    """Quotients and roots of numbers whose squares overflow or vanish; mutant: not scaled."""
    x, y = (numbers(F64, 2, COUNT, seed=k, exponent=exponent) for k in (1, 2))
    assert error("div", TWO["complex_div"], x, y) <= 1
    assert error("sqrt", torch.sqrt, x) <= 1

    def unscaled(x: Any, y: Any) -> Any:
        return (x * torch.conj(y)) / (y.real * y.real + y.imag * y.imag)

    assert not error("div", unscaled, x, y) <= 1


def test_bounds_are_those_of_the_page() -> None:
    """`docs/numerics.md` in units of u^n; 2.31 u for a product of single numbers."""
    page = (Path(__file__).parents[3] / "docs" / "numerics.md").read_text()
    rows = re.findall(r"^\| (`complex_[^|]+) \| (.+) \|$", page, re.MULTILINE)
    said = {name: cells for names, cells in rows for name in re.findall(r"`(\w+)`", names)}
    assert said.keys() == {*complex_bounds.OPERATIONS, *complex_bounds.FUNCTIONS}
    for name, cells in said.items():
        found = (mcf.bound(name, k, F64).relative * 2.0 ** (53 * k) for k in (1, 2, 3, 4))
        assert cells == " | ".join(f"{b:.4g}" for b in found)
    assert mcf.bound("complex_mul", 1, F64).relative == pytest.approx(2.3094 * 2.0**-53, rel=1e-4)
    with pytest.raises(ValueError, match="no bound for operation 'complex_gamma'"):
        mcf.bound("complex_gamma")
