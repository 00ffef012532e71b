"""Parameters that are expansion tensors step as a plain parameter and a low word do."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.nn
from mcf.optim import (
    SGD,
    AdamW,
    GradientAccumulator,
    GradientRelease,
    Lion,
    Muon,
    Precision,
    collage,
    convert,
)
from mcf.optim.step.bucket import new_state
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import random

pytestmark = pytest.mark.usefixtures("on_torch")

SHAPES = [(7, 13), (), (300,), (0,)]


def pair(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> mcf.MCFTensor:
    """Seeded normal numbers to twice the bits of a format."""
    x = random(shape, FP64, seed)
    high = x.to(dtype)
    return mcf.from_components([high, (x - high.double()).to(dtype)])


def expanded(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter(pair(s, dtype, k)) for k, s in enumerate(SHAPES)]  # type: ignore[arg-type]


def seeded_steps(optimizer: Any, count: int, dtype: torch.dtype, start: int = 0) -> None:
    """Steps on gradients of two components, for expansions, or as an accumulator hands them in."""
    for t in range(start, start + count):
        optimizer._grad_low = {}
        for k, p in enumerate(q for g in optimizer.param_groups for q in g["params"]):
            grad = pair(tuple(p.shape), dtype, 1000 + 10 * t + k)
            if isinstance(p, mcf.MCFTensor):
                p.grad = grad
            else:
                p.grad, optimizer._grad_low[p] = (c.clone() for c in grad.components)
        optimizer.step()
        optimizer._grad_low = {}


PRECISIONS: list[Any] = [
    {"precision": "light"},
    {"precision": "plus"},
    {"precision": "kahan"},
    {"precision": "light", "low": "stochastic"},
    {"precision": Precision("pair", "ratio8", "ue6m2")},
    {"precision": "plus", "compute_dtype": BF16},
]


def assert_equal(one: Any, other: Any) -> None:
    """The expansions of one optimizer are the parameters and low words of another."""
    rows = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    for p, q in rows:
        state = dict(other.state[q])
        low = state.pop("param_lo")
        assert_same_bits(p.detach().components[0], q.detach())
        assert_same_bits(p.detach().components[1], low)
        assert one.state[p].keys() == state.keys()
        for name, t in state.items():
            assert_same_bits(one.state[p][name], t, name)


# On torch each of them; elsewhere the one with random bits, and one in bf16's arithmetic.
COMPILED = everyday(
    itertools.product(EXECUTORS, PRECISIONS),
    lambda executor, options: executor == "torch" or options in (PRECISIONS[3], PRECISIONS[5]),
    id=lambda executor, options: f"{executor}-{options}",
)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("executor", "options"), COMPILED)
def test_steps_are_those_of_a_parameter_and_its_low_word(
    executor: str, options: dict[str, Any]
) -> None:
    with mcf.executor(executor):
        mine = AdamW(expanded(BF16), 1e-2, **options)
        theirs = AdamW([Parameter(p.detach().components[0].clone()) for p in expanded(BF16)],
                       1e-2, **options)  # fmt: skip
        # Their low words are states; a step of rate 0 on no gradient makes them.
        for p, q in zip(theirs.param_groups[0]["params"], expanded(BF16), strict=True):
            arith = theirs._arithmetic(theirs.param_groups[0], p, "")
            (group,) = theirs.param_groups
            theirs.state[p] = new_state(theirs._rule(group), arith, p, capturable=False)
            theirs.state[p]["param_lo"].copy_(q.detach().components[1])
        for optimizer in (mine, theirs):
            seeded_steps(optimizer, 3, BF16)
        assert_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_checkpoints_copies_and_zero_grad(dtype: torch.dtype) -> None:
    with mcf.executor("torch"):
        first = AdamW(expanded(dtype), 1e-2, precision="plus")
        seeded_steps(first, 2, dtype)
        second = copy.deepcopy(first)
        file = io.BytesIO()
        torch.save(
            [first.state_dict(), [p.detach() for p in first.param_groups[0]["params"]]], file
        )
        file.seek(0)
        state, weights = torch.load(file, weights_only=True)
        third = AdamW([Parameter(w) for w in weights], precision="plus")
        third.load_state_dict(state)
        for optimizer in (first, second, third):
            seeded_steps(optimizer, 2, dtype, start=5)
        for other in (second, third):
            for p, q in zip(*(o.param_groups[0]["params"] for o in (first, other)), strict=True):
                for a, b in zip(p.detach().components, q.detach().components, strict=True):
                    assert_same_bits(a, b)
        for to_none in (False, True):
            first.zero_grad(set_to_none=to_none)
            grads = [p.grad for p in first.param_groups[0]["params"]]
            assert all(g is None if to_none else (g == 0).all() for g in grads)


def test_autograd_sees_that_a_parameter_has_changed() -> None:
    (weight,) = [Parameter(pair((3,), BF16, 0))]  # type: ignore[arg-type]
    optimizer = AdamW([weight], precision="light")
    loss = (weight * weight).sum()
    weight.grad = pair((3,), BF16, 1)
    components = [c.data_ptr() for c in weight.components]
    versions = [c._version for c in weight.components]
    optimizer.step()
    assert [c.data_ptr() for c in weight.components] == components, "in place"
    assert all(c._version > v for c, v in zip(weight.components, versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_norm_of_gradients_is_that_of_their_values() -> None:
    found = []
    for scale in (1.0, 1e-3):
        mine = AdamW(expanded(BF16), 1e-2, precision="light", max_grad_norm=scale * 1e3)
        seeded_steps(mine, 1, BF16)
        found.append(mine.grad_norm)
    values = [p.grad.to_plain(FP64) for p in mine.param_groups[0]["params"]]
    expected = torch.cat([v.flatten() for v in values]).norm()
    assert found[0] is not None
    # Up to float64's rounding of torch's sum.
    assert torch.allclose(found[0], expected, rtol=1e-14, atol=0)
    assert found[0] == found[1]
    bad = AdamW(expanded(BF16), precision="light", nonfinite="raise")
    for p in bad.param_groups[0]["params"]:
        p.grad = pair(tuple(p.shape), BF16, 3)
    bad.param_groups[0]["params"][2].grad.components[0][7] = torch.nan
    with pytest.raises(FloatingPointError, match=r"params\[2\]"):
        bad.step()


def test_a_plain_gradient_and_gradient_release() -> None:
    """Of a float32 gradient nothing is rounded that float32 registers hold."""
    results = []
    for grad in (pair((40,), BF16, 3), pair((40,), BF16, 3).to_plain(FP32)):
        weight = Parameter(pair((40,), BF16, 0))  # type: ignore[arg-type]
        optimizer = AdamW([weight], precision="light")
        if hasattr(weight, "grad_dtype"):
            weight.grad_dtype = grad.dtype
        elif grad.dtype == FP32:
            pytest.skip("before torch 2.10 gradients have the dtype of their tensor")
        weight.grad = grad
        optimizer.step()
        results.append(weight.detach().components)
    released = Parameter(pair((40,), BF16, 0))  # type: ignore[arg-type]
    release = GradientRelease(AdamW([released], precision="light"))
    (released * pair((40,), BF16, 3)).sum().backward()
    release.remove()
    for components in (results[1], released.detach().components):
        for a, b in zip(components, results[0], strict=True):
            assert_same_bits(a, b)


def test_an_overflow_is_an_infinity() -> None:
    def two(*high: float) -> mcf.MCFTensor:
        return mcf.from_components([torch.tensor(high).to(BF16), torch.zeros(2, dtype=BF16)])

    weight = Parameter(two(3e38, 1.0))  # type: ignore[arg-type]
    optimizer = SGD([weight], 1.0, precision="light")
    weight.grad = two(-3e38, 0.0)
    optimizer.step()
    assert weight.detach().components[0].tolist() == [torch.inf, 1.0]
    assert weight.detach().components[1].tolist() == [0.0, 0.0]


REFUSED: list[tuple[Any, str]] = [
    (lambda: AdamW([Parameter(mcf.ones(3, terms=2))]), "2 components of torch.float32; allowed"),
    (lambda: AdamW([Parameter(mcf.ones(3, terms=3, dtype=BF16))]), "3 components of torch.bfl"),
    (lambda: AdamW(expanded(BF16), precision="master"), "precision='master' with params.0. of"),
    (lambda: Muon(expanded(BF16)[:1]), "allowed are plain tensors"),
    (lambda: collage(torch.optim.SGD, expanded(BF16), lr=1.0), "allowed are plain tensors"),
    (lambda: convert(AdamW(expanded(BF16)), "light"), "conversion knows plain tensors only"),
    (lambda: GradientAccumulator(AdamW(expanded(BF16))), "allowed are plain tensors"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_refused(make: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_gradients_that_do_not_fit() -> None:
    weight = Parameter(pair((3,), BF16, 0))  # type: ignore[arg-type]
    optimizer = Lion([weight], precision="light")
    before = [c.clone() for c in weight.components]
    weight.grad = mcf.ones(3, terms=3, dtype=BF16)
    with pytest.raises(TypeError, match="an expansion of 3 components of"):
        optimizer.step()
    for a, b in zip(weight.components, before, strict=True):
        assert_same_bits(a, b)
