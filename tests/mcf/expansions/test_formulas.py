"""Exact: formulas and matrix products by plan have the bits of their operations one by one.

Caught mutants: operands exchanged; a number of the formula rounded to other terms than its operand
has, or rounded where it is compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import fused_formulas
from mcf.expansions.launch.fused_formulas import MANY
from mcf.expansions.launch.matrices import multiplied
from mcf.expansions.ops.arithmetic import division
from mcf.kernels.operators import LT, MUL, SUB, WHERE
from mcf.reductions.products import matmul
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def _tensor(*shape: int, seed: int = 1, terms: int = 2) -> Any:
    count = torch.Size(shape).numel()
    flat = hard(torch.float64, terms, max(8, count), seed)
    return mcf.MCFTensor([c[:count].reshape(shape).clone() for c in flat])


def _limited(o: Any, x: Any, y: Any, most: Any) -> Any:
    d = o(SUB, x, y)
    return o(WHERE, o(LT, d, most), o(MUL, d, 2), d)


@pytest.mark.parametrize("count", [4, pytest.param(MANY, marks=pytest.mark.slow)])
def test_numbers_are_those_beside_each_operation(count: int) -> None:
    """0.1 is three components of float32, and not the pair next to it."""
    near = mcf.tensor([0.1] * count, dtype=torch.float32, terms=2)
    assert not bool((near == 0.1).any())
    zero = torch.zeros_like(near)
    got = fused_formulas.composed(_limited, near, zero, 0.1)
    expected = _limited(fused_formulas._apply, near, zero, 0.1)
    assert_all_same_bits(got.components, expected.components)
    x, y = (mcf.tensor([3.0] * count, dtype=torch.float32, terms=k) for k in (1, 2))
    for a, b in ((x, y), (y, x)):
        assert_all_same_bits(torch.lerp(a, b, 0.1).components, (a + 0.1 * (b - a)).components)


def test_functions_of_torch_are_their_formulas() -> None:
    x, y, z = (_tensor(24, seed=seed) for seed in (1, 2, 3))
    pairs = {
        "addcmul": (torch.addcmul(x, y, z, value=0.1), x + y * z * 0.1),
        "one pass": (torch.addcmul(_tensor(600), _tensor(600, seed=2), x[0]),
                     _tensor(600) + _tensor(600, seed=2) * x[0]),
        "addcdiv": (torch.addcdiv(x, y, z, value=0.1), x + y * 0.1 / z),
        "in place": (x.clone().addcmul_(y, y), x + y * y),
        "lerp": (torch.lerp(x, y, z), x + z * (y - x)),
        "add": (torch.add(x, y, alpha=0.1), x + y * 0.1),
        "sub": (torch.sub(x, y, alpha=3), x - y * 3),
        "quotient": (2 / x, x.reciprocal() * 2),
        "power": (x**-1, x.reciprocal() * 1),
        "frac": (x.frac(), x - x.trunc()),
        "linear": (torch.nn.functional.linear(x[:6], _tensor(3, 6), x[:3]),
                   _tensor(3, 6) @ x[:6] + x[:3]),
    }  # fmt: skip
    assert division._without_whole(fused_formulas._apply, x) is not None
    for name, (got, expected) in pairs.items():
        assert_all_same_bits(got.components, expected.components, name)


@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 7), (7, 3)), ((40, 3), (3, 2)), ((4, 6), (6,)), ((6,), (6, 4)), ((3, 2, 5), (3, 5, 4))],
)
def test_few_products_have_the_bits_of_many(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = _tensor(*left), _tensor(*right, seed=2)
    got = multiplied(x, y)
    assert got is not None
    assert_all_same_bits(got.components, matmul(x.components, y.components), f"{left} {right}")
    across = multiplied(_tensor(*left[::-1]).permute(*reversed(range(len(left)))), y)
    assert len(left) > 2 or across is not None
    assert_all_same_bits((x @ y).components, got.components, "by torch")
    with pytest.raises((RuntimeError, ValueError)):
        x @ y.new_zeros(11, 3)
