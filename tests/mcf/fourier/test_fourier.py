"""Transforms within their bound of exact ones, with exact roots of unity, as torch's functions.

`mcf.bound("fft", ...)` in the 2-norm, against mpmath's sums with 500 bits. Proven, but for the rows
of matrix products that are observed. Caught mutants: roots without their last component; tables of
roots that are cached outside an operator, which a trace meets or makes.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import mcf
from mcf.convert.numbers import components_of
from mcf.fourier import functions, transform, transform_bounds
from mcf.fourier.transform import convolution, factors, radices, roots
from mcf.kernels.formats import format_of
from tests.helpers import assert_all_same_bits
from tests.helpers.complexes import flat, numbers
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
CPU = torch.device("cpu")
on_torch = pytest.mark.usefixtures("on_torch")


def exact(values: list[Any], sign: int = -1) -> list[Any]:
    """The transform by its definition."""
    n = len(values)
    w = [mpmath.expjpi(sign * mpmath.mpf(2 * k) / n) for k in range(n)]
    return [mpmath.fdot((values[j], w[j * k % n]) for j in range(n)) for k in range(n)]


def error(z: Any, result: Any, sign: int = -1) -> float:
    """Relative, in the 2-norm; the second half of a real sequence's spectrum is by symmetry."""
    with mpmath.workprec(500):
        want, found = exact(flat(z), sign), flat(result)
        found += [mpmath.conj(found[len(want) - k]) for k in range(len(found), len(want))]
        differences = [abs(a - b) ** 2 for a, b in zip(found, want, strict=True)]
        return float(mpmath.sqrt(sum(differences) / sum(abs(t) ** 2 for t in want)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 12, 24, 31, 40])
def test_roots_are_correctly_rounded(n: int) -> None:
    with mpmath.workprec(500):
        for dtype, terms in ((F64, 4), (F64, 2), (F32, 3), (BF16, 2)):
            found = [c.double().tolist() for c in roots(n, dtype, terms, CPU)]
            for k in range(n):
                for part, f in enumerate((mpmath.cospi, mpmath.sinpi)):
                    t = f(mpmath.mpf(2 * k) / n)
                    value = Fraction(int(mpmath.nint(t * 2**450)), 2**450)
                    want = components_of(value, format_of(dtype), terms)
                    assert tuple(c[part][k] for c in found) == want


def test_a_length_is_the_product_of_its_radices() -> None:
    for n in range(1, 400):
        found, product = radices(n), 1
        for r in found:
            product *= r
            assert r <= 32 or factors(r) == (r,)
        assert product == n
    assert radices(1 << 20) == (16,) * 5
    assert convolution(131) == 512


USUAL = [2, 12, 33, 64]


@on_torch
@pytest.mark.parametrize(
    ("n", "dtype", "terms"),
    everyday(
        [
            (n, dtype, k)
            for n in (*USUAL, 1, 5, 16, 100, 127, 131, 137)
            for dtype, k in ((F64, 1), (F64, 2), (F64, 3), (F64, 4), (F32, 2), (F32, 4), (BF16, 2))
        ],
        lambda n, dtype, k: (dtype, k) == (F64, 2) and n in USUAL,
    ),
)
def test_bound(n: int, dtype: torch.dtype, terms: int) -> None:
    z = numbers(dtype, terms, n)
    limit = mcf.bound("fft", terms, dtype, count=n).relative
    assert error(z, torch.fft.fft(z)) <= limit
    assert error(z, torch.fft.ifft(z, norm="forward"), 1) <= limit
    assert error(mcf.complex(z.real, 0), torch.fft.fft(z.real)) <= limit


