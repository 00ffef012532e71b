"""Test torch.func on expansions: second derivatives, operands that are not mapped, refusals.

Values and first derivatives are in `test_function_calls.py`. Inputs have digits in both components:
constants of double precision are off by 1e-17.

Caught mutants: a function of unmapped operands computed inside the transform; a derivative with
constants of double precision returned for two float64 components, and one refused whose constants
are exact enough; a backward pass in the components' dtype; gradients of a mapped function of one
element taken for those of all.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mcf
from mcf import elementary
from tests.helpers import assert_alike, assert_all_same_bits

pytestmark = [
    pytest.mark.usefixtures("on_torch"),
    # torch maps some operators one element after the other.
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

F64 = torch.float64
OTHER = mcf.tensor([["0.3", 2], [3, "0.1"]], dtype=F64)
ROWS = mcf.tensor([[["0.7", 1], [2, 3]], [[4, "0.9"], [5, 6]]], dtype=F64)

# Of what is mapped and of `OTHER`, which is not.
BESIDE: dict[str, Callable[[Any], Any]] = {
    "abs": lambda a: a * OTHER.abs(),
    "var": lambda a: a * OTHER.var(),
    "to": lambda a: a * OTHER.to(torch.float32),
    "terms": lambda a: a * OTHER.to(terms=1),
    "plain": lambda a: a * OTHER.to_plain(),
    "fraction": lambda a: a + OTHER * Fraction(1, 3),
    "tensor": lambda a: a + mcf.tensor("0.1", dtype=F64),
    "a / x": lambda a: a / OTHER,
    "x / a": lambda a: OTHER / a,
    "lerp": lambda a: torch.lerp(a, OTHER, 0.5),
    "hypot": lambda a: torch.hypot(OTHER, a),
    "logaddexp": lambda a: torch.logaddexp(a, OTHER),
    "cat": lambda a: torch.cat([a, OTHER]),
    "mse_loss": lambda a: F.mse_loss(a, OTHER),
    "in place": lambda a: a.clone().mul_(OTHER),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", BESIDE)
def test_beside_what_is_mapped(name: str) -> None:
    function = BESIDE[name]
    found = torch.func.vmap(function)(ROWS)
    assert_alike(found, torch.stack([function(row) for row in ROWS]), name)
    x = ROWS[0].clone().requires_grad_()
    function(x).sum().backward()
    slope: Any = torch.func.grad(lambda a: function(a).sum())(ROWS[0])
    # Sums in another order.
    assert bool(((slope - x.grad).abs() <= 2.0**-100 * slope.abs()).all())


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "log2": torch.log2,
    "log10": torch.log10,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "deg2rad": torch.deg2rad,
    "sinc": torch.sinc,
    "var": torch.var,
    "std": lambda x: x.std(0),
    "std_mean": lambda x: torch.std_mean(x, 0, correction=0)[0],
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ROUNDED)
def test_derivatives_that_torch_rounds(name: str) -> None:
    function = ROUNDED[name]

    def total(x: Any) -> Any:
        return function(x).sum()

    for run in (torch.func.grad(total), lambda x: torch.func.jvp(total, (x,), (x,))):
        with pytest.raises(mcf.UnsupportedError, match="constants of double precision"):
            run(OTHER)
    # Values are not refused: outside, mapped, without a derivative.
    assert_alike(torch.func.vmap(total)(ROWS), torch.stack([total(x) for x in ROWS]), name)


@pytest.mark.parametrize("terms", [1, 2])
def test_narrower_ones_are_taken(terms: int) -> None:
    x = mcf.tensor([["0.3", "1.25"]], terms=terms, dtype=torch.float32)
    y = x.clone().requires_grad_()
    y.var().backward()
    slope: Any = torch.func.grad(lambda a: a.var())(x)
    assert y.grad is not None
    assert bool(((slope - y.grad).abs() <= 4 * 2.0 ** (-24 * terms) * slope.abs()).all())


def test_one_component_of_float64_is_taken() -> None:
    x = mcf.tensor(["0.3", "1.25"], terms=1, dtype=F64)
    slope: Any = torch.func.grad(lambda a: a.log2().sum())(x)
    (near,) = elementary.exp((torch.zeros(2, dtype=F64),))
    assert bool((slope > near).all())


def test_running_logarithms_have_no_tangent() -> None:
    with pytest.raises(mcf.UnsupportedError, match="jvp"):
        torch.func.jvp(lambda x: x.logcumsumexp(0), (OTHER,), (OTHER,))
    assert torch.func.grad(lambda x: x.logcumsumexp(0).sum())(OTHER).shape == OTHER.shape


def _tangent(x: Any) -> Any:
    return torch.func.jvp(torch.erf, (x,), (x,))[1]


def test_compiled_derivatives_say_so() -> None:
    """A graph has no callers, so what torch rounds would be rounded in silence there."""
    slope = torch.func.grad(lambda x: torch.erf(x).sum())
    for function in (slope, _tangent, lambda x: torch.func.vmap(slope)(x[:, None])):
        for backend in ("eager", "aot_eager"):
            with pytest.raises(Exception, match=r"applies torch\.func|under torch\.func\.grad"):
                torch.compile(function, backend=backend)(OTHER)
            # torch.compile leaves them disabled when a transform raises.
            torch._C._autograd._saved_tensors_hooks_enable()


def test_compiled_maps_have_the_bits() -> None:
    """With one operand for all, whose layout torch.compile asks for inside the transform."""

    def product(x: Any, y: Any) -> Any:
        return (x * y).exp()

    mapped = torch.func.vmap(product, in_dims=(0, None))
    compiled = torch.compile(mapped, backend="eager")
    assert torch.equal(compiled(OTHER, OTHER), mapped(OTHER, OTHER))
    assert torch.equal(
        torch.compile(torch.func.vmap(torch.special.ndtr), backend="eager")(OTHER),
        torch.special.ndtr(OTHER),
    )


X = mcf.tensor([["0.3", "-1.7", "2.2", "0.9"], ["0.1", "5", "-9", "0.7"]], dtype=F64)
PLAIN = torch.tensor([0.1, 0.7, 2.3, 0.9], dtype=F64)


def test_second_derivatives_each_way() -> None:
    """Of the normal distribution function -x times the density."""
    x = X[0]
    bent = -x * mcf.normal_pdf(x)
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            found: Any = outer(inner(torch.special.ndtr))(x[1])
            assert bool((found - bent[1]).abs() <= 2.0**-100)
    hessian: Any = torch.func.hessian(lambda x: torch.special.ndtr(x).sum())(x)
    assert bool(((hessian.diagonal() - bent).abs() <= 2.0**-100).all())


def test_float16_group_norm_leaves_its_range_inside_too() -> None:
    x = (X.reshape(2, 2, 2) * 40).to(torch.float16)

    def total(x: Any) -> Any:
        return (F.group_norm(x, 1) ** 3).sum()

    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(y), y)
    assert_alike(torch.func.grad(total)(x), slope, "group_norm")


def test_plain_tensors_go_through_the_transform() -> None:
    """What a transform has beside torch's composition comes first: batching rules and autocast."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, 5), torch.rand(5)
    classes = torch.randint(0, 5, (3, 4))

    def loss(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t, weight, label_smoothing=0.1)

    # torch's composition has a mask of each map's own, which its batching rule avoids.
    slopes = torch.func.vmap(torch.func.grad(loss))(x, classes)
    for k in range(3):
        leaf = x[k].clone().requires_grad_()
        loss(leaf, classes[k]).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(slopes[k], leaf.grad)

    def attended(x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.func.vjp(attended, x)[0].dtype is torch.bfloat16
        short = x.bfloat16()
        inside = torch.func.vmap(lambda x: torch.quantile(x, 0.3))(short)
        assert torch.equal(inside, torch.quantile(short.reshape(3, -1), 0.3, -1))


def test_plain_tensors_have_what_torch_gives() -> None:
    plain = X.to_plain()
    functions: dict[str, Callable[[Any], Any]] = {
        "ndtr": torch.special.ndtr,
        "quantile": lambda x: torch.quantile(x, torch.tensor([0.1, 0.7], dtype=F64), -1),
        "cov": lambda x: torch.cov(x, aweights=PLAIN),
    }
    for name, function in functions.items():
        rows = torch.stack([plain, plain]) if name == "cov" else plain
        want = torch.stack([*map(function, rows)])
        assert torch.allclose(torch.func.vmap(function)(rows), want, rtol=1e-14)
    slope: Any = torch.func.grad(lambda x: torch.special.ndtr(x).sum())(plain)
    y = plain.clone().requires_grad_()
    torch.special.ndtr(y).sum().backward()
    assert torch.equal(slope, y.grad)


POSITIVE = X.abs()
ROUNDED_BESIDE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x ** 0.1": (lambda x: x**0.1, "the exponent 0.1 less 1"),
    "x ** plain": (lambda x: x**PLAIN, "the exponents less 1"),
    "2 ** x": (lambda x: 2.0**x, "the logarithm of the base"),
    "plain ** x": (lambda x: PLAIN**x, "the logarithm of the base"),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.1), "1 less the weight 0.1"),
    "lerp by plain": (lambda x: torch.lerp(x, x * x, PLAIN), "1 less the weights"),
    "addcmul": (lambda x: torch.addcmul(x, x, PLAIN, value=0.1), "times value"),
    "addcdiv": (lambda x: torch.addcdiv(x, x, PLAIN), "quotients"),
    "atan2": (lambda x: torch.atan2(x, PLAIN), "squares"),
    "chebyshev_polynomial_t": (
        lambda x: torch.special.chebyshev_polynomial_t(x, 3),
        "derivative differs",
    ),
}


