"""Norms, and what is normalised by them, do not depend on the scale of a row, nor do derivatives.

A function of the ratios of numbers is the same of numbers times 2^k, bit for bit where no component
leaves the range, and its derivative 2^-k times as large. Norms are compared with mpmath.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.kernels.fold import BLOCK
from tests.helpers import assert_all_same_bits
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday

F16, F32, F64 = torch.float16, torch.float32, torch.float64
# Scales whose squares leave the range.
SCALES = {F16: (-8, 10), torch.bfloat16: (-90, 90), F32: (-70, 100), F64: (-600, 900)}
# And those at which the low components of derivatives stay in it.
EXACT = {F32: (-70, 60), F64: (-600, 700)}
on_torch = pytest.mark.usefixtures("on_torch")


def rows(dtype: torch.dtype, terms: int = 2) -> Any:
    """Numbers of few bits, so that their low components stay in the range, too."""
    return mcf.tensor((bell((2, 4, 6), 1) * 64).round() / 16, terms, dtype)


SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])
SCALELESS: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: F.layer_norm(x, (6,), eps=0.0),
    "rms_norm": lambda x: F.rms_norm(x, (4, 6), eps=0.0),
    "group_norm": lambda x: F.group_norm(x, 2, eps=0.0),
    "instance_norm": lambda x: F.instance_norm(x, eps=0.0),
    "normalize": lambda x: F.normalize(x, dim=2, eps=0.0),
    "normalize of 3": lambda x: F.normalize(x, 3.0, dim=2, eps=0.0),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1), 2, eps=0.0),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x[0], x[1], SIGNS),
    "weight_norm": lambda x: torch._weight_norm(x, x.new_ones(2, 1, 1)),
}


@pytest.mark.sampled(every=3)
@on_torch
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", SCALELESS)
def test_scaleless_function_of_scaled_rows_has_the_same_bits(name: str, dtype: Any) -> None:
    function, slopes, values = SCALELESS[name], [], []
    for k in (0, *EXACT[dtype]):
        x = (rows(dtype) * 2.0**k).requires_grad_()
        y = function(x)
        # Weights whose products with the result do not cancel.
        weights = torch.arange(1.0, y.numel() + 1, dtype=dtype).reshape(y.shape) % 5
        (y * weights).sum().backward()
        values.append(y.detach())
        slopes.append(x.grad * 2.0**k)
    assert bool(slopes[0].isfinite().all())
    for k in (1, 2):
        assert_all_same_bits(values[k].components, values[0].components)
        assert_all_same_bits(slopes[k].components, slopes[0].components)


@pytest.mark.sampled(every=4)
@on_torch
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, F32, F64])
@pytest.mark.parametrize("p", [-1.5, 0.5, 1.1, 2.0, 3.0, 10.0])
def test_vector_norm_derivative_is_a_power_of_the_quotient(dtype: Any, p: float) -> None:
    for k in (0, *SCALES[dtype]):
        x: Any = (mcf.tensor([3.0, -1.0, 1.75], 2, dtype) * 2.0**k).requires_grad_()
        torch.linalg.vector_norm(x, p).backward()
        with mpmath.workprec(300):
            sizes = [mpmath.mpf(c) for c in (3, 1, 1.75)]
            norm = mpmath.fsum(s ** mpmath.mpf(p) for s in sizes) ** (1 / mpmath.mpf(p))
            slopes = [(s / norm) ** (mpmath.mpf(p) - 1) for s in sizes]
            unit = mpmath.mpf(torch.finfo(dtype).eps) ** 2 / 4
            for found, want, sign in zip(x.grad.to_mpmath(), slopes, (1, -1, 1), strict=True):
                # A norm of a few u^2, p - 1 times as much in the power, and half of float16's
                # smallest number in each component.
                assert abs(found * sign - want) <= (64 + 16 * abs(p)) * unit * want + 2.0**-24 * (
                    dtype is F16
                )


@on_torch
@pytest.mark.parametrize("name", ["dist", "cdist", "pdist", "pairwise_distance", "renorm", "norm"])
def test_distances_of_powers_have_derivatives_at_every_scale(name: str) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "dist": lambda x: torch.dist(x[0], x[1], 3),
        "cdist": lambda x: torch.cdist(x[0], x[1], 3),
        "pdist": lambda x: F.pdist(x[0], 3),
        "pairwise_distance": lambda x: F.pairwise_distance(x[0], x[1], 3, eps=0.0),
        "renorm": lambda x: torch.renorm(x, 3, 0, 2.0**60) if x[0, 0, 0].abs() > 2**50 else x,
        "norm": lambda x: torch.linalg.norm(x[0]) + x.norm(3, 1).sum() + torch.norm(x, 2.5),
    }
    for k in (100, -70):
        x = (rows(F32) * 2.0**k).requires_grad_()
        w = (rows(F32).to(F64) * 2.0**k).requires_grad_()
        for t in (x, w):
            functions[name](t).sum().backward()
        # A few u^2 of the largest.
        gap = (x.grad.to(F64) - w.grad).abs().max()
        assert gap <= 2.0**-41 * w.grad.abs().max()


@on_torch
def test_matrix_norm_and_lists_of_norms_have_derivatives_beyond_squares() -> None:
    x: Any = mcf.tensor([[3.0, 4.0], [0.0, 0.0]], 2, F32) * 2.0**100
    for function in (
        torch.linalg.matrix_norm,
        torch.linalg.norm,
        lambda x: torch.linalg.norm(x, "fro"),
        lambda x: torch.norm(x, "fro", (0, 1)),
        lambda x: torch.linalg.norm(x, dim=1)[0],
    ):
        leaf = x.clone().requires_grad_()
        function(leaf).backward()
        assert abs(leaf.grad.to_fractions()[0][0] - Fraction(3, 5)) < Fraction(1, 2**44)
        assert leaf.grad[1].tolist() == [0.0, 0.0]


@on_torch
def test_vector_norm_of_zeros_has_derivative_zero() -> None:
    for p in (0.5, 1.5, 2.0, 3.0):
        x: Any = mcf.zeros(2, 3).requires_grad_()
        torch.linalg.vector_norm(x, p, 1).sum().backward()
        assert x.grad.tolist() == [[0.0] * 3] * 2


@on_torch
def test_vector_norm_differentiated_twice_is_right_beyond_squares() -> None:
    """|x| of [3, 4] k: d2/dx2 = 16 / (125 k)."""
    for k in (2.0**90, 2.0**-60, 1.0):
        x: Any = (mcf.tensor([3.0, 4.0], 2, F32) * k).requires_grad_()
        (first,) = torch.autograd.grad(torch.linalg.vector_norm(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first[0], x)
        assert abs(second.to_fractions()[0] * Fraction(k) * 125 / 16 - 1) < Fraction(1, 2**42)


@on_torch
@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e-30])
def test_eps_counts_as_much_at_every_scale(eps: float) -> None:
    """Against float64 components, where nothing leaves the range."""
    for k in (-110, -60, -40, -10, 0, 40, 100):
        x = rows(F32) * 2.0**k
        for function in (
            lambda x: F.layer_norm(x, (6,), eps=eps),
            lambda x: F.rms_norm(x, (6,), eps=eps),
            lambda x: F.group_norm(x, 2, eps=eps),
            lambda x: F.normalize(x, dim=2, eps=eps),
        ):
            found, wanted = function(x).to(F64), function(x.to(F64))
            # A few u^2, and the smallest number over the smallest number of the row.
            slack = 2.0**-42 + 2.0 ** (-149 - k)
            assert (found - wanted).abs().max() <= slack * wanted.abs().max()


@on_torch
def test_running_variance_of_scaled_rows_is_that_of_the_numbers() -> None:
    x: Any = mcf.tensor([[1.0], [3.0]], 2, F32) * 2.0**40
    mean, var = mcf.zeros(1, terms=2), mcf.ones(1, terms=2)
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    assert mean.item() == 2.0**41
    assert var.item() == 2.0**81


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize("name", [*SCALELESS, "vector_norm of 3", "lp_pool1d"])
@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_rows_of_all_scales_have_the_same_bits_on_every_path(name: str, dtype: Any) -> None:
    """By the torch executor, by that of this device, again by what was kept, and recorded."""
    functions = {
        **SCALELESS,
        "vector_norm of 3": lambda x: torch.linalg.vector_norm(x, 3, 2),
        "lp_pool1d": lambda x: F.lp_pool1d(x, 3.0, 2),
    }
    exponents = torch.tensor([0, *SCALES[dtype], 3]).reshape(4, 1)
    x = rows(dtype) * torch.ldexp(torch.ones(4, 1, dtype=F64), exponents).to(dtype)
    with mcf.executor("torch"):
        wanted = functions[name](x)
    found = [functions[name](x) for _ in range(3)]
    found.append(functions[name](x.clone().requires_grad_()).detach())
    for y in found:
        assert_all_same_bits(y.components, wanted.components)


# A row that needs no scale, and rows of which the last one's last block may need one.
OUTLIERS = (None, 0.0, 2.0**61, 2.0**-130, float("inf"), float("nan"))
LONG = everyday(
    itertools.product(((2 * BLOCK + 5,), (3, BLOCK + 9)), OUTLIERS),
    [((2 * BLOCK + 5,), None), ((3, BLOCK + 9), 2.0**61)],
)


@pytest.mark.parametrize(("shape", "outlier"), LONG)
def test_norm_of_long_rows_has_the_bits_of_the_torch_executor(
    shape: tuple[int, ...], outlier: float | None
) -> None:
    parts = [bell(shape, k) * 2.0 ** (-54 * k) for k in (0, 1)]
    if outlier is not None:
        parts[0].view(-1)[-1], parts[1].view(-1)[-1] = outlier, 0.0
    x = mcf.MCFTensor(parts)
    found = torch.linalg.vector_norm(x, dim=-1)
    with mcf.executor("torch"):
        wanted = torch.linalg.vector_norm(x, dim=-1)
    assert_all_same_bits(found.components, wanted.components)


@on_torch
def test_cosine_embedding_loss_of_zeros_is_that_of_a_right_angle() -> None:
    x: Any = mcf.zeros(2, 3).requires_grad_()
    loss = F.cosine_embedding_loss(x, mcf.ones(2, 3), torch.tensor([1.0, -1.0]), reduction="none")
    loss.sum().backward()
    assert loss.tolist() == [1.0, 0.0]
    assert bool(x.grad.isfinite().all())


def test_cosine_similarity_broadcasts_before_it_adds_up() -> None:
    """Along a dimension of one element of one operand, torch adds up the broadcast squares."""
    x, y = torch.arange(1.0, 7).view(1, 2, 3), torch.tensor([[[1.0, -2, 3]], [[4, 5, -6]]])
    got = F.cosine_similarity(mcf.tensor(x), mcf.tensor(y), dim=-2)
    wanted = F.cosine_similarity(*(mcf.tensor(t) for t in torch.broadcast_tensors(x, y)), dim=-2)
    assert_all_same_bits(got.components, wanted.components)
    # float64 is exact to 2^-50 here.
    exact = F.cosine_similarity(x.double(), y.double(), dim=-2)
    assert torch.allclose(got.to_plain(torch.float64), exact, rtol=0, atol=2.0**-44)
