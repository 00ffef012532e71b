"""Exact: losses of plain targets, distances and contractions at once; gradients to begin with.

Caught mutants: a plain target's dtype left out of the kind; a number beyond the squares' range
taken for a moderate one; an operand that is not turned; the gradient of several numbers made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.tensor import tapes, torch_functions
from tests.helpers import assert_alike
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.tensor.test_tapes import _kept, _numbers

F64 = torch.float64
X, Y = _numbers(1, True), _numbers(2, True)
PLAIN = Y.to_plain()
A, B = _numbers(3, False), _numbers(4, False)

# Functions of an expansion [3, 4] in (0, 1), of a plain tensor.
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mse_loss": F.mse_loss,
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="batchmean"),
    "binary_cross_entropy": F.binary_cross_entropy,
    "named": lambda x, y: F.l1_loss(input=x, target=y, reduction="sum"),
    "plain first": lambda x, y: F.mse_loss(y, x),
}


def _as_torch(function: Callable[[], Any]) -> Any:
    """On torch's way, in the formulas of operators."""
    with pytest.MonkeyPatch.context() as patched, mcf.executor("torch"):
        patched.setattr(torch_functions, "DIRECT", {})
        return function()


def _said(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (RuntimeError, ValueError, TypeError) as error:
        return type(error), str(error)


def _targets() -> dict[str, Any]:
    return {
        "float64": PLAIN,
        "float32": PLAIN.float(),
        "turned": PLAIN.mT.contiguous().mT,
        "one for all": PLAIN[:1, :1].expand(3, 4),
        "whole": torch.ones(3, 4, dtype=torch.int64),
        "of another shape": PLAIN[:2],
    }


@pytest.mark.parametrize(
    "name",
    everyday(LOSSES, lambda n: n[0] not in "bk"),
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_of_plain_targets(name: str) -> None:
    tapes._tapes.clear()
    for what, target in _targets().items():
        for k in range(3):
            x, y = X * (1 - k / 8), target * (k != 1)
            got = _said(lambda x=x, y=y: LOSSES[name](x, y))
            expected = _as_torch(lambda x=x, y=y: _said(lambda: LOSSES[name](x, y)))
            if isinstance(expected, tuple):
                assert got == expected, what
            else:
                assert_alike(got, expected, f"{name} {what} {k}")
        assert what != "float64" or _kept() == 1


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_plain_targets_that_somebody_sees() -> None:
    """Gradients of either, modes, transforms, inference, other threads."""
    tapes._tapes.clear()
    wanted = F.mse_loss(X, PLAIN)
    assert torch.equal(F.mse_loss(X, PLAIN), wanted)
    assert _kept() == 1
    leaf, target = X.clone().requires_grad_(), PLAIN.clone().requires_grad_()
    for x, y in ((leaf, PLAIN), (X, target), (leaf, target)):
        found = F.mse_loss(x, y)
        assert found.requires_grad
        assert torch.equal(found.detach(), wanted)
        F.mse_loss(x, y, reduction="sum").backward()
    assert torch.equal(leaf.grad, 4 * (X - PLAIN))
    assert target.grad is not None
    with torch.no_grad():
        assert not F.mse_loss(leaf, target).requires_grad
    with Seen() as seen:
        assert torch.equal(F.mse_loss(X, PLAIN), wanted)
    assert seen.seen
    each = torch.func.vmap(F.mse_loss)(torch.stack([X, X]), torch.stack([PLAIN, PLAIN]))
    assert torch.equal(each[1], wanted)
    with torch.inference_mode():
        assert F.mse_loss(X, PLAIN).is_inference()
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.extend(F.mse_loss(X, PLAIN) for _ in range(20)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    assert all(torch.equal(r, wanted) for r in results)


DISTANCES: dict[str, Callable[[Any, Any], Any]] = {
    "cdist": torch.cdist,
    "pdist": lambda x, y: torch.pdist(x),
    "norms": lambda x, y: x.norm(dim=0),
    "norms of 48": lambda x, y: (x[:, None] - y).norm(dim=-1),
    "spread": lambda x, y: torch.stack([x, y]).std(dim=0),
    "spread of 24": lambda x, y: torch.stack([x, y]).std(dim=(0, 1)),
}
FACTORS = (1.0, 2.0**70, 2.0**-140, 0.0, 2.0**600, torch.inf)


@pytest.mark.parametrize("name", everyday(DISTANCES, lambda n: "dist" not in n))
def test_distances(name: str) -> None:
    """Of moderate numbers, and of those that are scaled first."""
    tapes._tapes.clear()
    for factor in FACTORS:
        for k in range(2 + (factor == 1.0)):
            x = mcf.MCFTensor([c * factor if k != 1 else c.mul(1.0) for c in A.components])
            y = mcf.MCFTensor([c.clone() for c in B.components])
            x = x.nan_to_num() if factor == torch.inf and k == 0 else x
            got = DISTANCES[name](x, y)
            assert_alike(got, _as_torch(lambda x=x, y=y: DISTANCES[name](x, y)), f"{name} {factor}")


TENSORS = _numbers(5, False).reshape(2, 3, 2), _numbers(6, False).reshape(3, 2, 2)
CONTRACTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "matrices": lambda x, y: torch.tensordot(x[0], y[0].mT[:, :1].expand(2, 2), 1),
    "one": lambda x, y: torch.tensordot(x, y[:2], 1),
    "two": lambda x, y: torch.tensordot(x, y, 2),
    "all": lambda x, y: torch.tensordot(x, x, dims=3),
    "lists": lambda x, y: torch.tensordot(x, y, dims=([1, 0], [0, 2])),
    "turned": lambda x, y: torch.tensordot(x.mT, y, dims=((2,), (0,))),
    "from the end": lambda x, y: torch.tensordot(x, y, dims=([-2], [-3])),
    "none": lambda x, y: torch.tensordot(x, y, 0),
    "a plain one": lambda x, y: torch.tensordot(x, y.to_plain(), 2),
    "of one": lambda x, y: torch.tensordot(x[:, :1], y, ([1], [0])),
    "wrong sizes": lambda x, y: torch.tensordot(x, y, 1),
    "too many": lambda x, y: torch.tensordot(x, y, 4),
    "below none": lambda x, y: torch.tensordot(x, y, -1),
    "twice": lambda x, y: torch.tensordot(x, y, ([0, 0], [1, 1])),
}


@pytest.mark.parametrize("name", everyday(CONTRACTIONS, lambda n: n != "a plain one"))
def test_contractions(name: str) -> None:
    x, y = TENSORS
    got = _said(lambda: CONTRACTIONS[name](x, y))
    expected = _as_torch(lambda: _said(lambda: CONTRACTIONS[name](x, y)))
    if isinstance(expected, tuple):
        assert got == expected
    else:
        assert_alike(got, expected, name)
        assert CONTRACTIONS[name](x.clone().requires_grad_(), y).requires_grad


def test_gradients_to_begin_with() -> None:
    """Of one number a one; torch's words for several and for what has no graph."""
    x = A.clone().requires_grad_()
    for out in (x[0, 0] * 3, (x * 3)[:1, :1], (x * 3)[0][:1]):
        (one,) = torch.autograd.grad(out, x, retain_graph=True)
        assert one.sum().item() == 3
        x.grad = None
        out.backward()
        assert_alike(x.grad, one, "backward")
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (x * 3).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        A[0, 0].backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x[0, 0] * 3).backward(A)
    with Seen() as seen:
        (x[0, 0] * 3).backward()
    assert seen.seen
    with pytest.raises(RuntimeError):
        with torch.inference_mode():
            (A[0, 0] * 3).backward()
    second = torch.autograd.grad(x[0, 0] ** 3, x, create_graph=True)[0]
    assert torch.autograd.grad(second[0, 0], x)[0][0, 0] == 6 * x[0, 0]
    total: Any = torch.func.grad(lambda t: (t * t).sum())(A)
    assert torch.equal(total, 2 * A)
