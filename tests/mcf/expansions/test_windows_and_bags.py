"""Pooling, norms, interpolation, bags and reductions into places, where torch's samples do not go.

Values are small whole numbers, so that sums are exact and each comparison is of bits; torch's own
samples run in test_every_function.py.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

import mcf

pytestmark = pytest.mark.usefixtures("on_torch")


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
