"""The functions of torch.nn.functional that came last, and that the page lists all of them.

Exact: margins in rationals, windows by torch's own places, counts between edges that float64 does
not tell apart. CTC against the sum over all alignments in mpmath's numbers of 400 bits: the
tolerance is 2^-90 at 106 bits, for some 30 logarithms and exponentials of numbers below 8.

Caught mutants: a step too far in the recursion of CTC, or none over a repeated symbol; the mean
over the batch alone; a window that starts one later; an element at an edge counted twice; weights
of a plain tensor rounded.
"""

from __future__ import annotations

import inspect
import itertools
import re
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
