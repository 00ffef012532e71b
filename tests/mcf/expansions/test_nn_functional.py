"""Test functions of torch.nn.functional: losses, windows, bags, histograms and random slopes.

Margins are compared in rationals, windows with torch's own indices. CTC is compared with the sum
over all alignments in 400 bits: the tolerance is 2^-90 at 106 bits, for some 30 logarithms and
exponentials of numbers below 8. Small whole numbers make sums exact.

Caught mutants: a step too far in the recursion of CTC, or none over a repeated symbol; the mean
over the batch alone; a window that starts one later; an element at an edge counted twice; weights
of a plain tensor rounded.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F

import mcf
from tests.helpers.draws import bell

pytestmark = pytest.mark.usefixtures("on_torch")

PAGE = (Path(__file__).parents[3] / "docs" / "functions.md").read_text()
HELPERS = {"assert_int_or_pair", "boolean_dispatch", "handle_torch_function"}


def expansion(shape: tuple[int, ...], seed: int = 0) -> mcf.MCFTensor:
    high, low = (mcf.tensor(bell(shape, s), 2, torch.float64) for s in (seed, seed + 50))
    return high + low * 2.0**-60  # type: ignore[no-any-return]


def public() -> list[str]:
    """The functions of torch.nn.functional for users."""
    found = []
    for name, f in vars(F).items():
        of_torch = str(getattr(f, "__module__", None) or "torch").startswith("torch")
        hidden = name.startswith(("_", "has_torch_function")) or name in HELPERS
        if callable(f) and not inspect.isclass(f) and of_torch and not hidden:
            found.append(name)
    return found


def test_the_page_has_every_function_of_nn_functional() -> None:
    listed = set(re.findall(r"`(?:nn\.functional\.)?(\w+)(?:\.[\w.-]+)?`", PAGE))
    assert len(public()) > 120
    if torch.__version__.startswith("2.13"):
        assert set(public()) - listed == set()
    taken = re.findall(r"`(\w+)`", PAGE.split("\nTaken:")[1].split("\nNot taken:")[0])
    assert set(taken) == CALLS.keys()


def alignments(x: list[list[Any]], target: list[int], blank: int) -> Any:
    """The probability of the targets, summed over all ways to say them."""
    total, classes = mpmath.mpf(0), range(len(x[0]))
    for path in itertools.product(classes, repeat=len(x)):
        said = [c for k, c in enumerate(path) if k == 0 or c != path[k - 1]]
        if [c for c in said if c != blank] == target:
            total += mpmath.exp(sum(row[c] for row, c in zip(x, path, strict=True)))
    return total


def test_ctc_is_the_sum_over_all_alignments() -> None:
    x = torch.log_softmax(expansion((4, 3, 3)), 2)
    targets, lengths, counts = [[2, 2], [1, 2], [1, 0]], [4, 3, 4], [2, 2, 1]
    got = F.ctc_loss(x, torch.tensor(targets), torch.tensor(lengths), torch.tensor(counts),
                     reduction="none")  # fmt: skip
    with mpmath.workprec(400):
        for b in range(3):
            rows = [[c for c in step[b]] for step in x.to_mpmath()[: lengths[b]]]
            want = -mpmath.log(alignments(rows, targets[b][: counts[b]], 0))
            assert abs(got[b].to_mpmath() - want) < mpmath.mpf(2) ** -90
    means = F.ctc_loss(x, torch.tensor([2, 2, 1, 2, 1]), tuple(lengths), tuple(counts))
    assert means.to_fractions() == (got / torch.tensor([2, 2, 1])).mean().to_fractions()
    one = F.ctc_loss(
        x[:, 0], torch.tensor([2, 2]), torch.tensor(4), torch.tensor(2), reduction="sum"
    )
    assert one.to_fractions() == got[0].to_fractions()


def test_ctc_without_an_alignment_and_its_derivative() -> None:
    logits = expansion((3, 2, 4)).requires_grad_()
    args = (torch.tensor([[1, 1], [2, 3]]), torch.tensor([2, 3]), torch.tensor([2, 2]))
    given = torch.log_softmax(logits, 2)
    assert F.ctc_loss(given, *args, reduction="none")[0].item() == float("inf")
    loss = F.ctc_loss(given, *args, reduction="none", zero_infinity=True)
    assert loss[0].item() == 0
    loss.sum().backward()
    plain = logits.detach().to_plain(torch.float64).requires_grad_()
    F.ctc_loss(torch.log_softmax(plain, 2), *args, reduction="sum", zero_infinity=True).backward()
    assert torch.allclose(logits.grad.to_plain(), plain.grad, atol=1e-14, rtol=0)  # type: ignore[union-attr]
    assert not logits.grad[:, 0].any()  # type: ignore[index]
    for wrong, match in (
        ({"input_lengths": torch.tensor([2, 4])}, "at most 3"),
        ({"target_lengths": torch.tensor([2, 3])}, "must hold target_lengths"),
        ({"targets": torch.tensor([[1, 4], [2, 3]])}, "from 0 to 3"),
        ({"blank": 4}, "blank must be from 0 to 3"),
    ):
        given_args = dict(zip(("targets", "input_lengths", "target_lengths"), args, strict=True))
        with pytest.raises(RuntimeError, match=match):
            F.ctc_loss(given.detach(), **{**given_args, **wrong})  # type: ignore[arg-type]


def test_margins_in_rationals() -> None:
    x, target = expansion((3, 4), 1), torch.tensor([3, 0, 2])
    weight = torch.tensor([0.1, 0.5, 2.0, 0.7], dtype=torch.float64)
    rows, w = x.to_fractions(), [Fraction(v) for v in weight.tolist()]
    for p in (1, 2):
        got = F.multi_margin_loss(x, target, p, 0.75, weight, reduction="none").to_fractions()
        for row, y, found in zip(rows, target.tolist(), got, strict=True):
            gaps = [max(Fraction(0), Fraction(3, 4) - row[y] + row[i]) for i in range(4) if i != y]
            assert abs(found - sum(w[y] * g**p for g in gaps) / 4) < Fraction(1, 2**95)
    labels = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [1, 2, 3, 0]])
    got = F.multilabel_margin_loss(x, labels, reduction="none").to_fractions()
    for row, names, found in zip(rows, labels.tolist(), got, strict=True):
        named = names[: names.index(-1)] if -1 in names else names
        others = [i for i in range(4) if i not in named]
        want = sum(max(Fraction(0), 1 - row[j] + row[i]) for j in named for i in others)
        assert abs(found - Fraction(want) / 4) < Fraction(1, 2**95)
    # A plain input beside an expansion's weight is not rounded on the way.
    wide, one = mcf.tensor(weight, 2, torch.float64), mcf.tensor(x.to_plain(), 2, torch.float64)
    exact: Any = F.multi_margin_loss(one, target, weight=wide)
    plain: Any = F.multi_margin_loss(x.to_plain(), target, weight=wide)
    assert plain.to_fractions() == exact.to_fractions()
    for call in (
        lambda: F.multi_margin_loss(x, torch.tensor([0, 4, 0])),
        lambda: F.multi_margin_loss(x, target[:2]),
        lambda: F.multi_margin_loss(x, target, weight=weight[:2]),
        lambda: F.multilabel_margin_loss(x, labels + 1),
    ):
        with pytest.raises(RuntimeError, match="margin_loss"):
            call()
    with pytest.raises(ValueError, match="p must be 1 or 2"):
        F.multi_margin_loss(x, target, p=3)


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_windows_are_those_of_torch(dims: int) -> None:
    x = expansion((2, 3, *(7, 6, 5)[:dims]), 2)
    plain, name = x.to_plain(), f"fractional_max_pool{dims}d"
    samples = bell((2, 3, dims), 3).abs() / 8
    given = {"output_size": (3, 2, 3)[:dims], "return_indices": True, "_random_samples": samples}
    got, places = getattr(F, name)(x, 2, **given)
    want, indices = getattr(F, name)(plain, 2, **given)
    assert torch.equal(places, indices)
    assert torch.equal(got.to_plain(), want)
    flat = x.flatten(2).gather(2, places.flatten(2)).reshape(got.shape)
    assert got.to_fractions() == flat.to_fractions()
    torch.manual_seed(5)
    drawn = getattr(F, name)(x[0], 2, output_ratio=(0.5, 0.6, 0.5)[:dims])
    torch.manual_seed(5)
    assert torch.equal(
        drawn.to_plain(), getattr(F, name)(plain[0], 2, output_ratio=(0.5, 0.6, 0.5)[:dims])
    )
    with pytest.raises(RuntimeError, match="do not fit"):
        getattr(F, name)(x, 6, output_size=2)
    with pytest.raises(ValueError, match="give one of"):
        getattr(F, name)(x, 2)


def test_counts_tell_apart_what_float64_does_not() -> None:
    edge = mcf.tensor([0.25, 0.25, 0.25, 0, 1, 1.5, float("nan")], 2, torch.float64)
    x = edge + mcf.tensor([2.0**-80, 0, -(2.0**-80), 0, 0, 0, 0], 2, torch.float64)
    got = torch.histc(x, 4, 0, 1)
    assert isinstance(got, mcf.MCFTensor)
    assert got.tolist() == [2, 2, 0, 1]
    assert torch.histc(x[:5], 2).tolist() == [4, 1]
    assert torch.histc(mcf.ones(3), 2).tolist() == [0, 3]
    with pytest.raises(RuntimeError, match="both finite"):
        torch.histc(x, 4)
    with pytest.raises(RuntimeError, match="bins must be at least 1"):
        torch.histc(x, 0, 0, 1)


def test_random_slopes() -> None:
    x = expansion((40,), 4)
    out = F.rrelu(x, 0.25, 0.5, training=True)
    slope = out[x < 0] / x[x < 0]
    assert ((slope >= 0.25 - 2.0**-90) & (slope <= 0.5 + 2.0**-90)).all()
    assert out[x > 0].to_fractions() == x[x > 0].to_fractions()
    assert F.rrelu(x).to_fractions() == F.leaky_relu(x, (1 / 8 + 1 / 3) / 2).to_fractions()
    with pytest.raises(RuntimeError, match="lower must be at most upper"):
        F.rrelu(x, 0.5, 0.25)


def test_points_of_an_affine_grid_in_rationals() -> None:
    theta = expansion((1, 2, 3), 6)
    rows = theta.to_fractions()[0]
    for corners in (False, True):
        got = F.affine_grid(theta, [1, 1, 3, 4], align_corners=corners).to_fractions()[0]
        for i, j in itertools.product(range(3), range(4)):
            x, y = ((Fraction(2 * k, n - 1) if corners else Fraction(2 * k + 1, n)) - 1
                    for k, n in ((j, 4), (i, 3)))  # fmt: skip
            want = [a * x + b * y + c for a, b, c in rows]
            assert max(abs(v - w) for v, w in zip(got[i][j], want, strict=True)) < Fraction(
                1, 2**95
            )


IMAGE = (1, 2, 4, 4)
HALVES = torch.full((1, 2, 3), 0.5, dtype=torch.float64)
CALLS: dict[str, Any] = {
    "adaptive_max_pool1d_with_indices": ((2, 6), lambda f, x: f(x, 3)),
    "adaptive_max_pool2d_with_indices": (IMAGE, lambda f, x: f(x, 2)),
    "adaptive_max_pool3d_with_indices": (IMAGE, lambda f, x: f(x, 2)),
    "affine_grid": ((1, 2, 3), lambda f, x: f(x, [1, 1, 2, 3], align_corners=False)),
    "celu_": (IMAGE, lambda f, x: f(x, 3.0)),
    "conv_tbc": ((5, 2, 3), lambda f, x: f(x, x[:2].mT.contiguous(), x[0, 0, :2], 1)),
    "dropout1d": (IMAGE[:3], lambda f, x: f(x, 0.5, training=False)),
    "elu_": (IMAGE, lambda f, x: f(x)),
    "fold": ((1, 12, 6), lambda f, x: f(x, (3, 4), (2, 2))),
    "fractional_max_pool2d_with_indices": (
        IMAGE, lambda f, x: f(x, 2, 2, _random_samples=HALVES[..., :2])),
    "fractional_max_pool3d_with_indices": (
        (1, 2, 4, 4, 4), lambda f, x: f(x, 2, 2, _random_samples=HALVES)),
    "gumbel_softmax": (IMAGE, lambda f, x: f(x, tau=2.0).sum(-1)),
    "hardtanh_": (IMAGE, lambda f, x: f(x)),
    "leaky_relu_": (IMAGE, lambda f, x: f(x)),
    "lp_pool1d": (IMAGE[:3], lambda f, x: f(x, 2.0, 2)),
    "lp_pool2d": (IMAGE, lambda f, x: f(x.abs(), 3.0, 2)),
    "lp_pool3d": ((1, 1, 2, 4, 4), lambda f, x: f(x.abs(), 3, 2)),
    "max_pool1d_with_indices": (IMAGE[:3], lambda f, x: f(x, 2)),
    "max_pool2d_with_indices": (IMAGE, lambda f, x: f(x, 2)),
    "max_pool3d_with_indices": (IMAGE, lambda f, x: f(x, 2)),
    "native_channel_shuffle": (IMAGE, lambda f, x: f(x, 2)),
    "one_hot": ((3,), lambda f, x: f(torch.arange(3)) * x),
    "relu_": (IMAGE, lambda f, x: f(x)),
    "rrelu_": (IMAGE, lambda f, x: f(x)),
    "selu_": (IMAGE, lambda f, x: f(x)),
    "threshold_": (IMAGE, lambda f, x: f(x, 0.25, 0.5)),
    "upsample": (IMAGE, lambda f, x: f(x, scale_factor=2, mode="bilinear", align_corners=True)),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_what_torch_has_no_samples_of(name: str) -> None:
    """As torch in float64, to 2^-40, with expansions as results."""
    shape, call = CALLS[name]
    x = expansion(shape, 7)
    pairs = [call(getattr(F, name), v) for v in (x.clone(), x.to_plain())]
    for mine, theirs in zip(*(p if isinstance(p, tuple) else (p,) for p in pairs), strict=True):
        if theirs.is_floating_point():
            assert isinstance(mine, mcf.MCFTensor)
            assert torch.allclose(mine.to_plain(), theirs, rtol=2.0**-40, atol=2.0**-40)
        else:
            assert torch.equal(mine, theirs)


FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAN = float("nan")


def slope(function: Callable[[Any], Any], values: list[float], dtype: torch.dtype) -> Any:
    x: Any = mcf.tensor(values, dtype=dtype).requires_grad_()
    function(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("dtype", FORMATS)
def test_binary_cross_entropy_at_ends_has_finite_slopes(dtype: torch.dtype) -> None:
    """t = 1: -1 / p; t = 0: 1 / (1 - p); where that is infinite torch's number, if it fits."""
    # The least number at which float16 puts a pole.
    limit = 2.0**15 if dtype is torch.float16 else 1e12
    for t, wanted in ((1.0, [-limit, -1.0, -4.0]), (0.0, [1.0, limit, 4 / 3])):
        found = slope(
            lambda p, t=t: F.binary_cross_entropy(p, p.detach() * 0 + t, reduction="none"),
            [0.0, 1.0, 0.25],
            dtype,
        )
        # 1e-12 is a float64, so its reciprocal is not the 1e12 of this test.
        unit = max(16 * Fraction(torch.finfo(dtype).eps) ** 2, Fraction(1, 2**53))
        for got, want in zip(found.to_fractions(), wanted, strict=True):
            # 1 - p, a quotient and its products; and half of float16's smallest number.
            assert abs(got - Fraction(want)) <= unit * abs(Fraction(want)) + Fraction(1, 2**24)