@pytest.mark.parametrize("name", ROUNDED_BESIDE)
def test_what_torch_rounds_beside_expansions_says_so(name: str) -> None:
    function, text = ROUNDED_BESIDE[name]
    total = lambda x: function(x).sum()  # noqa: E731
    for run in (torch.func.grad(total), lambda x: torch.func.jvp(total, (x,), (x,))):
        with pytest.raises(mcf.UnsupportedError, match=text):
            run(POSITIVE)
    assert_alike(torch.func.vmap(function)(POSITIVE), torch.stack([*map(function, POSITIVE)]), name)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "x ** 0.5": lambda x: x**0.5,
    "x ** 1.1": lambda x: x**1.1,
    "x ** expansion": lambda x: x ** mcf.tensor("0.1", dtype=F64),
    "expansion ** x": lambda x: mcf.tensor("0.1", dtype=F64) ** x,
    "x ** plain halves": lambda x: x ** torch.tensor([0.5, 1, 2, 3], dtype=F64),
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "addcmul": lambda x: torch.addcmul(x, x, PLAIN, value=0.5),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_exact_is_taken(name: str) -> None:
    function = TAKEN[name]
    x = POSITIVE.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    found: Any = torch.func.grad(lambda x: function(x).sum())(POSITIVE)
    assert bool(((found - slope).abs() <= 2.0**-99 * slope.abs()).all())


