"""Functions that torch.func gets as operators of torch's: second derivatives are those outside.

`test_function_calls.py` has values and first derivatives. Caught mutants: a backward pass in the
components' dtype; gradients of a mapped function of one element taken for those of all; a
derivative given that torch computes in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mcf
from tests.helpers import assert_all_same_bits

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    # torch maps some operators one element after the other.
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

F64 = torch.float64


def _numbers(*shape: int, step: int = 37) -> Any:
    """Two components, none of which is a power of two, no two first ones alike."""
    k = torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape)
    high = (k * step % 101 - 50).to(F64) / 32 + 2.0**-7
    return mcf.from_components([high, (k * 29 % 97 - 48).to(F64) * 2.0**-66])


IMAGE, KERNEL, BIAS = _numbers(1, 3, 5, 5), _numbers(2, 3, 3, 3, step=41), _numbers(2, step=43)
LINE, PLACES = _numbers(1, 3, 6), _numbers(1, 2, 2, 2, step=31) / 4
ROWS, OTHER = _numbers(4, 3), _numbers(5, 3, step=53)
SIGNS, HALVES = torch.tensor([[1.0, -1, 1]] * 4, dtype=F64), torch.full((4, 3), 0.25, dtype=F64)

# Of the first, which is mapped and of which derivatives are taken.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "conv1d": (lambda x: F.conv1d(x, KERNEL[:, :, 0], BIAS, padding=1), LINE),
    "conv2d": (lambda x: F.conv2d(x, KERNEL, BIAS, stride=2), IMAGE),
    "conv2d, weight": (lambda w: F.conv2d(IMAGE, w, BIAS, dilation=2), KERNEL),
    "conv_transpose2d": (lambda w: F.conv_transpose2d(IMAGE[:, :2], w, stride=2), KERNEL),
    "layer_norm": (lambda x: F.layer_norm(x, (3,), OTHER[0], OTHER[1]), ROWS),
    "layer_norm, weight": (lambda w: F.layer_norm(ROWS, (3,), w[0], w[1]), OTHER),
    "group_norm": (lambda x: F.group_norm(x.reshape(1, 4, -1)[..., :2], 2), _numbers(4, 4)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, OTHER[0], OTHER[1], True), ROWS),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), LINE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), IMAGE),
    "reflect": (lambda x: F.pad(x, (2, 1), "reflect"), LINE),
    "replicate": (lambda x: F.pad(x, (2, 1, 1, 0), "replicate"), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, (7, 3), mode="bilinear"), IMAGE),
    "cubic": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), IMAGE),
    "grid_sample": (lambda x: F.grid_sample(x, PLACES, align_corners=False), IMAGE),
    "huber": (lambda x: F.huber_loss(x, ROWS, delta=0.3), ROWS * 0.7),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, ROWS, beta=0.3), ROWS * 0.7),
    "soft_margin": (lambda x: F.soft_margin_loss(x, SIGNS), ROWS),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x * x / 9, HALVES), ROWS),
    "glu": (lambda x: F.glu(x, 0), ROWS),
    "hardswish": (lambda x: F.hardswish(x * 3), ROWS),
    "hardtanh": (lambda x: F.hardtanh(x), ROWS),
    "softshrink": (F.softshrink, ROWS),
    "prelu": (lambda w: F.prelu(ROWS, w), OTHER[0]),
    "selu": (F.selu, ROWS),
    "cdist": (lambda x: torch.cdist(x, OTHER), ROWS),
    "pdist": (F.pdist, ROWS),
}
NO_SECOND = {"cdist", "pdist", "binary_cross_entropy", "grid_sample"}


def _near(found: Any, expected: Any) -> bool:
    """Within 2^-90 of the largest: sums of few terms that cancel by less than 2^10."""
    assert type(found) is mcf.MCFTensor
    assert found.terms == expected.terms == 2
    assert found.shape == expected.shape
    return bool(((found - expected).abs().max() <= 2.0**-90 * expected.abs().max()).all())


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in NO_SECOND])
def test_second_derivatives(name: str) -> None:
    function, x = FUNCTIONS[name]

    def total(x: Any) -> Any:
        y = function(x)
        # A norm's squares have no derivative but by eps.
        return (y * y * y).sum()

    given = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(total(given), given, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), given)
    found = torch.func.grad(lambda x: (torch.func.grad(total)(x) ** 2).sum())(x)
    assert _near(found, second)


def test_gradients_of_each_sample() -> None:
    images = _numbers(3, 3, 5, 5)

    def loss(w: Any, image: Any) -> Any:
        return (F.conv2d(image[None], w, BIAS) ** 2).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(KERNEL, images)
    for found, image in zip(each, images, strict=True):
        w = KERNEL.clone().requires_grad_()
        loss(w, image).backward()
        assert _near(found, w.grad)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "native_group_norm": (
        lambda: torch.func.grad(
            lambda x: torch.native_group_norm(x, None, None, 1, 3, 4, 1, 1e-5)[0].sum()
        )(ROWS.reshape(1, 3, 4)),
        "groups of 12",
    ),
    "jacrev of a mean": (
        lambda: torch.func.jacrev(lambda x: F.huber_loss(x, ROWS))(ROWS * 0.7),
        "torch.where",
    ),
    "mapped gradients of a mean": (
        lambda: torch.func.vmap(torch.func.grad(lambda x: F.smooth_l1_loss(x, 0 * x)))(ROWS),
        "torch.where",
    ),
    "curvature of binary_cross_entropy": (
        lambda: torch.func.hessian(lambda x: F.binary_cross_entropy(x * x / 9, HALVES))(ROWS),
        "1e-12",
    ),
    "distances of many": (
        lambda: torch.func.grad(lambda x: torch.cdist(x, ROWS).sum())(_numbers(26, 3)),
        "compute_mode",
    ),
    # torch's are wrong, of plain tensors too.
    "several gradients of distances": (
        lambda: torch.func.jacrev(lambda x: torch.cdist(x, OTHER))(ROWS),
        "norm",
    ),
    # A plain tensor, which was the gradient's leading component.
    "trace": (lambda: torch.func.grad(lambda x: x.trace() * BIAS[0])(ROWS), "diagonal"),
    "ldexp": (
        lambda: torch.func.grad(lambda x: x.ldexp(torch.tensor(2)).sum())(ROWS),
        "differs from ours",
    ),
    "what is not there": (
        lambda: torch.func.grad(lambda x: torch.exp2(x).sum())(ROWS),
        "inside a transform of torch.func",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_rounded_says_so(name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(mcf.UnsupportedError, match=text):
        call()


def test_distances_of_many_are_of_differences() -> None:
    x = _numbers(30, 3) * 2.0**-40 + 1
    found = torch.func.vmap(lambda x: torch.cdist(x, x))(x[None])
    assert_all_same_bits(found[0].components, torch.cdist(x, x).components, "cdist")


def test_plain_tensors_beside_are_plain() -> None:
    w: Tensor = torch.full((3,), 0.25, dtype=F64)
    slope = torch.func.grad(lambda w: F.layer_norm(ROWS, (3,), w).sum())(w)
    assert type(slope) is Tensor


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
@pytest.mark.parametrize("wide", [True, False], ids=["expansions", "plain"])
def test_batch_norm_in_training_differentiates_and_moves_statistics(name: str, wide: bool) -> None:
    """torch keeps the statistics for the derivative and does not count that they are written to."""
    given = [[1.0, 4.0], [3.0, -2.0], [8.0, 1.0]]
    outcomes = []
    for function in (getattr(torch, name), torch.batch_norm):
        x: Any = mcf.tensor(given, 2, torch.float64).requires_grad_()
        kept: Any = [torch.zeros(2).double(), torch.ones(2).double()]
        kept = [mcf.tensor(t, 2) for t in kept] if wide else kept
        rest = (False,) if function is torch.batch_norm else ()
        y = function(x, None, None, *kept, True, 0.5, 0.25, *rest)
        y = y if rest else y[0]
        (y * y * mcf.tensor(given, 2, torch.float64)).sum().backward()
        outcomes.append([x.grad, *kept])
    for found, wanted in zip(*outcomes, strict=True):
        assert torch.equal(found, wanted)
    assert outcomes[0][1].tolist() == [2.0, 0.5]
