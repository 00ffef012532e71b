"""Exact: what writes into its argument or `out` straight by plan writes what torch's way does, and
only where nobody records, looks on or has another type.

Caught mutants: operands of a comparison that are exchanged in the kernel alone; the result of one
kernel for another's; a write that no version counts; a leaf that is written to; a target of another
layout, format or type as if it were the result's; operands that are broadcast read as they lie; a
number beside `out` where torch refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import mcf
from mcf.tensor import operators, torch_functions
from mcf.tensor.registry import STRAIGHT
from tests.helpers import assert_all_same_bits
from tests.helpers.modes import Seen
from tests.mcf.tensor.test_written import _tensor

X, Y = (_tensor(4, 6, seed=seed) for seed in (1, 2))
PLAIN = torch.arange(24, dtype=torch.float64).reshape(4, 6) - 7
TRUTH = PLAIN > 0


def _iadd(x: Any, y: Any) -> Any:
    x += y
    return x


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(Y),
    "+=": lambda t: _iadd(t, Y),
    "of a number": lambda t: t.mul_(0.1),
    "of plain": lambda t: t.sub_(PLAIN),
    "of a row": lambda t: t.divide_(Y[0] + 3),
    "of one": lambda t: t.multiply_(Y[0, 0]),
    "of itself": lambda t: t.add_(t),
    "alpha": lambda t: t.add_(Y, alpha=3),
    "bounds": lambda t: torch.clip_(t, -0.5, 2),
    "sign": lambda t: t.copysign_(Y),
    "root": lambda t: t.abs_().sqrt_(),
    "function": lambda t: torch.floor_(t),
}
OUT: dict[str, Callable[[Any], Any]] = {
    "add": lambda o: torch.add(X, Y, out=o),
    "rows": lambda o: torch.subtract(X, Y[:, :1], out=o),
    "a number": lambda o: torch.mul(X, 0.5, out=o),
    "plain first": lambda o: torch.div(PLAIN, X, out=o),
    "choice": lambda o: torch.where(TRUTH, X, Y, out=o),
    "extreme": lambda o: torch.fmax(X, PLAIN, out=o),
    "function": lambda o: torch.trunc(X, out=o),
}


def _both(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[Any, Any]:
    """A result straight, of a kind that has been met, and torch's way."""
    call()
    at_once = call()
    with monkeypatch.context() as patched:
        for room in (torch_functions, operators):
            patched.setattr(room, "STRAIGHT", {})
        for table in ("DIRECT", "NAMED", "WRITERS"):
            patched.setattr(torch_functions, table, {})
        return at_once, call()


def _targets() -> dict[str, Any]:
    return {
        "usual": X.clone(),
        "turned": X.mT.contiguous().mT,
        "every other": torch.stack([X, X], -1)[..., 0],
        "three components": X.to(terms=3),
        "a view": torch.cat([X, X])[2:6],
    }


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("+=", "of a number", "of a row") else pytest.param(n, marks=pytest.mark.slow)
        for n in IN_PLACE
    ],
)
def test_in_place_as_by_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in _targets():

        def call(what: str = what) -> Any:
            target = _targets()[what]
            before = target._version
            assert IN_PLACE[name](target) is target
            assert target._version > before
            return target

        got, expected = _both(monkeypatch, call)
        assert_all_same_bits(got.components, expected.components, what)


@pytest.mark.parametrize(
    "name",
    [n if n in ("rows", "choice") else pytest.param(n, marks=pytest.mark.slow) for n in OUT],
)
def test_out_as_by_torchs_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in _targets():
        got, expected = _both(monkeypatch, lambda what=what: OUT[name](_targets()[what]))
        assert_all_same_bits(got.components, expected.components, what)


def test_comparisons_exchange_what_their_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (torch.lt, torch.greater, torch.ge):
        for other in (Y, 0.5, PLAIN):

            def call(function: Any = function, other: Any = other) -> Any:
                return function(X, other, out=torch.empty(4, 6, dtype=torch.bool))

            got, expected = _both(monkeypatch, call)
            assert torch.equal(got, expected)
            assert torch.equal(got, function(X, other))


class _Other(mcf.MCFTensor):
    """A type of its own, which keeps the operators that it sees."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, *args: Any, **kwargs: Any) -> Any:
        cls.seen.append(str(func))
        return super().__torch_dispatch__(func, *args, **kwargs)


@pytest.mark.usefixtures("on_torch")
def test_what_others_see_is_left_to_torch() -> None:
    leaf = X.clone().requires_grad_()
    for call in (
        lambda: leaf.mul_(2),
        lambda: leaf.exp_(),
        lambda: torch.add(X, Y, out=leaf),
        lambda: torch.add(leaf, Y, out=torch.empty_like(X)),
    ):
        with pytest.raises(RuntimeError, match=r"leaf|automatic differentiation"):
            call()
    inner = leaf * 1
    inner.mul_(Y)
    assert inner.grad_fn is not None
    assert "Mul" in inner.grad_fn.name()
    weight = PLAIN.clone().requires_grad_()
    target = X.clone()
    target.mul_(weight)
    assert target.requires_grad
    with torch.no_grad():
        before = leaf._version
        leaf.mul_(2)
        assert leaf._version == before + 1
        assert leaf.requires_grad
    with Seen() as mode:
        X.clone().mul_(Y)
        torch.add(X, Y, out=torch.empty_like(X))
    assert {"mcf.expansion_mul.default", "mcf.expansion_add.default"} <= {*map(str, mode.seen)}
    other = _Other(X.clone().components)
    other.mul_(2)
    torch.add(X, other, out=torch.empty_like(X))
    assert {"aten.mul_.Tensor", "aten.add.out"} <= {*_Other.seen}
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X.clone(), Y.clone())
        dual.mul_(2)
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert torch.equal(tangent, Y * 2)
    got = torch.func.vmap(lambda t, u: t.clone().add_(u))(X, Y)
    assert torch.equal(got, X + Y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(X.clone().mul_(Y), X * Y)


@pytest.mark.usefixtures("on_torch")
def test_what_torch_refuses_is_refused() -> None:
    out = torch.empty_like(X)
    for call in (
        lambda: torch.maximum(X, 2.0, out=out),
        lambda: torch.exp(X, X, out=out),
        lambda: X.clone().mul_("2"),
        lambda: X.clone().mul_(None),
        lambda: X.clone().sqrt_(2),
    ):
        with pytest.raises(TypeError):
            call()  # type: ignore[no-untyped-call]
    # Which torch does of numbers alone.
    assert torch.add(1.0, 2.0, out=mcf.zeros(())).item() == 3
    with pytest.raises(RuntimeError, match=r"cannot be written|broadcast"):
        X[0].clone().mul_(X)
    names = {f.__name__ for f in STRAIGHT if f.__name__.endswith("_")}
    assert {"add_", "mul_", "sqrt_", "clip_", "arctan_", "__iadd__"} <= names
