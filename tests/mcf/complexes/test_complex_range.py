"""Functions of complex numbers at the bottom of the range, within their bounds: against mpmath.

The inputs are those that a search found, for which errors were up to 1e38 bounds: quotients of
subnormal numbers, or by squares beside a pole, had lost their last components.
"""

from __future__ import annotations

import mpmath
import pytest
import torch

import mcf
from tests.helpers.complexes import worst
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")
F64 = torch.float64
ETA = 2.0**-1074

POINTS = (
    # Two components, of which the second is below the normal range.
    (
        (float.fromhex("0x1.0001ff7ffffffp-1013"), 196 * ETA),
        (float.fromhex("0x1.0001ff7ffffffp-1013"), -256 * ETA),
    ),
    ((2.0**-1016, -32 * ETA), (float.fromhex("0x0.06400685f5a8ep-1022"), 0.0)),
    ((402128767 * ETA, 0.0), (-402128768 * ETA, 0.0)),
)
POLE = (-float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.000000100p-73"))
BESIDE = tuple(((size, 0.0), POLE) for size in (ETA, 2.0**-1000, 2.0**-401, 2.0**-399))

terms = pytest.mark.parametrize("terms", everyday([4, 2, 3], [4]))


def numbers(
    points: tuple[tuple[tuple[float, float], ...], ...], terms: int
) -> mcf.MCFComplexTensor:
    def part(k: int) -> mcf.MCFTensor:
        columns = zip(*([*p[k], *[0.0] * (terms - 2)] for p in points), strict=True)
        return mcf.MCFTensor([torch.tensor(c, dtype=F64) for c in columns])

    return mcf.complex(part(0), part(1))


@terms
def test_logarithms(terms: int) -> None:
    z = numbers(POINTS, terms)
    for name, base in (("log", mpmath.e), ("log10", 10)):
        limit = mcf.bound(f"complex_{name}", terms, F64)
        found = getattr(torch, name)(z)
        error = worst(found, lambda v, b=base: mpmath.log(v) / mpmath.log(b), z)
        assert error <= limit.relative, name


@terms
def test_each_part_of_a_tangent_beside_its_pole(terms: int) -> None:
    z = numbers(BESIDE, terms)
    limit = mcf.bound("complex_tanh", terms, F64)
    for found, turned in ((torch.tanh(z), 1), (torch.tan(z * 1j), 1j)):
        with mpmath.workprec(6000):
            for given, result in zip(z.to_mpmath(), found.to_mpmath(), strict=True):
                exact = mpmath.tanh(given) * turned
                for part in ("real", "imag"):
                    t = getattr(exact, part)
                    error = abs(getattr(result, part) - t)
                    assert error <= limit.relative * abs(t) + limit.absolute, part
