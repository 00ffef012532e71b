"""Exact: formulas and products with `out=` and in place write the bits of the result.

Whatever memory is shared, of few elements (a program) and of many (the last operation writes it).

Caught mutants: a result written over an operand that is still to be read; another format taken for
the target's own; a write that no version counts; a product of other dimensions than `mm` has.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from tests.helpers.modes import Seen
from tests.mcf.expansions.test_written import _same, _tensor

FORMULAS = {
    "lerp": lambda x, a, b, **out: torch.lerp(x, a, b, **out),
    "lerp of a number": lambda x, a, b, **out: torch.lerp(x, a, 0.3, **out),
    "addcmul": torch.addcmul,
    "addcdiv": torch.addcdiv,
}


@pytest.mark.parametrize("count", [5, 300])
@pytest.mark.parametrize("name", FORMULAS)
def test_out_of_formulas(name: str, count: int) -> None:
    function = FORMULAS[name]
    operands = [_tensor(count, seed=k) for k in range(3)]
    expected = function(*operands)
    targets = {
        "new": torch.empty_like(expected),
        "other terms": _tensor(count, terms=3),
        "fewer terms": _tensor(count, terms=1),
        "another dtype": _tensor(count, dtype=torch.float32),
        "not contiguous": _tensor(count, 2)[:, 0],
    }
    for what, out in targets.items():
        before = out._version
        assert function(*operands, out=out) is out
        assert out._version > before
        _same(out, _tensor(count, terms=out.terms, dtype=out.dtype).copy_(expected), what)
    for k in range(3):
        given = [x.clone() for x in operands]
        # The operand that is a number is no other one.
        if k < 2 or name != "lerp of a number":
            function(*given, out=given[k])
            _same(given[k], expected, f"operand {k}")
    one = operands[0].clone()
    expected = function(one, one, one)
    function(one, one, one, out=one)
    _same(one, expected, "all of them")


@pytest.mark.parametrize("count", [5, 300])
def test_memory_shared_in_part_is_refused_as_torch_does(count: int) -> None:
    for function in FORMULAS.values():
        for k in range(3):
            memory = _tensor(count + 1, seed=7)
            operands = [_tensor(count, seed=j) for j in range(3)]
            operands[k], out, kept = memory[:-1], memory[1:], memory.clone()
            # The operand that is a number is no other one.
            if k < 2 or function is not FORMULAS["lerp of a number"]:
                with pytest.raises(RuntimeError, match="refer to a single memory location"):
                    function(*operands, out=out)
                _same(memory, kept, "nothing was written")
    memory = _tensor(count + 1, seed=7)
    for call in (
        lambda x, y: x.lerp_(y, 0.5),
        lambda x, y: x.addcmul_(y, y),
        lambda x, y: x.pow_(y),
        lambda x, y: x.atan2_(y),
    ):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            call(memory[1:], memory[:-1])


def test_in_place() -> None:
    x, a, b = (_tensor(5, seed=k) for k in range(3))
    for call, expected in (
        (lambda t: t.lerp_(a, 0.5), torch.lerp(x, a, 0.5)),
        (lambda t: t.lerp_(a, b), torch.lerp(x, a, b)),
        (lambda t: t.addcmul_(a, b), torch.addcmul(x, a, b)),
        (lambda t: t.addcmul_(a, b, value=3), torch.addcmul(x, a, b, value=3)),
        (lambda t: t.addcdiv_(t, b), torch.addcdiv(x, x, b)),
        (lambda t: t.addcdiv_(a, b.components[0]), torch.addcdiv(x, a, b.components[0])),
    ):
        target = x.clone()
        assert call(target) is target
        _same(target, expected, "in place")


def test_what_does_not_fit_is_said_as_before() -> None:
    x, a = _tensor(5), _tensor(5, seed=2)
    kept = x.clone()
    for count in (4, 6):
        for function in (torch.addcmul, torch.addcdiv, torch.lerp):
            with pytest.warns(UserWarning, match="was resized since it had shape"):
                out = function(x, a, a, out=_tensor(count))
            _same(out, function(x, a, a), "another shape")
    with pytest.raises((RuntimeError, NotImplementedError), match="out"):
        torch.addcmul(x, a, a, out=torch.empty(5, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.addcmul(x, a, _tensor(4), out=x)
    with pytest.raises(RuntimeError, match="mm"):
        torch.mm(_tensor(3, 3), _tensor(3), out=_tensor(3))
    _same(x, kept, "nothing was written")


def test_recorded_watched_and_inferred() -> None:
    x, a = _tensor(5), _tensor(5, seed=2)
    slope = x.clone().requires_grad_()
    for function in (torch.addcmul, torch.addcdiv, torch.lerp):
        with pytest.raises(RuntimeError, match="out="):
            function(slope, a, a, out=torch.empty_like(a))
        with pytest.raises(RuntimeError, match="out="):
            function(x, a, a, out=torch.empty_like(a).requires_grad_())
        expected = function(x, a, a)
        with torch.no_grad():
            out = torch.empty_like(a)
            _same(function(slope, a, a, out=out), expected, "without a derivative")
        mode, out = Seen(), torch.empty_like(a)
        with mode:
            function(x, a, a, out=out)
        assert any("mcf" in str(f) for f in mode.seen)
        _same(out, expected, "under a mode")
        with torch.inference_mode():
            out = torch.empty_like(a)
            _same(function(x, a, a, out=out), expected, "in inference mode")
    leaf = x.clone().requires_grad_()
    y = (leaf * 1).lerp_(a, 0.25)
    y.sum().backward()
    assert leaf.grad.to_plain().tolist() == [0.75] * 5
    with pytest.warns(UserWarning, match="batching rule"):
        got = torch.func.vmap(lambda t, u: t.clone().addcmul_(u, u))(x[:, None], a[:, None])
    _same(got, torch.addcmul(x, a, a)[:, None], "vmap")


def test_a_product_written_over_what_a_derivative_keeps() -> None:
    leaf: Any = mcf.tensor([[1.5, 2.5], [0.5, 1.0]]).requires_grad_()
    kept: Any = mcf.tensor([[2.0, 4.0], [1.0, 3.0]])
    y = leaf @ kept
    torch.matmul(kept.clone(), kept.clone(), out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    square = _tensor(3, 3)
    expected = square @ square.T
    torch.mm(square, square.T, out=square)
    _same(square, expected, "both operands")
