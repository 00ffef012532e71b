"""Torch's own optimizers with their states in blocks of 8-bit numbers.

Mutants these tests catch: a state that is read without its scale, a second moment that is not
stored by its root and becomes 0, exponents that reach the class as a state of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, Precision, collage, set_index_offset
from mcf.optim.extras.wrap import SECOND_MOMENTS
from mcf.optim.storage import blocks as eight_bits
from tests.helpers import assert_same_bits
from tests.optim.eight_bits_cases import E5M2_MIXED, PAIRS
from tests.optim.helpers import BF16, FP32, parameter, parameters, random
from tests.optim.test_plugin import on_each_class, params, run


@pytest.fixture(autouse=True)
def reference_executor():
    with mcf.executor("torch"):
        yield


@pytest.mark.parametrize("precision", [PAIRS, E5M2_MIXED], ids=str)
@on_each_class
def test_each_step_is_that_of_float32_states(
    make: Any, options: dict[str, Any], precision: Precision
) -> None:
    """From what 8 bits hold, and then stored in them again."""
    mine = collage(make, params(BF16), precision=precision, lr=0.01, **options)
    wide = Precision("pair", "float32", "float32")
    other = collage(make, params(BF16), precision=wide, lr=0.01, **options)
    for t in range(3):
        for optimizer in (mine, other):
            run(optimizer, BF16, 1, start=t)
        for p, q in zip(parameters(mine), parameters(other), strict=True):
            state, expected = mine.state[p], other.state[q]
            assert_same_bits(p, q)
            assert_same_bits(state["param_lo"], expected["param_lo"])
            moments = [
                n for n, x in expected.items()
                if isinstance(x, torch.Tensor) and x.dtype == FP32 and x.shape == p.shape
            ]  # fmt: skip
            assert {f"{n}_exponent" for n in moments} == {n for n in state if "exponent" in n}
            for name in moments:
                held = eight_bits.parts(name, state)
                fresh = {n: torch.zeros_like(x) for n, x in held.items()}
                eight_bits.fill(name, fresh, expected[name])
                for part, codes in held.items():
                    assert_same_bits(codes, fresh[part], part)
                expected[name] = eight_bits.read(name, state)


@pytest.mark.parametrize("make", [torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.RMSprop])
def test_second_moments_have_a_floor(make: Any) -> None:
    """As ours: of one that is not 0 the smallest number is stored, and no step explodes."""
    weight = Parameter(torch.zeros(128, dtype=BF16))
    optimizer = collage(make, [weight], precision=PAIRS, lr=0.01)
    weight.grad = torch.ones_like(weight)
    weight.grad[3] = 1e-6
    optimizer.step()
    found = [n for n in SECOND_MOMENTS if n in optimizer.state[weight]]
    assert found
    for name in found:
        assert (eight_bits.read(name, optimizer.state[weight]) > 0).all(), name


@pytest.mark.parametrize("kind", ["fp8", "fp8x2", "e5m2", "e5m2x2"])
def test_sgd_has_the_bits_of_ours(kind: str) -> None:
    # All but storing is exact: momentum 1/2, lr a power of two, small weights, and gradients of one
    # sign, whose momenta are never so small that their last bit is beyond the weight's in float32.
    chosen: Any = {"momentum": 0.5, "precision": Precision("pair", kind)}
    small = [[Parameter(p.detach() * 2.0**-5) for p in params(BF16)] for _ in range(2)]
    ours = SGD(small[0], 2.0**-7, **chosen)
    theirs = collage(torch.optim.SGD, small[1], lr=2.0**-7, **chosen)
    for t in range(20):
        for optimizer in (ours, theirs):
            for k, p in enumerate(parameters(optimizer)):
                eighths = random(p.shape, BF16, 100 * t + k).abs().mul(8).ceil()
                p.grad = eighths.clamp(1, 8) / 8
            optimizer.step()
    for p, q in zip(parameters(theirs), parameters(ours), strict=True):
        assert_same_bits(p, q)
        for name, held in ours.state[q].items():
            if name != "step":
                assert_same_bits(theirs.state[p][name], held, name)


def test_a_part_that_begins_inside_a_block_raises() -> None:
    weight = parameter(300, BF16)
    set_index_offset(weight, 100)
    with pytest.raises(ValueError, match=r"params\[0\].* begins at element 100 .* of 128"):
        collage(torch.optim.AdamW, [weight], precision=PAIRS)