def test_places_of_quantiles_are_no_variables() -> None:
    with pytest.raises(mcf.UnsupportedError, match="q must be a number"):
        torch.func.vmap(lambda q: torch.quantile(X[0], q))(PLAIN[:2])


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles_beside_nan(name: str) -> None:
    function, rows = getattr(torch, name), X.clone()
    rows[0, 1] = torch.nan
    found = torch.func.vmap(lambda row: function(row, 0.3))(rows)
    assert_alike(found, function(rows, 0.3, 1), name)
    assert int(found.isnan().sum()) == (name == "quantile")


def _numbers(*shape: int, step: int = 37) -> Any:
    """Two components, none of which is a power of two, no two first ones alike."""
    k = torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape)
    high = (k * step % 101 - 50).to(F64) / 32 + 2.0**-7
    return mcf.from_components([high, (k * 29 % 97 - 48).to(F64) * 2.0**-66])


IMAGE, KERNEL, BIAS = _numbers(1, 3, 5, 5), _numbers(2, 3, 3, 3, step=41), _numbers(2, step=43)
LINE, PLACES = _numbers(1, 3, 6), _numbers(1, 2, 2, 2, step=31) / 4
POINTS, OTHERS = _numbers(4, 3), _numbers(5, 3, step=53)
SIGNS, HALVES = torch.tensor([[1.0, -1, 1]] * 4, dtype=F64), torch.full((4, 3), 0.25, dtype=F64)

