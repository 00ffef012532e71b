"""Polar factors and square roots of matrices: bounds in exact arithmetic, derivatives, refusals.

The functions are tried on every torch; torch's own names for them from 2.14 on.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from mcf.expansions.ops.matrices import spectral as real_ones
from mcf.linalg.number_kinds import COMPLEX, REAL, Real
from tests.helpers.matrices import ONE
from tests.mcf.linalg.test_other_factors import F64, tensor, whole
from tests.mcf.linalg.test_spectral import at_most, whole_of

# Values; the arithmetic has the same bits on all executors by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")
NAMED = pytest.mark.skipif(
    not hasattr(torch.linalg, "polar"), reason="torch.linalg has polar from 2.14 on"
)


def exactly(x: Any) -> tuple[Any, Real]:
    """The exact matrix, of a complex one [[X, -Y], [Y, X]], and its arithmetic."""
    if isinstance(x, mcf.MCFTensor):
        return whole_of(x.components, REAL), REAL
    return whole_of((*x.real.components, *x.imag.components), COMPLEX), COMPLEX


def within(error: Any, scale: Any, limit: int, x: Any) -> None:
    """|error| <= limit columns u^terms |scale| in the Frobenius norm."""
    numbers = exactly(x)[1]
    part = x if numbers is REAL else x.real
    at_most(error, scale, limit * x.shape[-1], part.components, REAL)


def polar_errors(a: Any, u: Any, h: Any, limit: int = 350) -> None:
    (rows, numbers), (left, _), (right, _) = map(exactly, (a, u, h))
    one = np.full((1, numbers.parts), ONE * ONE, dtype=object)
    within(left.T @ left - np.eye(left.shape[1], dtype=object) * ONE * ONE, one, limit, a)
    within(left @ right - rows * ONE, rows * ONE, limit, a)


def root_errors(a: Any, x: Any, limit: int = 600) -> None:
    rows, root = exactly(a)[0], exactly(x)[0]
    within(root @ root - rows * ONE, rows * ONE, limit, a)


rejected = functools.partial(pytest.raises, AssertionError, match="times the bound")


CASES = {
    "square": whole(5, 5),
    "tall": whole(7, 3, seed=1),
    "deficient": whole(6, 2, seed=2) @ whole(2, 4, seed=3),
    "near a multiple of I": torch.eye(6, dtype=F64) * 3 + whole(6, 6, seed=4) * 2.0**-70,
    "wide exponents": whole(5, 4, seed=5) * torch.tensor([1.0, 2.0**-40, 2.0**30, 1.0], dtype=F64),
}


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_polar_within_its_bound(name: str, terms: int) -> None:
    a = tensor(CASES[name], terms)
    u, h = real_ones.polar_factors(a)
    polar_errors(a, u, h)
    assert torch.equal(h, h.mT)


def test_a_factor_of_a_component_less_is_rejected() -> None:
    a = tensor(CASES["square"])
    u, h = real_ones.polar_factors(a)
    for bad in ((mcf.tensor(u.to_plain(), terms=2, dtype=F64), h), (u, h + h * 2.0**-80)):
        with rejected():
            polar_errors(a, *bad, limit=3500)


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("name", ["square", "near a multiple of I"])
def test_square_root_within_its_bound(name: str, terms: int) -> None:
    b = tensor(CASES[name], terms)
    a = b @ b.mT + torch.eye(b.shape[-1], dtype=F64)
    a = a.tril() + a.tril(-1).mT
    x = real_ones.square_root(a)
    root_errors(a, x)
    with rejected():
        root_errors(a, mcf.tensor(x.to_plain(), terms=terms, dtype=F64), limit=6000)
    assert torch.equal(x, x.mT)


def test_semidefinite_roots_have_no_nan() -> None:
    b = tensor(CASES["deficient"])
    a = b @ b.mT
    a = a.tril() + a.tril(-1).mT
    x = real_ones.square_root(a)
    root_errors(a, x)


def test_of_complex_numbers() -> None:
    z = mcf.complex(tensor(whole(5, 3)), tensor(whole(5, 3, seed=9)))
    u, h = real_ones.polar_factors(z)
    polar_errors(z, u, h)
    assert torch.equal(h.real, h.real.mT)
    assert torch.equal(h.imag, -h.imag.mT)
    a = z.mH @ z
    # The triangle that is read, and its mirror image.
    a = a.tril() + a.tril(-1).mH
    a = mcf.complex(a.real, a.imag - torch.diag_embed(a.imag.diagonal()))
    root_errors(a, real_ones.square_root(a))


def measured(out: Any) -> Any:
    """A number that depends on every part of some results."""
    results = out if isinstance(out, tuple) else (out,)
    parts: list[Any] = []
    for o in results:
        parts += [o] if isinstance(o, mcf.MCFTensor) else [o.real, o.imag]
    return sum((p * whole(*p.shape, seed=40 + k)).sum() for k, p in enumerate(parts))


def slopes(function: Any, parts: list[Any]) -> tuple[Any, Any]:
    """What backward says of a change of the parts of a matrix, and what the change does."""
    changes = [tensor(whole(*p.shape, seed=20 + k), 4) for k, p in enumerate(parts)]
    step = 2.0**-80

    def at(t: float) -> Any:
        return measured(function(*(p + d * t for p, d in zip(parts, changes, strict=True))))

    given = [p.detach().requires_grad_() for p in parts]
    measured(function(*given)).backward()
    backward = sum((p.grad * d).sum() for p, d in zip(given, changes, strict=True))
    return backward, (at(step) - at(-step)) / (2 * step)


def rooted(a: Any) -> Any:
    """The root of a definite matrix that a matrix becomes."""
    return torch.linalg.matrix_sqrth((a + a.mH) * 0.5 + torch.eye(3, dtype=F64) * 40)


DERIVATIVES: dict[str, tuple[Any, tuple[int, int], int]] = {
    "polar": (torch.linalg.polar if hasattr(torch.linalg, "polar") else None, (4, 3), 1),
    "matrix_sqrth": (rooted, (3, 3), 1),
    "complex polar": (lambda x, y: torch.linalg.polar(mcf.complex(x, y)), (4, 3), 2),
    "complex matrix_sqrth": (lambda x, y: rooted(mcf.complex(x, y)), (3, 3), 2),
}


@NAMED
@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_differences(name: str) -> None:
    """A step of 2^-80 in four components: its square, and 2^-212 over it, are below 2^-100."""
    function, shape, parts = DERIVATIVES[name]
    given = [tensor(whole(*shape, seed=9 * k), 4) for k in range(parts)]
    backward, forward = slopes(function, given)
    assert (abs(backward - forward) < 2.0**-80 * abs(forward)).item()


@NAMED
@pytest.mark.parametrize("name", ["polar", "matrix_sqrth"])
def test_torchs_names(name: str) -> None:
    function = getattr(torch.linalg, name)
    assert getattr(mcf.linalg, name) is function
    b = tensor(whole(4, 4))
    a = b @ b.mT + torch.eye(4, dtype=F64)
    a = (a + a.mT) * 0.5
    plain = a.to_plain().requires_grad_()
    own = a.detach().requires_grad_()
    results, wanted = (
        [f] if isinstance(f, torch.Tensor) else [*f] for f in map(function, (own, plain))
    )
    for x, y in zip(results, wanted, strict=True):
        # torch's own of 53 bits.
        assert ((x.detach() - y.detach()).abs().max() < 2.0**-40 * y.detach().abs().max()).item()
    sum((x * whole(4, 4, seed=7)).sum() for x in results).backward()
    sum((y * whole(4, 4, seed=7)).sum() for y in wanted).backward()
    assert ((own.grad - plain.grad).abs().max() < 2.0**-36 * plain.grad.abs().max()).item()


@NAMED
def test_what_torch_refuses() -> None:
    wide = tensor(whole(2, 3))
    for call, said in (
        (lambda: torch.linalg.polar(wide), "at least as many rows as columns, but got 2 by 3"),
        (lambda: torch.linalg.polar(wide[0]), "at least 2 dimensions"),
        (lambda: torch.linalg.matrix_sqrth(wide), "batches of square matrices, but they are 2 by"),
        (lambda: torch.linalg.polar(mcf.complex(wide, wide)), "at least as many rows as columns"),
        (lambda: torch.linalg.matrix_sqrth(mcf.complex(wide, wide)), "batches of square matrices"),
    ):
        with pytest.raises(RuntimeError, match=said):
            call()


@NAMED
@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3, 2), (1, 1)])
def test_few_and_no_elements(shape: tuple[int, ...]) -> None:
    a = tensor(whole(*shape) if 0 in shape else torch.full(shape, -4.0, dtype=F64))
    for x in (a, mcf.complex(a, a)):
        u, h = torch.linalg.polar(x)
        assert u.shape == a.shape
        assert h.shape == (*shape[:-2], shape[-1], shape[-1])
    if shape == (1, 1):
        assert torch.linalg.polar(a)[0].item() == -1
        assert torch.linalg.polar(a)[1].item() == 4