def test_binary_cross_entropy_of_tiny_probability_has_its_slope() -> None:
    """torch bounds p (1 - p) by 1e-12: -1e12 and 1e-188 in the place of these."""
    p: Any = mcf.tensor([2.0**-400], dtype=torch.float64).requires_grad_()
    for t, wanted in ((1.0, -(Fraction(2) ** 400)), (0.0, Fraction(1))):
        (found,) = torch.autograd.grad(F.binary_cross_entropy(p, torch.tensor([t]).double()), p)
        assert abs(found.to_fractions()[0] / wanted - 1) < Fraction(1, 2**100)


@pytest.mark.parametrize("dtype", FORMATS)
def test_binary_cross_entropy_of_saturated_sigmoid_has_slope_zero(dtype: torch.dtype) -> None:
    found = slope(
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.tensor([1.0, 0.0, 1.0, 0.0])),
        [800.0, -800.0, -800.0, 800.0],
        dtype,
    )
    assert found.to_plain().tolist() == [0.0] * 4


def test_binary_cross_entropy_differentiated_twice_is_finite_inside_and_at_zero_loss() -> None:
    p: Any = mcf.tensor([0.5, 1.0], dtype=torch.float64).requires_grad_()
    loss = F.binary_cross_entropy(p, torch.ones(2).double(), reduction="sum")
    (first,) = torch.autograd.grad(loss, p, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), p)
    assert second.tolist() == [4.0, 1.0]