# Of the first, which is mapped and of which derivatives are taken.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "conv1d": (lambda x: F.conv1d(x, KERNEL[:, :, 0], BIAS, padding=1), LINE),
    "conv2d": (lambda x: F.conv2d(x, KERNEL, BIAS, stride=2), IMAGE),
    "conv2d, weight": (lambda w: F.conv2d(IMAGE, w, BIAS, dilation=2), KERNEL),
    "conv_transpose2d": (lambda w: F.conv_transpose2d(IMAGE[:, :2], w, stride=2), KERNEL),
    "layer_norm": (lambda x: F.layer_norm(x, (3,), OTHERS[0], OTHERS[1]), POINTS),
    "layer_norm, weight": (lambda w: F.layer_norm(POINTS, (3,), w[0], w[1]), OTHERS),
    "group_norm": (lambda x: F.group_norm(x.reshape(1, 4, -1)[..., :2], 2), _numbers(4, 4)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, OTHERS[0], OTHERS[1], True), POINTS),
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
    "huber": (lambda x: F.huber_loss(x, POINTS, delta=0.3), POINTS * 0.7),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, POINTS, beta=0.3), POINTS * 0.7),
    "soft_margin": (lambda x: F.soft_margin_loss(x, SIGNS), POINTS),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x * x / 9, HALVES), POINTS),
    "glu": (lambda x: F.glu(x, 0), POINTS),
    "hardswish": (lambda x: F.hardswish(x * 3), POINTS),
    "hardtanh": (lambda x: F.hardtanh(x), POINTS),
    "softshrink": (F.softshrink, POINTS),
    "prelu": (lambda w: F.prelu(POINTS, w), OTHERS[0]),
    "selu": (F.selu, POINTS),
    "cdist": (lambda x: torch.cdist(x, OTHERS), POINTS),
    "pdist": (F.pdist, POINTS),
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
        )(POINTS.reshape(1, 3, 4)),
        "groups of 12",
    ),
    "jacrev of a mean": (
        lambda: torch.func.jacrev(lambda x: F.huber_loss(x, POINTS))(POINTS * 0.7),
        "torch.where",
    ),
    "mapped gradients of a mean": (
        lambda: torch.func.vmap(torch.func.grad(lambda x: F.smooth_l1_loss(x, 0 * x)))(POINTS),
        "torch.where",
    ),
    "curvature of binary_cross_entropy": (
        lambda: torch.func.hessian(lambda x: F.binary_cross_entropy(x * x / 9, HALVES))(POINTS),
        "1e-12",
    ),
    "distances of many": (
        lambda: torch.func.grad(lambda x: torch.cdist(x, POINTS).sum())(_numbers(26, 3)),
        "compute_mode",
    ),
    # torch's are wrong, of plain tensors too.
    "several gradients of distances": (
        lambda: torch.func.jacrev(lambda x: torch.cdist(x, OTHERS))(POINTS),
        "norm",
    ),
    # A plain tensor, which was the gradient's leading component.
    "trace": (lambda: torch.func.grad(lambda x: x.trace() * BIAS[0])(POINTS), "diagonal"),
    "ldexp": (
        lambda: torch.func.grad(lambda x: x.ldexp(torch.tensor(2)).sum())(POINTS),
        "differs from ours",
    ),
    "what is not there": (
        lambda: torch.func.grad(lambda x: torch.exp2(x).sum())(POINTS),
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
    slope = torch.func.grad(lambda w: F.layer_norm(POINTS, (3,), w).sum())(w)
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
