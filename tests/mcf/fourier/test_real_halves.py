"""Transforms of real sequences by complex ones of half their length, within their bound."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.fourier import functions
from tests.helpers.complexes import flat, numbers

F64, F32 = torch.float64, torch.float32
pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of short sequences, whose exact sums are short."""
    monkeypatch.setattr(functions, "HALVED", 2)


def spectrum(x: Any, n: int) -> list[Any]:
    """The whole transform of real numbers, by its definition."""
    w = [mpmath.expjpi(-mpmath.mpf(2 * k) / n) for k in range(n)]
    return [mpmath.fdot((x[j], w[j * k % n]) for j in range(n)) for k in range(n)]


def error(x: Any, result: Any) -> float:
    """Of what the whole spectrum would be by symmetry, in the 2-norm."""
    n = len(x)
    with mpmath.workprec(500):
        want = spectrum(flat(x), n)
        found = flat(result)
        found += [mpmath.conj(found[n - k]) for k in range(n // 2 + 1, n)]
        off = sum(abs(a - b) ** 2 for a, b in zip(found, want, strict=True))
        return float(mpmath.sqrt(off / sum(abs(t) ** 2 for t in want)))


@pytest.mark.parametrize(
    ("n", "dtype", "terms"),
    [(2, F64, 2), (12, F64, 2), (66, F64, 2), (12, F32, 2), (20, F64, 4)],
)
def test_bound(n: int, dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(dtype, terms, n).real
    limit = mcf.bound("rfft", terms, dtype, count=n).relative
    result = torch.fft.rfft(x)
    assert error(x, result) <= limit
    # The sequence comes back, by the inverse's own error.
    back = torch.fft.irfft(result, n)
    assert float(abs(back - x).max()) <= 3 * limit * n**0.5 * float(abs(x).max())
    turns = functions._turns

    def short(*given: Any) -> Any:
        """Mutant: the last component of the roots is lost."""
        v = turns(*given)
        return v.to(v.dtype, terms=terms - 1).to(v.dtype, terms=terms)

    monkeypatch.setattr(functions, "_turns", short)
    assert n == 2 or error(x, torch.fft.rfft(x)) > 1000 * limit


def test_shapes_norms_and_derivatives_are_those_of_torch() -> None:
    t = numbers(F64, 2, 3, 12, 2).real.to_plain().requires_grad_()
    x = mcf.tensor(t.detach(), 2, F64, requires_grad=True)
    g = numbers(F64, 2, 3, 6, 2).to_plain()
    for given in (t, x):
        z = torch.fft.rfft(given, 10, 1, "ortho")
        back = torch.fft.irfft(z * (2 - 1j), 8, 1)
        ((z.real * g.real + z.imag * g.imag).sum() + (back**2).sum()).backward()
    assert x.grad is not None
    assert t.grad is not None
    assert torch.allclose(x.grad.to_plain(), t.grad, rtol=2.0**-40, atol=2.0**-40)
    ours, theirs = torch.fft.rfft(x.detach(), dim=1), torch.fft.rfft(t.detach(), dim=1)
    assert torch.allclose(ours.to_plain(), theirs, rtol=2.0**-40, atol=2.0**-44)
    assert bool((ours.imag[:, 0] == 0).all())
    assert bool((ours.imag[:, -1] == 0).all())
    # The imaginary parts of the first number and the last have no say.
    same = torch.fft.irfft(ours + torch.tensor([1j, 0, 0, 0, 0, 0, -2j])[:, None], dim=1)
    assert torch.equal(same, torch.fft.irfft(ours, dim=1))