@pytest.mark.parametrize("loss", [F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.mse_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_distance_of_nan_has_slope_nan(loss: Any, reduction: str) -> None:
    found = slope(
        lambda x: loss(x, torch.zeros(4), reduction=reduction), [NAN, 4.0, -4.0, 0.0], torch.float32
    )
    assert found.isnan().tolist() == [True, False, False, False]
    assert found[1] == -found[2] > 0 == found[3]


def test_smooth_l1_loss_with_beta_zero_of_nan_has_slope_nan() -> None:
    found = slope(lambda x: F.smooth_l1_loss(x, torch.zeros(1), beta=0.0), [NAN], torch.float32)
    assert bool(found.isnan().all())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3), (2, 3, 2)])
def test_prelu_of_one_weight_has_the_inputs_shape(shape: tuple[int, ...]) -> None:
    for weight in ([0.25], 0.25):
        x: Any = mcf.tensor(torch.full(shape, -2.0)).requires_grad_()
        w: Any = mcf.tensor(weight).requires_grad_()
        y = F.prelu(x, w)
        assert y.shape == shape
        y.sum().backward()
        assert x.grad.shape == shape
        assert w.grad.shape == w.shape
        assert w.grad.sum() == -2.0 * x.numel()


def test_loss_of_right_logits_keeps_its_digits() -> None:
    """log(1 + e^-60), whose slope is e^-60, not what is left of 60 - 60 and 1 - 1."""
    for name in ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"):
        x: Any = mcf.tensor([[60.0, -60.0]], dtype=torch.float64).requires_grad_()
        loss = getattr(F, name)(x, torch.tensor([[1.0, 0.0]]).double(), reduction="sum")
        loss = loss * (2 if name.startswith("multi") else 1)
        loss.backward()
        with mpmath.workprec(300):
            want = mpmath.log1p(mpmath.exp(-60))
            assert abs(loss.to_mpmath() / (2 * want) - 1) < mpmath.mpf(2) ** -98
            slope_of_one = mpmath.exp(-60) / (1 + mpmath.exp(-60))
            for found, sign in zip(x.grad[0].to_mpmath(), (-1, 1), strict=True):
                assert abs(sign * found / slope_of_one - 1) < mpmath.mpf(2) ** -98


