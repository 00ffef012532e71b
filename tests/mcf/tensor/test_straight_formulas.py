"""Exact: formulas with three operands or a factor, and bounds by name, straight and torch's way.

Caught mutants: a plain operand of one component where torch's way has an expansion; the factor of
another formula; an argument by name for its neighbour; a target that somebody records, or shares a
part of its memory with an operand; a write that no version counts; a factor that is a truth value.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.tensor import operators, torch_functions
from mcf.tensor.ops import arithmetic
from mcf.tensor.tensor import MCFTensor
from tests.helpers import assert_all_same_bits
from tests.helpers.modes import Seen
from tests.mcf.tensor.test_written import _tensor

X, Y, Z = (_tensor(4, 6, seed=seed) for seed in (1, 2, 3))
PLAIN = (torch.arange(24, dtype=torch.float64).reshape(4, 6) - 7) / 3
MIXED = X.to(terms=3)
F = torch.nn.functional

NEW: dict[str, Callable[[], Any]] = {
    "sums": lambda: [torch.add(X, Y, alpha=0.1), X.sub(Y, alpha=3), torch.add(X, Y, alpha=1),
                     X.add(PLAIN, alpha=0.1), torch.sub(X, MIXED, alpha=-0.0), X.add(1, alpha=2)],
    "products": lambda: [torch.addcmul(X, Y, Z), X.addcmul(Y, Z, value=0.1), X.addcmul(Y, PLAIN),
                         torch.addcmul(PLAIN, X, Y), torch.addcmul(X, PLAIN, PLAIN, value=0.1),
                         X.addcmul(MIXED, Y), X.addcmul(Y, Z[0]), X.addcmul(Y, Z, value=1)],
    "quotients": lambda: [torch.addcdiv(X, Y, Z), X.addcdiv(Y, Z, value=0.1), X.addcdiv(PLAIN, Y),
                          torch.addcdiv(PLAIN, X, PLAIN, value=3), X.addcdiv(Y, Z[:, :1])],
    "between": lambda: [torch.lerp(X, Y, 0.1), X.lerp(Y, Z), X.lerp(Y, PLAIN), X.lerp(PLAIN, 0.5),
                        torch.lerp(PLAIN, Y, PLAIN[0, 0]), X.lerp(Y, weight=0.1), X.lerp(Y, 1),
                        torch.lerp(X, Y, weight=PLAIN), X.lerp(MIXED, 0.1), X.lerp(Y, Z[0])],
    "bounds": lambda: [X.clamp(min=0), X.clamp(max=0.5), X.clamp(min=-0.5, max=0.5), X.relu(),
                       torch.clip(X, max=0.5, min=-0.5), torch.clamp(X, -0.5, max=0.5), F.relu(X),
                       X.clamp(min=0.1, max=None), X.clamp(min=Y), X.clamp_min(0.1),
                       torch.clamp_max(X, -0.0), X.clamp(min=float("nan")), X.clip(-1, None)],
}  # fmt: skip
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(Y, alpha=0.1),
    "sub_": lambda t: t.sub_(t, alpha=3),
    "addcmul_": lambda t: t.addcmul_(Y, t),
    "addcmul_ of plain": lambda t: t.addcmul_(PLAIN, Z),
    "addcdiv_": lambda t: t.addcdiv_(Y, Z, value=-0.1),
    "lerp_": lambda t: t.lerp_(Y, 0.1),
    "lerp_ of plain": lambda t: t.lerp_(Y, PLAIN),
    "weight": lambda t: t.lerp_(Y, weight=t),
    "bounds": lambda t: t.clamp_min_(0.1).clamp_max_(1).relu_(),
    "exact": lambda t: t.neg_().square_(),
    "zero": lambda t: t.zero_(),
}
OUT: dict[str, Callable[[Any], Any]] = {
    "add": lambda o: torch.add(X, Y, alpha=0.1, out=o),
    "sub": lambda o: torch.sub(X, Y, out=o, alpha=0.1),
    "addcmul": lambda o: torch.addcmul(X, Y, Z, value=0.1, out=o),
    "addcdiv": lambda o: torch.addcdiv(X, Y, PLAIN, out=o, value=0.1),
    "one": lambda o: torch.addcdiv(X, Y, Z, out=o),
    "lerp": lambda o: torch.lerp(X, Y, 0.1, out=o),
    "plain": lambda o: torch.lerp(X, Y, PLAIN, out=o),
    "bounds": lambda o: torch.clamp(X, min=-0.5, max=0.5, out=o),
    "a bound": lambda o: torch.clamp_min(X, 0.1, out=o),
}


def _everyday(cases: Any, *names: str) -> list[Any]:
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in cases]


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


@pytest.mark.parametrize("name", _everyday(NEW))
def test_new_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got, expected = _both(monkeypatch, NEW[name])
    for k, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.dtype is other.dtype
        assert_all_same_bits(one.components, other.components, f"{name} {k}")
        assert one._base is None


def _targets() -> dict[str, Any]:
    return {
        "usual": X.clone(),
        "turned": X.mT.contiguous().mT,
        "three components": MIXED.clone(),
        "a view": torch.cat([X, X])[2:6],
    }


@pytest.mark.parametrize("name", _everyday(IN_PLACE, "add_", "lerp_ of plain", "weight", "exact"))
def test_in_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in _targets():

        def call(what: str = what) -> Any:
            target = _targets()[what]
            before = target._version
            assert IN_PLACE[name](target) is target
            assert target._version > before
            return target

        got, expected = _both(monkeypatch, call)
        assert_all_same_bits(got.components, expected.components, what)


@pytest.mark.parametrize("name", _everyday(OUT, "sub", "plain"))
def test_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in _targets():

        def call(what: str = what) -> Any:
            target = _targets()[what]
            before = target._version
            assert OUT[name](target) is target
            assert target._version > before
            return target

        got, expected = _both(monkeypatch, call)
        assert_all_same_bits(got.components, expected.components, what)


def test_what_is_met_needs_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: torch.add(X, Y, alpha=0.1, out=Z.clone()),
        lambda: X.clone().lerp_(Y, PLAIN),
        lambda: X.lerp(Y, weight=0.1),
        lambda: X.clone().addcdiv_(Y, PLAIN, value=0.1),
        lambda: X.clamp(min=0.1),
    ]
    for call in calls:
        call()
    monkeypatch.setattr(torch_functions, "call", _only_clones)
    for call in calls:
        call()


def _only_clones(func: Any, args: Any, kwargs: Any) -> Any:
    assert func in (Tensor.clone, torch.clone)
    return MCFTensor([c.clone() for c in args[0].components])


@pytest.mark.usefixtures("on_torch")
def test_what_others_see_is_left_to_torch() -> None:
    leaf = X.clone().requires_grad_()
    weight = PLAIN.clone().requires_grad_()
    for call in (
        lambda: leaf.add_(Y, alpha=2),
        lambda: leaf.lerp_(Y, 0.5),
        lambda: torch.addcmul(X, Y, Z, value=2, out=leaf),
        lambda: torch.lerp(leaf, Y, 0.5, out=torch.empty_like(X)),
    ):
        with pytest.raises(RuntimeError, match=r"leaf|automatic differentiation"):
            call()
    for out in (
        X.lerp(Y, weight),
        X.addcmul(weight, Y),
        torch.add(leaf, Y, alpha=2),
        X.clone().addcdiv_(leaf, Y, value=2),
        leaf.clamp(min=0),
        F.relu(leaf),
    ):
        assert out.requires_grad
    with torch.no_grad():
        before = leaf._version
        leaf.lerp_(Y, 0.5)
        assert (leaf._version, leaf.requires_grad) == (before + 1, True)
    with Seen() as mode:
        X.clone().lerp_(Y, 0.5)
        X.add(Y, alpha=2)
        X.unbind(dim=0)
    assert {"mcf.expansion_mul.default", "mcf.expansion_add.default"} <= {*map(str, mode.seen)}
    assert torch.ops.aten.unbind.int in mode.seen
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X.clone(), Y.clone())
        dual.add_(X, alpha=2)
        tangent = torch.autograd.forward_ad.unpack_dual(dual.mul(2)).tangent
    assert torch.equal(tangent, Y * 2)
    got = torch.func.vmap(lambda t, u: torch.add(t, u, alpha=2).clamp(min=0))(X, Y)
    assert torch.equal(got, torch.add(X, Y, alpha=2).clamp(min=0))

    class Own(mcf.MCFTensor):
        pass

    assert type(Own(list(X.components)).lerp(Y, 0.5)) is Own
    with torch.inference_mode():
        inner = X.clone()
        assert torch.equal(inner.lerp_(Y, 0.5), X.lerp(Y, 0.5))


@pytest.mark.usefixtures("on_torch")
def test_what_torch_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = torch.cat([X, X])
    refused: list[Callable[[], Any]] = [
        lambda: torch.add(X, Y, alpha=True),
        lambda: torch.add(X, Y, alpha="2"),
        lambda: X.add_(Y, 2, alpha=2),
        lambda: torch.add(X, alpha=2),
        lambda: X.clamp(),
        lambda: X.clamp(0, min=1),
        lambda: X.clamp(min="0"),
        lambda: X.lerp(Y),
        lambda: X.lerp(Y, 0.5, weight=0.5),
        lambda: torch.lerp(X, Y, 0.5, out=1),
        lambda: X[0].clone().addcmul_(X, Y, value=2),
        lambda: both[1:5].lerp_(both[:4], 0.5),
        lambda: torch.add(both[:4], X, alpha=2, out=both[1:5]),
        lambda: X.unbind(dim=5),
        lambda: X.unbind(dim="0"),
        lambda: X.transpose(dim0=0, dim2=1),
        lambda: X.split(dim=0),
    ]
    kinds = (TypeError, RuntimeError, IndexError)
    for call in refused:
        before = both._version
        with pytest.raises(kinds) as at_once:
            call()
        with monkeypatch.context() as patched:
            for table in ("STRAIGHT", "NAMED", "VIEWS"):
                patched.setattr(torch_functions, table, {})
            with pytest.raises(kinds) as expected:
                call()
        assert (type(at_once.value), str(at_once.value)) == (
            type(expected.value),
            str(expected.value),
        )
        assert both._version == before


def test_a_formula_is_written_once() -> None:
    """What is straight is what the operators call."""
    x, y = X[0].clone(), Y[0].clone()
    got = torch.add(x, y, alpha=0.1)
    expected = arithmetic.composed(arithmetic.plus_multiple, x, y, 0.1)
    assert_all_same_bits(got.components, expected.components)


@pytest.mark.parametrize("which", ["all", "plain", "apart"])
def test_sums_of_products_of_single_floats_are_rounded_once(which: str) -> None:
    """On every way: the PyTorch executor rounded the product, too. 1 + 2^-52 squared is a tie."""
    x = torch.tensor([2.0**-53, 1.0, -1.0 - 2.0**-51], dtype=torch.float64)
    a = torch.full((3,), 1 + 2.0**-52, dtype=torch.float64)
    exact = [
        Fraction(p) + Fraction(q) * Fraction(q) for p, q in zip(x.tolist(), a.tolist(), strict=True)
    ]
    wide = mcf.tensor(x, terms=1, dtype=torch.float64)
    factor: Any = a if which == "plain" else mcf.tensor(a, terms=1, dtype=torch.float64)
    other: Any = factor[:1] if which == "apart" else mcf.tensor(a, terms=1, dtype=torch.float64)
    for executor in ("torch", "numba"):
        with mcf.executor(executor):
            found = torch.addcmul(wide, factor, other)
        assert found.to_plain().tolist() == [float(e) for e in exact]
