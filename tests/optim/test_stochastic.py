"""Precisions that round at random: the same bits wherever a step runs, and no update is lost.

Contract: the random bits of an element are a function of (seed, step, the parameter's place, the
element's index in the whole parameter), so the executor, the layout, the other tensors, a resume
from a checkpoint and a cut into shards change nothing. 20,000 updates of 1e-5 move a weight of 1 to
1.20, within the spread of a random walk, where Grow and Kahan in bf16 arithmetic stop at 1.0039,
and with float32 registers overshoot (1.224) or, for updates of 5e-6, stop at 1.002 and not 1.10.
By default a tenth of them is run, to 1.02.
"""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.optim import AdamW, CollageAdamW, set_index_offset
from tests.helpers import assert_same_bits, count_different
from tests.helpers.everyday import everyday
from tests.optim.helpers import (
    BF16,
    FP16,
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
)

RANDOM: list[dict[str, Any]] = [
    {"precision": "stochastic"},
    {"precision": "bf16_sr"},
    {"precision": "8bit"},
    {"precision": "4bit"},
    {"precision": "split8_8bit"},
    {"precision": "split8_sr"},
    {"precision": "split16_sr"},
    {"precision": "eco_stochastic"},
    {"precision": "kahan", "low": "stochastic"},
    {"precision": "light", "low": "stochastic"},
    {"precision": "plus", "low": "stochastic"},
]
each = pytest.mark.parametrize("options", RANDOM, ids=lambda o: "-".join(o.values()))


def layouts() -> list[Tensor]:
    transposed = random((6, 11), BF16, 2).t()
    sliced = random((9, 14), BF16, 1)[1:, ::2]
    return [random(s, BF16, 5) for s in ((0,), (), (7, 13), (1029,))] + [transposed, sliced]


def train(params: list[Tensor], steps: int = 5, **options: Any) -> dict[str, Tensor]:
    made = [Parameter(p.clone(memory_format=torch.preserve_format)) for p in params]
    optimizer = AdamW(made, 1e-2, weight_decay=0.1, **options)
    for t in range(steps):
        for k, p in enumerate(made):
            p.grad = random(p.shape, BF16, 1000 * t + k, 0.1)
        optimizer.step()
    return stored(optimizer)


# Kernels are compiled: the second moments of light and plus differ as without chance.
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    "options",
    everyday(RANDOM, lambda o: o["precision"] != "light"),
    ids=lambda o: "-".join(o.values()),
)
def test_executors_agree(options: dict[str, Any]) -> None:
    results = []
    for name in ("torch", "numba", "triton"):
        with mcf.executor(name):
            # With metrics it is another kernel, so that two of them stand for all.
            tracked = name == "numba" and options["precision"] in ("plus", "8bit")
            results.append(train(layouts(), track_metrics=tracked, **options))
    assert_same(results[1], results[0], "numba")
    assert_same(results[2], results[0], "triton")


@pytest.mark.sampled(every=3)
@each
def test_layout_does_not_matter(options: dict[str, Any]) -> None:
    found = train(layouts(), **options)
    assert_same(found, train([p.contiguous() for p in layouts()], **options))
    # Only the parameter's place counts, not what the others are.
    last = train([torch.zeros(1, dtype=BF16)] * 5 + layouts()[5:], **options)
    assert_same_bits(last["5.param"], found["5.param"])


@pytest.mark.sampled(every=3)
@each
def test_seed(options: dict[str, Any]) -> None:
    first, second = (train(layouts()[2:4], seed=s, **options) for s in (0, 1))
    again = train(layouts()[2:4], **options)
    assert_same(again, first)
    name = "1.param_lo" if "low" in options else "1.param"
    assert count_different(first[name], second[name]) > 20


