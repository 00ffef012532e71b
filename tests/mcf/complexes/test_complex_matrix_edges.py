"""Exact: matrices of complex expansions without columns, powers 0 and 1, shapes that do not fit.

Caught mutants: A^0 as 0 A + I, which is NaN of infinities; A^1 as A itself; the permutation in the
shape of the factors.
"""

from __future__ import annotations

import pytest
import torch

import mcf


@pytest.mark.usefixtures("on_torch")
def test_powers_0_and_1() -> None:
    z = mcf.complex([[1.0, float("inf")], [float("nan"), 0.0]], [[1.0, 0.0], [2.0, float("inf")]])
    eye = torch.eye(2, dtype=torch.complex64)
    assert torch.equal(torch.linalg.matrix_power(z, 0).to_plain(), eye)
    w = mcf.complex([[1.0, 2.0], [3.0, 4.0]], 1.0)
    once = torch.linalg.matrix_power(w, 1)
    once.mul_(2)
    assert torch.equal(w.real.to_plain(), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 3, 0)])
def test_lu_without_elements(shape: tuple[int, ...]) -> None:
    like = torch.zeros(shape, dtype=torch.complex128)
    z = mcf.complex(like.real.clone(), like.imag.clone())
    for found, expected in zip(torch.linalg.lu(z), torch.linalg.lu(like), strict=True):
        assert found.shape == expected.shape
    assert torch.equal(torch.linalg.lu(z)[0].to_plain(), torch.linalg.lu(like)[0])


@pytest.mark.usefixtures("on_torch")
def test_shapes_that_do_not_fit_are_refused() -> None:
    z = mcf.complex([[1.0, 2.0], [3.0, 4.0]], 1.0)
    for dims in (-1, 3):
        with pytest.raises(RuntimeError, match="dims must be 0 to 2"):
            torch.tensordot(z, z, dims)
    with pytest.raises(RuntimeError, match=r"shape \[3, 2, 2\] does not broadcast"):
        torch.addmm(torch.stack([z, z, z]), z, z)
    with pytest.raises(RuntimeError, match=r"shapes \[2, 2\] and \[\]"):
        torch.linalg.lstsq(z, z[0, 0])