@pytest.mark.parametrize("dtype", FORMATS)
def test_gaussian_nll_loss_with_squares_out_of_range_is_right(dtype: torch.dtype) -> None:
    """The loss of a gap d is (log(v) + d^2 / v) / 2: the quotient fits, the square does not."""
    k = {torch.float16: 12, torch.float64: 700}.get(dtype, 100)
    x, v = (mcf.tensor([2.0**k], dtype=dtype).requires_grad_() for _ in range(2))
    loss: Any = F.gaussian_nll_loss(x, torch.zeros(1, dtype=dtype), v, reduction="sum")
    loss.backward()
    with mpmath.workprec(300):
        want = (k * mpmath.log(2) + mpmath.mpf(2) ** k) / 2
        unit = mpmath.mpf(torch.finfo(dtype).eps) ** 2
        assert abs(loss.to_mpmath() - want) <= 4 * unit * want
    assert x.grad is not None
    assert x.grad.item() == 1.0
    assert v.grad is not None
    assert abs(v.grad.item() - (2.0**-k - 1) / 2) <= 4 * torch.finfo(dtype).eps ** 2


def whole(*shape: int) -> torch.Tensor:
    """Different whole numbers in no order."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7919 % 10007).double().reshape(shape)


def pair(x: torch.Tensor) -> mcf.MCFTensor:
    return mcf.tensor(x, terms=2, dtype=torch.float64)


@pytest.mark.sampled
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_windows_that_reach_over_the_end(ceil_mode: bool, padding: int) -> None:
    for n in (5, 6, 7, 8):
        x = whole(1, 2, n, n + 1)
        for stride in (1, 2, 3):
            given = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
            values, places = F.max_pool2d(pair(x), 3, return_indices=True, **given)
            want, wanted = F.max_pool2d(x, 3, return_indices=True, **given)
            assert torch.equal(values.to_plain(), want)
            assert torch.equal(places, wanted)
            for inside in (True, False):
                mean = F.avg_pool2d(pair(x * 5040), 3, count_include_pad=inside, **given)
                want = F.avg_pool2d(x * 5040, 3, count_include_pad=inside, **given)
                # torch's quotient is rounded once, and so is ours.
                assert torch.equal(mean.to_plain(), want)


def test_low_components_take_part() -> None:
    low = Fraction(1, 2**70)
    numbers = [[[[1 + low, 1 + 3 * low], [1, 1 - 4 * low]]]]
    x = mcf.tensor(numbers, terms=2, dtype=torch.float64)
    value, place = F.max_pool2d(x, 2, return_indices=True)
    assert place.item() == 1
    assert value.to_fractions() == [[[[1 + 3 * low]]]]
    assert F.adaptive_max_pool2d(-x, 1, return_indices=True)[1].item() == 3
    middle = F.interpolate(x, size=(1, 1), mode="bilinear")
    assert middle.to_fractions() == [[[[Fraction(1)]]]]


def test_running_statistics_take_what_they_hold() -> None:
    x = whole(4, 3, 5)
    plain, ours = torch.nn.BatchNorm1d(3).double(), torch.nn.BatchNorm1d(3).double()
    plain(x)
    out = ours(pair(x))
    assert isinstance(out, mcf.MCFTensor)
    for name in ("running_mean", "running_var"):
        found = getattr(ours, name)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, getattr(plain, name), rtol=1e-15, atol=0)
    assert ours.num_batches_tracked == 1


def test_a_variance_that_cancels() -> None:
    """In float64 the mean of 10^8 + x has lost what the norm needs; a pair has not."""
    x = whole(1, 4, 6)
    want = F.group_norm(pair(x), 2, eps=0.0)
    far = F.group_norm(pair(x) + 2.0**60, 2, eps=0.0)
    assert (far - want).abs().max().to_plain() < 2.0**-40
    assert (F.group_norm(x + 2.0**60, 2, eps=0.0) - want.to_plain()).abs().max() > 2.0**-10


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_elements_that_share_a_place(reduce: str, include_self: bool) -> None:
    index = torch.tensor([[0, 0, 3, 0], [2, 2, 2, 2], [1, 3, 1, 3]])
    x, source = whole(3, 4) + 1, whole(3, 4).flip(0) + 3
    want = x.scatter_reduce(1, index, source, reduce, include_self=include_self)
    got = pair(x).scatter_reduce(1, index, pair(source), reduce, include_self=include_self)
    assert torch.equal(got.to_plain(), want)


def test_bags_that_are_empty_or_padding() -> None:
    weight, indices = whole(6, 2), torch.tensor([1, 2, 0, 5, 5, 3])
    # -1 is the last row, not torch's old name for none.
    for mode, padding in [("sum", 5), ("mean", 5), ("max", 5), ("sum", -1), ("mean", -4)]:
        given = {"offsets": torch.tensor([0, 2, 2, 5]), "mode": mode, "padding_idx": padding}
        want = F.embedding_bag(indices, weight, **given)
        assert torch.equal(F.embedding_bag(indices, pair(weight), **given).to_plain(), want)


def test_an_empty_stride_is_the_size_of_the_window() -> None:
    x = whole(1, 1, 4, 4)
    for pool in (F.avg_pool2d, F.max_pool2d):
        assert torch.equal(pool(pair(x), 2, stride=()).to_plain(), pool(x, 2))


def test_points_between_elements_are_rational() -> None:
    """A third of the way: the weights are those of the rationals, not of float64."""
    x = mcf.tensor([[[0, 1]]], terms=2, dtype=torch.float64)
    out = F.interpolate(x, size=4, mode="linear", align_corners=True)[0, 0]
    for k, value in enumerate(out):
        assert abs(value.to_fractions() - Fraction(k, 3)) < Fraction(1, 2**100)


def test_refusals_name_what_was_given() -> None:
    x = pair(whole(1, 3, 4))
    with pytest.raises(RuntimeError, match="num_groups=2"):
        torch.group_norm(x, 2)
    with pytest.raises(RuntimeError, match=r"reduce argument must be .* got median"):
        x.scatter_reduce(0, torch.zeros(1, 3, 4, dtype=torch.int64), x, "median")
    with pytest.raises(mcf.UnsupportedError, match="scale_grad_by_freq"):
        F.embedding_bag(torch.tensor([[0]]), x[0], scale_grad_by_freq=True)
    with pytest.raises(RuntimeError, match=r"within .*, -3 through 2, but got 3"):
        F.embedding_bag(torch.tensor([[0]]), x[0], padding_idx=3)
    with pytest.raises(RuntimeError, match="invalid max index"):
        F.max_unpool2d(x, torch.full((1, 3, 4), 99), 1)


def test_axis_is_a_name_of_dim() -> None:
    x = pair(whole(3, 4))
    assert torch.equal(torch.var(x, axis=1).to_plain(), torch.var(x, dim=1).to_plain())
    assert torch.std(x, axis=0, keepdims=True).shape == (1, 4)


BEYOND = (float("nan"), float("inf"), -float("inf"), 1e300)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_points_that_are_no_numbers_are_where_torch_has_them(mode: str, padding_mode: str) -> None:
    """NaN and infinities inside the border and between mirrors: an element, but of cubics."""
    image = whole(1, 1, 3, 4)
    grid = torch.tensor([(a, b) for a in (*BEYOND[:3], 1.0) for b in (*BEYOND[:3], -1.0)]).double()
    grid = grid.reshape(1, 4, 4, 2)
    for corners in (True, False):
        given = {"mode": mode, "padding_mode": padding_mode, "align_corners": corners}
        want = F.grid_sample(image, grid, **given)
        found = F.grid_sample(pair(image), grid, **given)
        torch.testing.assert_close(found.to_plain(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("indices", "offsets"), [([-1, 0], [0]), ([0, 3], [0]), ([0, 1], [1]), ([0, 1], [0, 5])]
)
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_bags_that_are_none(indices: list[int], offsets: list[int], mode: str) -> None:
    """An index below 0 took rows from the end, as an index of Python does."""
    weight = whole(3, 2)
    for w in (weight, pair(weight)):
        with pytest.raises(RuntimeError, match=r"idx to be|offsets\[0\]|input's length 2"):
            F.embedding_bag(torch.tensor(indices), w, torch.tensor(offsets), mode=mode)


def test_bags_without_any_index_have_a_derivative() -> None:
    weight = pair(whole(3, 2)).requires_grad_()
    none = torch.tensor([], dtype=torch.int64)
    for mode in ("sum", "mean", "max"):
        out = F.embedding_bag(none, weight, torch.tensor([0, 0]), mode=mode)
        (grad,) = torch.autograd.grad(out.sum(), weight)
        assert not bool(grad.any())


def test_nothing_is_a_size_and_a_point() -> None:
    x = whole(1, 2, 6)
    assert F.adaptive_avg_pool1d(pair(x), 0).shape == F.adaptive_avg_pool1d(x, 0).shape
    none = x[..., :0]
    for p in (0, 1, 2, float("inf")):
        found = torch.cdist(pair(none), pair(none), p)
        assert torch.equal(found.to_plain(), torch.cdist(none, none, p))
