"""Exact: operands of several shapes have the bits of copies of one shape.

Caught mutants: the index of another operand; elements of another size moved; the order of operands
that the kernel takes the other way round; copies kept from the call before.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import elementwise
from tests.helpers import assert_alike, assert_all_same_bits
from tests.mcf.expansions.inputs import hard

SHAPES = [((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((3, 4), ())]


def _tensor(seed: int, shape: tuple[int, ...], dtype: torch.dtype, terms: int) -> Any:
    count = torch.Size(shape).numel()
    parts = hard(dtype, terms, max(48, count), seed)
    return mcf.MCFTensor([c[:count].reshape(shape).clone() for c in parts])


# What others compile anyway; the rest is kernels of their own.
_KINDS = [(torch.float64, (2, 2))]
_OTHERS = [(d, t) for d in (torch.float64, torch.float32, torch.bfloat16)
           for t in ((2, 2), (1, 3), (3, 1)) if (d, t) not in _KINDS]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "terms"), [*_KINDS, *(pytest.param(*k, marks=pytest.mark.slow) for k in _OTHERS)]
)
def test_results_of_several_shapes(dtype: torch.dtype, terms: tuple[int, int]) -> None:
    for a, b in SHAPES:
        size = torch.broadcast_shapes(a, b)
        for seed in (1, 3):
            x, y = _tensor(seed, a, dtype, terms[0]), _tensor(seed + 1, b, dtype, terms[1])
            if len(a) > 1 and seed == 3:
                # The same numbers elsewhere: not contiguous.
                x = x.transpose(0, -1).contiguous().transpose(0, -1)
            wide = [v.expand(size).contiguous() for v in (x, y)]
            for function in (torch.add, torch.sub, torch.mul):
                got, expected = function(x, y), function(*wide)
                assert_all_same_bits(got.components, expected.components, f"{a} {b}")
            assert torch.equal(x < y, wide[0] < wide[1])


def test_conditions_and_plain_tensors() -> None:
    v, a = _tensor(1, (4,), torch.float64, 2), _tensor(2, (3, 4), torch.float64, 2)
    rows, plain = torch.tensor([[True], [False], [True]]), torch.arange(3.0).double()[:, None]
    for condition in (rows, ~rows, torch.tensor([True, False, False, True])):
        wide = condition.expand(3, 4).contiguous()
        for x, y in ((v, a), (a, v), (v, 0.1), (0.0, a), (a, a)):
            whole = [t.expand(3, 4).contiguous() if torch.is_tensor(t) else t for t in (x, y)]
            got, expected = torch.where(condition, x, y), torch.where(wide, *whole)
            if got.shape == expected.shape:
                assert_alike(got, expected, "where")
    got, expected = v * plain, v.expand(3, 4).contiguous() * plain.expand(3, 4).contiguous()
    assert_alike(got, expected, "plain")


def test_many_elements_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _tensor(1, (3, 5), torch.float64, 2), _tensor(2, (5,), torch.float64, 2)
    expected = x * y
    monkeypatch.setattr(elementwise, "_KEPT", 4)
    assert_alike(x * y, expected, "as copies")
    with torch.inference_mode():
        inside = x * y
    assert_all_same_bits(inside.components, expected.components, "in inference mode")
    assert inside.is_inference()
    assert_alike(x * y, expected, "after that")


@pytest.mark.slow
def test_functions_of_several_shapes() -> None:
    """Mutants: a number beside others as it is, which stands for the first element alone; an
    operand that is written to before its copy is made."""
    for a, b in [*SHAPES, ((1,), ()), ((), (3, 4)), ((), ()), ((1, 1), (1,)), ((33, 50), ())]:
        size = torch.broadcast_shapes(a, b)
        x, y = _tensor(1, a, torch.float64, 2), _tensor(2, b, torch.float64, 2)
        wide = [v.expand(size).contiguous() for v in (x, y)]
        for function in (torch.hypot, torch.atan2):
            expected = function(*wide)
            for _ in range(2):
                assert_alike(function(x, y), expected, f"{a} {b}")
            target = torch.empty_like(expected)
            assert function(x, y, out=target) is target
            assert_alike(target, expected, f"{a} {b}, out")
            if x.shape == size:
                target = x.clone()
                getattr(target, function.__name__ + "_")(y)
                assert_alike(target, expected, f"{a} {b}, in place")
        z = x.detach().clone().requires_grad_()
        torch.hypot(z, y).sum().backward()
        assert z.grad is not None
        assert z.grad.shape == x.shape
    with pytest.raises((RuntimeError, ValueError)):
        torch.hypot(torch.ones(3) * x.new_ones(3), y.new_ones(4))
