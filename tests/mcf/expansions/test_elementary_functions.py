"""Elementary functions of expansion tensors: torch's names, and derivatives with all components.

References are mpmath and ball arithmetic. Mutants caught: a derivative left to torch (log2, log10,
erf and gelu then have a factor in double precision), `1 - tanh^2`, a base of `pow` through
`math.log`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from flint import arb, ctx

import mcf
import mcf.elementary
from mcf.kernels.formats import format_of
from tests.helpers.elementary import balls
from tests.helpers.everyday import everyday

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


# Name: the function, the same in mpmath's numbers, and arguments.
ANY = (0.3, -1.2, 2.5)
POSITIVE = (0.3, 1.2, 250.0)
INSIDE = (0.3, -0.9, 0.999)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[float, ...]]] = {
    "exp": (torch.exp, mpmath.exp, ANY),
    "exp2": (torch.exp2, lambda x: mpmath.mpf(2) ** x, ANY),
    "expm1": (torch.expm1, mpmath.expm1, ANY),
    "log": (torch.log, mpmath.log, POSITIVE),
    "log1p": (torch.log1p, mpmath.log1p, POSITIVE),
    "log2": (torch.log2, lambda x: mpmath.log(x, 2), POSITIVE),
    "log10": (torch.log10, mpmath.log10, POSITIVE),
    "sin": (torch.sin, mpmath.sin, ANY),
    "cos": (torch.cos, mpmath.cos, ANY),
    "tan": (torch.tan, mpmath.tan, ANY),
    "asin": (torch.asin, mpmath.asin, INSIDE),
    "acos": (torch.acos, mpmath.acos, INSIDE),
    "atan": (torch.atan, mpmath.atan, ANY),
    "sinh": (torch.sinh, mpmath.sinh, ANY),
    "cosh": (torch.cosh, mpmath.cosh, ANY),
    "tanh": (torch.tanh, mpmath.tanh, (*ANY, 12.0)),
    "asinh": (torch.asinh, mpmath.asinh, ANY),
    "acosh": (torch.acosh, mpmath.acosh, (1.001, 1.5, 3.0)),
    "atanh": (torch.atanh, mpmath.atanh, INSIDE),
    "sigmoid": (torch.sigmoid, _sigmoid, (*ANY, 30.0)),
    "erf": (torch.erf, mpmath.erf, ANY),
    "erfc": (torch.erfc, mpmath.erfc, (*ANY, 4.0)),
    "gelu": (F.gelu, lambda x: x * mpmath.ncdf(x), ANY),
    "normal_cdf": (torch.special.ndtr, mpmath.ncdf, ANY),
}
# What no component function is called as the torch function is.
COMPOSED = {"exp2"}


def _error(found: Any, exact: list[arb], terms: int) -> float:
    unit = arb(2) ** (format_of(found.dtype).p * terms)
    ours = balls(found.detach().components)
    errors = (abs(a - b) / abs(b) * unit for a, b in zip(ours, exact, strict=True))
    return max(float(e.mid()) for e in errors)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("dtype", "terms"), everyday([(torch.float64, 2), (torch.float32, 3)], [(torch.float64, 2)])
)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str, dtype: torch.dtype, terms: int) -> None:
    function, reference, arguments = CASES[name]
    # Arguments with all their components in use.
    x = mcf.tensor([f"{a}123456789123456789123456789" for a in arguments],
                   terms=terms, dtype=dtype, requires_grad=True)  # fmt: skip
    y = function(x)
    if name not in COMPOSED:
        expected = getattr(mcf.elementary, name)(x.detach().components)
        for a, b in zip(y.detach().components, expected, strict=True):
            assert torch.equal(a, b)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x)
    with mpmath.workprec(1200):
        unit = mpmath.mpf(2) ** (-format_of(dtype).p * terms)
        for k, point in enumerate(x.detach().to_mpmath()):
            _, first, half = mpmath.taylor(reference, point, 2)
            # Each is a handful of operations of some u^terms, also where 1 - x^2 is small.
            for found, wanted, count in (slope, first, 64), (curve, 2 * half, 256):
                error = abs(found.detach()[k].to_mpmath() - wanted)
                assert error < count * unit * abs(wanted), (name, k)


@pytest.mark.parametrize("name", ["log", "sin", "sigmoid", "floor"])
def test_methods_and_in_place(name: str) -> None:
    x = mcf.tensor(["0.1", "2.3"], terms=2, dtype=torch.float32)
    expected = getattr(mcf.elementary, name)(x.components)
    for y in (getattr(x, name)(), getattr(x.clone(), f"{name}_")()):
        for a, b in zip(y.components, expected, strict=True):
            assert torch.equal(a, b)


def _softmax(x: list[arb]) -> list[arb]:
    total = sum((v.exp() for v in x), arb(0))
    return [v.exp() / total for v in x]


def test_softmax_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jacobians against theirs: p_i (delta_ij - p_j), delta_ij - p_j, p_j."""
    monkeypatch.setattr(ctx, "prec", 800)
    x = mcf.tensor(["0.1", "-2.3", "1.7"], terms=2, dtype=torch.float64, requires_grad=True)
    p = _softmax(balls(x.detach().components))
    for i in range(3):
        one = [arb(int(i == j)) for j in range(3)]
        (grad,) = torch.autograd.grad(torch.softmax(x, 0)[i], x)
        assert _error(grad, [p[i] * (one[j] - p[j]) for j in range(3)], 2) < 64
        (grad,) = torch.autograd.grad(F.log_softmax(x, -1)[i], x)
        assert _error(grad, [one[j] - p[j] for j in range(3)], 2) < 64
    (grad,) = torch.autograd.grad(torch.logsumexp(x, 0), x)
    assert _error(grad, p, 2) < 64
    assert torch.logsumexp(torch.stack([x, x]), (0, 1), keepdim=True).shape == (1, 1)