@on_torch
def test_bound_of_chirps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Primes from 17 on as those above 127."""
    for module in (transform, transform_bounds):
        monkeypatch.setattr(module, "PRIME", 16)
    for n in (17, 51):
        z = numbers(F64, 2, n)
        limit = mcf.bound("fft", 2, F64, count=n).relative
        assert error(z, torch.fft.fft(z)) <= limit
        assert error(mcf.complex(z.real, 0), torch.fft.fft(z.real)) <= limit


@on_torch
@pytest.mark.parametrize("n", [33, pytest.param(131, marks=pytest.mark.slow)])
def test_short_roots_are_found_out(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: roots of unity whose last component is lost."""

    def short(*given: Any) -> Any:
        *kept, last = roots(*given)
        return (*kept, torch.zeros_like(last))

    for cached in (transform._twiddles, transform._matrix, transform.chirps):
        cached.cache_clear()
    monkeypatch.setattr(transform, "roots", short)
    z = numbers(F64, 2, n)
    assert error(z, torch.fft.fft(z)) > 1000 * mcf.bound("fft", 2, F64, count=n).relative
    for cached in (transform._twiddles, transform._matrix, transform.chirps):
        cached.cache_clear()


def plain(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.complex(bell(shape, seed), bell(shape, seed + 100))


COMPLEX: dict[str, Callable[[Any, Any], Any]] = {
    "fft": lambda f, z: f.fft(z),
    "longer": lambda f, z: f.fft(z, n=9, dim=0, norm="ortho"),
    "shorter": lambda f, z: f.ifft(z, n=2, norm="forward"),
    "ifft": lambda f, z: f.ifft(z, dim=-2),
    "irfft": lambda f, z: f.irfft(z),
    "irfft_odd": lambda f, z: f.irfft(z, n=7, dim=0, norm="ortho"),
    "hfft": lambda f, z: f.hfft(z, n=6),
    "fft2": lambda f, z: f.fft2(z, norm="forward"),
    "ifft2": lambda f, z: f.ifft2(z, s=(3, -1)),
    "fftn": lambda f, z: f.fftn(z, s=(2, 4), norm="ortho"),
    "ifftn": lambda f, z: f.ifftn(z, dim=(1, 0)),
    "irfftn": lambda f, z: f.irfftn(z, norm="ortho"),
    "irfft2": lambda f, z: f.irfft2(z, s=(4, 5)),
    "hfft2": lambda f, z: f.hfft2(z, norm="ortho"),
    "hfftn": lambda f, z: f.hfftn(z, s=(3, 6)),
    "fftshift": lambda f, z: f.ifftshift(f.fftshift(z, dim=0)),
}
REAL: dict[str, Callable[[Any, Any], Any]] = {
    "fft": lambda f, x: f.fft(x, dim=1),
    "ifft": lambda f, x: f.ifft(x, norm="ortho"),
    "rfft": lambda f, x: f.rfft(x, n=6),
    "rfft_odd": lambda f, x: f.rfft(x, dim=0, norm="forward"),
    "ihfft": lambda f, x: f.ihfft(x),
    "irfft": lambda f, x: f.irfft(x),
    "ihfft2": lambda f, x: f.ihfft2(x, norm="forward"),
    "ihfftn": lambda f, x: f.ihfftn(x),
    "rfft2": lambda f, x: f.rfft2(x),
    "rfftn": lambda f, x: f.rfftn(x, s=(4,), norm="ortho"),
}
CASES = [(kind, n) for kind, table in (("complex", COMPLEX), ("real", REAL)) for n in table]


@on_torch
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_as_torch(kind: str, name: str) -> None:
    """Lengths, dimensions, norms and gradients; 2^-40 leaves room for torch's errors."""
    t = plain(3, 5) if kind == "complex" else bell((3, 5))
    function = (COMPLEX if kind == "complex" else REAL)[name]
    make = mcf.complex_tensor if kind == "complex" else mcf.tensor
    z = make(t, 2, F64)
    t.requires_grad_()
    z.requires_grad_()
    ours, theirs = function(torch.fft, z), function(torch.fft, t)
    near = {"rtol": 2.0**-40, "atol": 2.0**-40}
    assert torch.allclose(ours.detach().to_plain(), theirs.detach(), **near)
    g = plain(*theirs.shape, seed=3)
    g = g if theirs.is_complex() else g.real.contiguous()
    [want] = torch.autograd.grad(theirs, t, g)
    given = (mcf.complex_tensor if theirs.is_complex() else mcf.tensor)(g, 2, F64)
    [got] = torch.autograd.grad(ours, z, given)
    assert torch.allclose(got.to_plain(), want, **near)


def test_bits_are_those_of_every_executor() -> None:
    z = numbers(F64, 2, 2, 40)
    with mcf.executor("torch"):
        want = torch.fft.fft(z)
    found = torch.fft.fft(z)
    for a, b in ((found.real, want.real), (found.imag, want.imag)):
        assert all(map(torch.equal, a.components, b.components))


@on_torch
def test_columns_do_not_know_of_each_other() -> None:
    z = numbers(F64, 2, 3, 24)
    assert torch.equal(torch.fft.fft(z)[1], torch.fft.fft(z[1]))
    back = torch.fft.ifft(torch.fft.fft(z))
    limit = 2.5 * mcf.bound("fft", 2, F64, count=24).relative
    assert bool(torch.abs(back - z).norm() <= limit * torch.abs(z).norm())


@on_torch
def test_what_is_refused() -> None:
    z = numbers(F64, 2, 3, 4)
    for call, error, text in (
        (lambda: torch.fft.fft(z, n=0), RuntimeError, r"data points \(0\)"),
        (lambda: torch.fft.fft(z, dim=2), IndexError, "Dimension out of range"),
        (lambda: torch.fft.fft(z, norm="sideways"), RuntimeError, "normalization mode"),
        (lambda: torch.fft.fftn(z, dim=(0, 0)), RuntimeError, "unique"),
        (lambda: torch.fft.fftn(z, s=(2,), dim=(0, 1)), RuntimeError, "same length"),
        (lambda: torch.fft.rfft(z), RuntimeError, "real input"),
        (lambda: torch.fft.irfft(z[:, :1]), RuntimeError, "data points"),
        (lambda: mcf.bound("fft", 2), ValueError, "needs count="),
    ):
        with pytest.raises(error, match=text):
            call()


@pytest.fixture
def always_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of short sequences, whose exact sums are short."""
    monkeypatch.setattr(functions, "HALVED", 2)


@on_torch
@pytest.mark.usefixtures("always_halved")
@pytest.mark.parametrize(
    ("n", "dtype", "terms"),
    [(2, F64, 2), (12, F64, 2), (66, F64, 2), (12, F32, 2), (20, F64, 4)],
)
def test_bound_of_halves(
    n: int, dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@on_torch
@pytest.mark.usefixtures("always_halved")
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


def _power(x: Any) -> Any:
    """|rfft(x)|^2, with a length of one step, a chirp, halves."""
    z = torch.fft.rfft(x)
    return z.real * z.real + z.imag * z.imag


@on_torch
@pytest.mark.parametrize("n", [6, 131, 4096])
def test_what_has_no_numbers_keeps_no_tables_and_meets_none(n: int) -> None:
    for kept in (
        transform._twiddles,
        transform._matrix,
        transform.chirps,
        transform._cached_turns,
    ):
        kept.cache_clear()
    x = numbers(torch.float64, 2, n).real
    found = []
    for _ in range(2):
        with FakeTensorMode() as mode:
            assert _power(mode.from_tensor(x)).shape == (n // 2 + 1,)
        found.append(_power(x))
    assert_all_same_bits(found[0].components, found[1].components, n)


@on_torch
def test_a_length_of_one_is_a_copy() -> None:
    z = numbers(torch.float64, 2, 1, 1)
    found: Any = torch.fft.fft(z)
    found.real.fill_(3)
    assert not bool((z.real == 3).any())


@pytest.mark.slow
@on_torch
def test_compiled_after_numbers() -> None:
    x = mcf.tensor([["0.1", 2, 3, 4], [5, "0.7", 7, 8]], dtype=torch.float64)
    want = _power(x)
    torch._dynamo.reset()
    got: Any = torch.compile(_power, backend="aot_eager")(x)
    assert_all_same_bits(got.components, want.components, "compiled")
    torch._dynamo.reset()
