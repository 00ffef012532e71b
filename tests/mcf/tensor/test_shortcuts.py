"""Exact: what is computed above autograd is what torch's way gives: bits, layouts, errors.

Caught mutants: `sub` in the place of `rsub`; a quotient in the place of a product with the
reciprocal; components joined in another order; ones below a leading one; a call that autograd
records, or a mode sees, computed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.tensor import torch_functions
from mcf.tensor.registry import DIRECT, UnsupportedError
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.modes import Seen
from tests.mcf.tensor.inputs import hard

X, Y = (mcf.MCFTensor(hard(torch.float64, 2, 24, seed)) for seed in (1, 2))
A = mcf.MCFTensor([c.reshape(4, 6) for c in X.components])
WHERE = torch.arange(24) % 5 == 0
PLACES = torch.tensor([3, 1, 3])

CALLS: dict[str, Callable[[], Any]] = {
    "operators": lambda: [X + Y, X - Y, X * Y, X / Y, 1 - X, 0.1 * X, 2 / X, X**3, X**Y, X**-1],
    "comparisons": lambda: [X < Y, X <= 0.5, X > Y, X >= Y, X == Y, X != X, torch.lt(X, Y)],
    "alpha": lambda: [torch.add(X, Y, alpha=3), torch.sub(X, Y, alpha=0.1), torch.rsub(X, Y)],
    "two": lambda: [torch.hypot(X, Y), torch.atan2(X, Y), torch.maximum(X, Y), X.fmin(Y)],
    "three": lambda: [torch.addcmul(X, Y, X, value=0.1), X.addcdiv(Y, X), torch.lerp(X, Y, 0.3)],
    "clamped": lambda: [X.clamp(-0.5, 2), X.clip(max=1.0), X.clamp_min(0.1), X.clamp(Y, 2 * Y)],
    "one": lambda: [X.exp(), X.floor(), torch.fix(X), X.square(), -X, X.frac(), X.reciprocal()],
    "rows": lambda: [A.softmax(1), A.log_softmax(dim=0), A.logsumexp(-1), A.logsumexp(0, True)],
    "functional rows": lambda: [F.softmax(A, dim=0), F.log_softmax(A, -1), F.softmax(A, dim=1,
                                dtype=torch.float32), F.log_softmax(X, dim=0)],
    "running": lambda: [X.cumsum(0), A.cumsum(dim=1), torch.cumsum(A.T, -1), A.cumprod(0),
                        torch.cumprod(X, dim=0), A.cumsum(0, dtype=torch.float32), X[0].cumsum(0)],
    "sorted": lambda: [*X.sort(), *torch.sort(A, dim=0), *A.sort(1, True), *A.sort(descending=True),
                       *A.sort(dim=0, stable=True), X.median(), torch.median(A), *A.median(1),
                       *torch.median(A, dim=0, keepdim=True), *X[0].sort()],
    "lists": lambda: [X[[3, 1, 3]], A[[-1]], A[[0, 1]][[True, False]], A[[0, 1], [2, 3]], A[[]]],
    "kinds": lambda: [X.isfinite(), torch.isnan(X), X.signbit(), torch.isinf(X), X.logical_not()],
    "moved": lambda: [X.flip(0), A.flip(0, 1), A.roll((1, 2), (0, 1)), A.tril(-1), A.rot90()],
    "picked": lambda: [X.take(PLACES), A.index_select(1, PLACES), X[PLACES], X[WHERE], A.gather(
        1, PLACES.expand(4, 3)), X.masked_select(WHERE), A.take_along_dim(PLACES[None], dim=1)],
    "masked": lambda: [A[A.components[0] > 0], A[WHERE[:4]], A.masked_select(WHERE[:6]),
                       A[:, WHERE[:6]], A.t()[WHERE[:6]], X[~WHERE & False], A[WHERE[:4], 1:],
                       X[WHERE.nonzero()]],
    "joined": lambda: [torch.cat([X, Y]), torch.stack((A, A), dim=-1), torch.hstack([A, A]),
                       torch.vstack([X, Y]), torch.cat([X, Y.to(terms=3)]),
                       torch.cat([X, Y.to_plain()])],
    "copied": lambda: [A.t().clone(), X.repeat(2), X.repeat_interleave(2),
                       X.masked_fill(WHERE, 0.1)],
    "made": lambda: [torch.zeros_like(A.t()), torch.ones_like(A), A.new_zeros(2, 3),
                     A.new_ones((2,)), torch.zeros_like(X, dtype=torch.float32),
                     torch.ones_like(A[:, ::2]), torch.full_like(A.t(), 0.1)],
    "plain": lambda: [X * Y.to_plain(), torch.atan2(Y.to_plain(), X), WHERE * X, X + PLACES[0]],
    "masks in place": lambda: [X.clone().masked_fill_(WHERE, 0.1), A.clone().masked_fill_(
        WHERE[:6], 2), X.to(terms=3).masked_fill_(WHERE, 0.1), A.T.clone().T.masked_fill_(
        WHERE[:6], X[0]), A.clone().masked_fill_(A.components[0] > 0, torch.tensor(0.1))],
    "in place": lambda: [X.clone().mul_(Y), X.clone().lerp_(Y, 0.3), X.clone().sub_(Y, alpha=3),
                         X.clone().masked_fill_(WHERE, 0.1), X.clone().neg_(), X.clone().pow_(3),
                         A.t().clone().t().clamp_(-0.5, 0.5), X.clone().addcdiv_(Y, X)],
    "out": lambda: [torch.lerp(X, Y, 0.1, out=torch.empty_like(X)), torch.neg(X, out=Y.clone()),
                    torch.pow(X, 3, out=torch.empty_like(X.to(terms=3))),
                    torch.addcmul(X, Y, X, out=torch.empty_like(X))],
    "folds": lambda: [torch.outer(X[:3], Y[:2]), X.diff(), A[:, :4].trace(), torch.trace(A),
                      X.sum(), X.mean(), X.norm(), torch.linalg.norm(A), X.var(correction=0),
                      A.std(dim=1), A @ Y[:6], X @ Y, A.mT @ A, A.amax(), torch.max(X), X.prod()],
    "over": lambda: [A.sum(0), A.sum((0, 1), keepdim=True), torch.mean(A, -1, True), A.amax((0,)),
                     A.prod(1), *A.max(0), *torch.min(A, dim=1, keepdim=True), A.argmax(0),
                     A.argmin(dim=1), A.sum([1], dtype=torch.float32), A.sum(()), A.T.mean(0),
                     A.norm(dim=0), A.norm(1), torch.norm(A, 2, 0), torch.norm(A, dim=(0, 1)),
                     torch.linalg.norm(A, dim=-1), torch.linalg.norm(X, 2), A.var(0, keepdim=True),
                     A.std(dim=(0, 1)), A.var(0, False), torch.linalg.vector_norm(A, 1, 0)],
    "gathered": lambda: [A[:, 0].diff(), X[::2].diff(), torch.outer(A[:, 1], Y[::3]), X[:2].diff(),
                         torch.outer(X, Y), torch.linalg.cross(A[:, :3], A[:, 3:]), X[:1].diff(),
                         torch.cross(A.T[:3], A.T[3:], dim=0), X.to(terms=3).diff(),
                         torch.outer(X.float(), Y.float())],
    "bases": lambda: [2**X, 2.5 ** A.T, torch.pow(3, X), 0**X, (-2.0) ** X, 10 ** X[0],
                      True**X, torch.pow(X, 2.5)],
    "others": lambda: [A.T.contiguous(), A.contiguous(), X.nan_to_num(), X[:3].nan_to_num(1.0),
                       A.T.nan_to_num(neginf=2.0), (X / 0).nan_to_num(posinf=0.1)],
    "small": lambda: [X[3] * 0.5, X[0] + X, A[:, :1] * A, torch.stack([X[0], Y[1]])],
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("on_torch")
def test_results_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = CALLS[name]()
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    for k, (got, expected) in enumerate(zip(at_once, CALLS[name](), strict=True)):
        assert_alike(got, expected, f"{name} {k}")


def test_truths_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    nan = X.clone()
    nan[3] = float("nan")
    calls: list[Callable[[], Any]] = [
        lambda: [torch.equal(X, Y), torch.equal(X, X.clone()), X.equal(X[:3]), nan.equal(nan)],
        lambda: [torch.equal(X[:5], X[:5]), X[:5].equal(Y[:5]), A.equal(X), X[0].equal(X[0])],
        lambda: [X.equal(X.to_plain()), torch.equal(torch.zeros(2), 0 * X[:2].float())],
        lambda: [torch.allclose(X, Y), X.allclose(X), X[:5].allclose(Y[:5]), A.allclose(A)],
    ]
    for call in calls:
        at_once = call()
        with monkeypatch.context() as patched:
            patched.setattr(torch_functions, "DIRECT", {})
            assert at_once == call()
        assert {*map(type, at_once)} == {bool}


REFUSED: dict[str, Callable[[], Any]] = {
    "None": lambda: X + None,
    "text": lambda: torch.mul(X, "2"),
    "shape": lambda: X + Y[:3],
    "arguments": lambda: torch.exp(X, X),
    "a mask that is an expansion": lambda: X.masked_select(Y),
    "shapes joined": lambda: torch.stack([X, Y[:3]]),
    "none joined": lambda: torch.cat([]),
    "a mask of another shape": lambda: A[WHERE[:5]],
    "a dimension": lambda: X.flip(2),
    "a number for a tensor": lambda: torch.hypot(X, 2.0),
    "a tensor and a number": lambda: X.clamp(Y, 2.0),
    "a dimension of sums": lambda: A.sum(5),
    "a dimension of extremes": lambda: A.max(5),
    "a dimension of places": lambda: A.argmax(2),
    "a dimension twice": lambda: A.mean((0, 0)),
    "a dimension of norms": lambda: A.norm(dim=2),
    "dimensions of norms": lambda: torch.linalg.norm(A[None], dim=(0, 1, 2)),
    "a text for a dimension": lambda: A.sum("0"),
    "a fraction for a dimension": lambda: A.var(0.5),
    "a list that is too far": lambda: X[[3, 24]],
    "a list of large numbers": lambda: X[[2**70]],
    "a mask's shape in place": lambda: X[0].clone().masked_fill_(WHERE, 0.1),
    "a mask of numbers in place": lambda: X.clone().masked_fill_(PLACES, 0.1),
    "no dimension to run along": lambda: A.cumsum(2),
    "no dimension to sort": lambda: A.sort(-3),
    "no truth value": lambda: A.sort(0, "1"),
    "no dimension of medians": lambda: A.median(2),
    "rows of no dimension": lambda: F.softmax(A, dim=2),
    "a dimension that is text": lambda: F.log_softmax(A, "1"),
    "a list": lambda: torch.maximum(X, [1.0]),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("on_torch")
def test_errors_are_those_of_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (TypeError, RuntimeError, IndexError, ValueError, UnsupportedError)
    with pytest.raises(kinds) as at_once:
        REFUSED[name]()
    monkeypatch.setattr(torch_functions, "DIRECT", {})
    with pytest.raises(kinds) as expected:
        REFUSED[name]()
    assert type(at_once.value) is type(expected.value)


@pytest.mark.usefixtures("on_torch")
def test_what_is_recorded_or_watched_goes_torchs_way() -> None:
    x = X.detach().clone().requires_grad_()
    kinds = torch.return_types.sort, torch.return_types.median
    assert (type(A.sort()), type(A.median(0))) == kinds
    assert {torch.Tensor.flip, torch.Tensor.mul, torch.Tensor.square} <= set(DIRECT)
    for out in (x.flip(0), x.mul(2), 2 * x, x.square(), x.cumsum(0), x.sort()[0], X @ x):
        assert out.requires_grad
    assert torch.cat([X, x]).requires_grad
    assert torch.atan2(torch.ones(24, dtype=torch.float64, requires_grad=True), X).requires_grad
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with Seen() as seen:
        X * Y
        torch.cat([X, Y])
    assert len(seen.seen) >= 2
    changed = X.clone()
    before = changed._version
    changed.mul_(Y)
    torch.lerp(X, Y, 0.5, out=changed)
    assert changed._version == before + 2
    with pytest.raises(RuntimeError, match="leaf"):
        x.mul_(2)
    kept = x * 1
    total = (kept * kept).sum()
    kept.detach().mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()
    with torch.inference_mode():
        assert (X * Y).is_inference()
        assert X.flip(0).is_inference()
    twice = torch.func.jvp(lambda a: a * 3, (X,), (Y,))[1]
    assert_all_same_bits(twice.components, (Y * 3).components, "forward derivative")