def test_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 800)
    x = mcf.tensor(["0.7", "2.3"], terms=2, dtype=torch.float64, requires_grad=True)
    y = mcf.tensor(["1.9", "-3.1"], terms=2, dtype=torch.float64, requires_grad=True)
    a, b = balls(x.detach().components), balls(y.detach().components)
    pairs = list(zip(a, b, strict=True))
    z = x**y
    assert _error(z, [u**v for u, v in pairs], 2) < 1.01
    gx, gy = torch.autograd.grad(z.sum(), (x, y))
    assert _error(gx, [v * u ** (v - 1) for u, v in pairs], 2) < 64
    assert _error(gy, [u**v * u.log() for u, v in pairs], 2) < 64
    (grad,) = torch.autograd.grad((x**3).sum(), x)
    assert _error(grad, [3 * u**2 for u in a], 2) < 64
    (grad,) = torch.autograd.grad((2**x).sum(), x)
    assert _error(grad, [arb(2) ** u * arb(2).log() for u in a], 2) < 64
    # 0.1 is the double, as everywhere.
    (grad,) = torch.autograd.grad((0.1**x).sum(), x)
    assert _error(grad, [arb(0.1) ** u * arb(0.1).log() for u in a], 2) < 64


def test_two_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctx, "prec", 800)
    y = mcf.tensor(["0.7", "-2.3"], terms=3, dtype=torch.float32, requires_grad=True)
    x = mcf.tensor(["-1.9", "3.1"], terms=3, dtype=torch.float32, requires_grad=True)
    pairs = list(zip(balls(y.detach().components), balls(x.detach().components), strict=True))
    gy, gx = torch.autograd.grad(torch.atan2(y, x).sum(), (y, x))
    assert _error(gy, [u / (u * u + v * v) for v, u in pairs], 3) < 64
    assert _error(gx, [-v / (u * u + v * v) for v, u in pairs], 3) < 64
    (grad,) = torch.autograd.grad(torch.hypot(y, x).sum(), y)
    assert _error(grad, [v / (u * u + v * v).sqrt() for v, u in pairs], 3) < 64


def test_remainders_and_quotients() -> None:
    x = mcf.tensor(["7.5", "-7.5"], terms=2, dtype=torch.float64)
    assert (x % 2).to_fractions() == (x - 2 * torch.floor(x / 2)).to_fractions()
    assert torch.fmod(x, 2).tolist() == [1.5, -1.5]
    assert torch.div(x, 2, rounding_mode="trunc").tolist() == [3, -3]
    assert torch.div(x, 2, rounding_mode="floor").tolist() == [3, -4]
    assert (x // 2).tolist() == [3, -4]


def test_gelu_refuses() -> None:
    x = mcf.tensor(["0.5"], terms=2)
    with pytest.raises(RuntimeError, match="approximate must be 'none' or 'tanh'"):
        F.gelu(x, approximate="cube")