@pytest.mark.sampled(every=3)
@each
def test_resume(options: dict[str, Any]) -> None:
    p = parameter((5, 100), BF16)
    optimizer = AdamW([p], 1e-3, seed=7, **options)

    def steps(o: AdamW, q: Tensor, first: int) -> None:
        for t in range(first, first + 3):
            q.grad = random((5, 100), BF16, t, 0.1)
            o.step()

    steps(optimizer, p, 0)
    file = io.BytesIO()
    torch.save({"weights": p.detach(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    q = Parameter(saved["weights"])
    other = AdamW([q], 1e-3, **options)
    other.load_state_dict(saved["optimizer"])
    assert other.param_groups[0]["seed"] == 7
    steps(optimizer, p, 3)
    steps(other, q, 3)
    assert_same(stored(other), stored(optimizer))


@pytest.mark.sampled(every=2)
@each
def test_shards_have_the_bits_of_the_whole(options: dict[str, Any]) -> None:
    start, rows = random((10, 33), BF16, 1), [0, 4, 7, 7, 10]
    whole = train([start], **options)

    def shard(a: int, b: int) -> dict[str, Tensor]:
        p = Parameter(start[a:b].clone())
        set_index_offset(p, 33 * a)
        optimizer = AdamW([p], 1e-2, weight_decay=0.1, **options)
        for t in range(5):
            p.grad = random(start.shape, BF16, 1000 * t, 0.1)[a:b]
            optimizer.step()
        return stored(optimizer)

    parts = [shard(a, b) for a, b in itertools.pairwise(rows)]
    for name, expected in whole.items():
        if expected.ndim:
            assert_same_bits(torch.cat([part[name] for part in parts]), expected, name)


@each
def test_copies_and_old_groups(options: dict[str, Any]) -> None:
    optimizer = AdamW([parameter(9, BF16)], seed=3, **options)
    assert copy.deepcopy(optimizer).param_groups[0]["seed"] == 3
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["seed"]
    other = AdamW([parameter(9, BF16)], seed=5, **options)
    other.load_state_dict(saved)
    assert other.param_groups[0]["seed"] == 0, "the default of checkpoints without one"


def test_refusals() -> None:
    p = parameter(3, BF16)
    with pytest.raises(ValueError, match="'stochastic' with precision='plain', which stores no"):
        AdamW([p], precision="plain", low="stochastic")
    with pytest.raises(ValueError, match="low must be one of 'nearest', 'stochastic', got 'up'"):
        AdamW([p], low="up")
    with pytest.raises(TypeError, match="seed must be an int, got float"):
        AdamW([p], seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'light_stochastic' with .*float16"):
        AdamW([parameter(3, FP16)], precision="light", low="stochastic")
    with pytest.raises(ValueError, match=r"compute_dtype=torch.bfloat16 with precision='plus_st"):
        CollageAdamW([p], low="stochastic", compute_dtype=BF16)
    state = AdamW([p], low="stochastic").state_dict()
    with pytest.raises(ValueError, match="low='stochastic'; the optimizer has low='nearest'"):
        AdamW([p]).load_state_dict(state)
    for wrong in (-1, 2**53):
        with pytest.raises(ValueError, match=f"from 0 and below .*got {wrong}"):
            set_index_offset(p, wrong)
    with pytest.raises(TypeError, match="offset must be an int, got float"):
        set_index_offset(p, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_copied_optimizer_keeps_the_places_of_its_parameters(wrapped: bool) -> None:
    shard = parameter(40, BF16)
    mcf.optim.set_index_offset(shard, 1000)
    options: dict[str, Any] = {"precision": "stochastic", "lr": 0.01}
    first: Any = (
        mcf.optim.collage(torch.optim.AdamW, [shard], **options)
        if wrapped
        else AdamW([shard], **options)
    )
    second = copy.deepcopy(first)
    # A model and its optimizer that are copied together stay together.
    third, weights = copy.deepcopy((first, [shard]))
    assert next(parameters(third)) is weights[0]
    for optimizer in (first, second, third):
        steps(optimizer, 3)
    assert_same(stored(second), stored(first))
    assert_same(stored(third), stored(first))
