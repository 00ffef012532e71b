"""Every executor, layout and number of threads gives the same bits.

Contract: after any number of steps all parameters and states have the same bits on the torch
reference, on Numba and in Triton's interpreter, for every precision, arithmetic and dtype, on
shapes 0, 1, odd, 0-dim, larger than any executor's block, and on sliced, transposed and expanded
tensors; with one thread or two; and whatever other tensors the step holds. Two arithmetics take 100
steps; the others 12 on Numba and 2 in the interpreter, which is slow, and 100 under marker `slow`.
Large tensors, whose cuts are the same at every step, take 2.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.kernels.layouts import SLAB
from mcf.kernels.numba.cpu import ITEM, SERIAL
from mcf.kernels.torch.reference import BLOCK as TORCH_BLOCK
from mcf.optim import AdamW
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, FULL, Case, cases
from tests.optim.coded_moments import PAIRS as CODED
from tests.optim.coded_moments import RULES
from tests.optim.helpers import assert_same, parameter, random, stored
from tests.optim.variants import (
    COMPOSED,
    RANDOM,
    RECENT_RULES,
    VARIANTS,
    Variant,
    named,
    pairs,
    row_or_column,
)

ADAMW = everyday(cases() + FULL, lambda case: row_or_column(named("adamw"), case))
# fp16 arithmetic needs an eps that it can hold.
OPTIONS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}


LARGE_CASES = [
    Case("plus", BF16, BF16),
    Case("master", BF16, FP32),
    pytest.param(Case("plus", FP64, FP32), marks=pytest.mark.slow),
]

# Each kernel is compiled: by default one arithmetic of each rule, under marker `slow` all.
# Of adam-decoupled they are AdamW's, bit for bit (test_state_dict.py).
_OTHERS = [v for v in VARIANTS if v.name not in ("adamw", "adam-decoupled")]
_FREE = RECENT_RULES[2]
OTHER_RULES = everyday(
    pairs([*_OTHERS, *RECENT_RULES], "cases", "full"),
    lambda v, case: (
        (v, case) == (_FREE, _FREE.few()[0]) if v in RECENT_RULES else row_or_column(v, case)
    ),
)


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the GPU executor needs triton, which is for Linux only",
)


Layout = tuple[Tensor, Callable[[int], Tensor]]


def dense(shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
    """A contiguous tensor and its gradient at each step."""
    seed = sum(shape) + len(shape)
    return random(shape, dtype, seed), lambda t: random(shape, dtype, seed + 97 * t, 0.1)


def awkward(dtype: torch.dtype) -> list[Layout]:
    """Shapes 0, 1, odd and 0-dim; a sliced, a transposed and a permuted tensor; odd gradients."""
    transposed = random((6, 11), dtype, 2).t()
    permuted = random((4, 5, 6), dtype, 12).permute(2, 0, 1)[::2]
    return [
        dense((0,), dtype),
        dense((1,), dtype),
        dense((), dtype),
        dense((7, 13), dtype),
        (random((9, 14), dtype, 1)[1:, ::2], lambda t: random((8, 7), dtype, 3 + 97 * t, 0.1)),
        (transposed, lambda t: random((7, 11, 6), dtype, 4 + 97 * t, 0.1)[3]),
        (random((5, 7), dtype, 8), lambda t: random((7,), dtype, 9 + 97 * t, 0.1).expand(5, 7)),
        (permuted, lambda t: random((4, 5, 6), dtype, 13 + 97 * t, 0.1).permute(2, 0, 1)[::2]),
    ]


def large(dtype: torch.dtype) -> list[Layout]:
    """Across the blocks of the torch and Numba executors and the slabs of strided ones."""
    size = max(TORCH_BLOCK["cpu"], ITEM, SLAB) + 3
    strided = random((2, size), dtype, 5)[:, ::2]
    return [
        dense((size,), dtype),
        (strided, lambda t: random(strided.shape, dtype, 6 + 97 * t, 0.1)),
        (random((3, size), dtype, 7)[1:], lambda t: random((), dtype, 8 + t).expand(2, size)),
    ]


def a_block_and_more(dtype: torch.dtype) -> list[Layout]:
    """Tensors for the interpreter: across a block of Triton's kernels, and some awkward ones."""
    return [dense((1024 + 5,), dtype), *(awkward(dtype)[k] for k in (0, 2, 4, 6))]


def train(
    executor: str, make: Any, steps: int, made: list[Layout], **options: Any
) -> dict[str, Tensor]:
    """All stored tensors after some steps."""
    params = [Parameter(p.clone(memory_format=torch.preserve_format)) for p, _ in made]
    # clone() packs what is sliced; these keep their holes.
    for p, (original, _) in zip(params, made, strict=True):
        if p.stride() != original.stride():
            p.data = torch.empty_strided(original.shape, original.stride(), dtype=p.dtype).copy_(
                original
            )
        assert p.stride() == original.stride()
    optimizer = make(params, **options)
    with mcf.executor(executor):
        for t in range(steps):
            for p, (_, gradient) in zip(params, made, strict=True):
                p.grad = gradient(t)
            optimizer.step()
    return stored(optimizer)


def compare(executor: str, make: Any, steps: int, made: list[Layout], **options: Any) -> None:
    expected = train("torch", make, steps, made, **options)
    assert_same(train(executor, make, steps, made, **options), expected)


# What a step does depends on nothing but what is stored and its number, so that few are enough for
# all but two; under marker `slow` every case takes 100 (of the other rules on Numba, which compile
# a loop each, a third do; the rest is nightly).
FEW = 12
LONG = (Case("plus", BF16, FP32), Case("plus", BF16, BF16))


def counts(case: Case, count: int) -> int:
    return 100 if case in LONG else count


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("count", [FEW, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ADAMW, ids=str)
def test_numba_is_torch_adamw(case: Case, count: int) -> None:
    steps = counts(case, count)
    compare("numba", AdamW, steps, awkward(case.dtype), **OPTIONS, **case.options())


@pytest.mark.filterwarnings("ignore:.* of the sampled updates")
@pytest.mark.sampled(every=12, slow=3)
@pytest.mark.parametrize("count", [FEW, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("variant", "case"), OTHER_RULES, ids=str)
def test_numba_is_torch_other_rules(variant: Variant, case: Case, count: int) -> None:
    options = {**variant.options, "maximize": True, **case.options()}
    compare("numba", variant.make, count, awkward(case.dtype), **options)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", LARGE_CASES, ids=str)
def test_numba_is_torch_large(case: Case) -> None:
    compare("numba", AdamW, 2, large(case.dtype), **OPTIONS, **case.options())


@pytest.mark.sampled(every=18)
@needs_triton
@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ADAMW, ids=str)
def test_triton_is_torch_adamw(case: Case, count: int) -> None:
    compare("triton", AdamW, count, a_block_and_more(case.dtype), **OPTIONS, **case.options())


@pytest.mark.sampled(every=6)
@needs_triton
@pytest.mark.parametrize(("variant", "case"), OTHER_RULES, ids=str)
def test_triton_is_torch_other_rules(variant: Variant, case: Case) -> None:
    # RAdam's second formula begins with the sixth step.
    count = 7 if variant.rule == "radam" else 2
    options = {**variant.options, **case.options()}
    compare("triton", variant.make, count, a_block_and_more(case.dtype)[:3], **options)


# Storages and roundings whose kernels are others; a rule with codes, or AdamW.
STORED: dict[str, tuple[Any, dict[str, Any]]] = {
    **{str(p): (AdamW, {"precision": p}) for p in COMPOSED},
    **{"-".join(o.values()): (AdamW, o) for o in RANDOM},
    **{f"{rule}-{p}": (RULES[rule], {"precision": p}) for rule, p in CODED},
}
# With metrics it is another kernel.
for _name in ("plus-stochastic", "8bit"):
    STORED[f"{_name}-metrics"] = (AdamW, {**STORED[_name][1], "track_metrics": True})
# By default a few, since each compiles a loop or runs in the interpreter.
_FEW = {("numba", n) for n in ("pair_float32_pair", "stochastic", "stable-8bit")}
_FEW |= {("numba", "plus-stochastic-metrics"), ("triton", "adan-4bit"), ("triton", "ademamix-8bit")}
_FEW |= {("triton", n) for n in ("pair_float32_pair", "stochastic", "sgd-8bit", "lion-8bit")}
_FEW |= {("triton", "muon-8bit")}


@pytest.mark.parametrize(
    ("executor", "name"),
    everyday(itertools.product(("numba", "triton"), STORED), lambda *x: x in _FEW),
)
def test_storages_have_the_bits_of_torch(executor: str, name: str) -> None:
    if executor == "triton":
        pytest.importorskip("triton", reason="the GPU executor: triton is for Linux only")
    make, options = STORED[name]
    made = [*awkward(BF16), dense((5, 8), BF16)]
    if "muon" in name:
        # One matrix, whose product's bits follow its number of threads.
        made = [dense((3, 41), BF16)]
    compare(executor, make, 3, made, **options)


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("track_metrics", [False, True])
def test_threads(track_metrics: bool) -> None:
    # Two threads share tensors above SERIAL, one runs the rest; cuts are not at tensors' ends.
    sizes = [SERIAL + 1, 3, 5 * ITEM + 7, 0, 2 * SERIAL]
    before = torch.get_num_threads()
    results, metrics = [], []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            params = [parameter(n, BF16, n) for n in sizes]
            optimizer = AdamW(params, **OPTIONS, track_metrics=track_metrics)
            with mcf.executor("numba"):
                for t in range(3):
                    for p in params:
                        p.grad = random(p.shape, BF16, p.numel() + t + 1, 0.1)
                    optimizer.step()
            results.append(stored(optimizer))
            if track_metrics:
                metrics.append(optimizer.metrics())
    finally:
        torch.set_num_threads(before)
    assert_same(*results)
    assert metrics[:1] == metrics[1:]


@pytest.mark.parametrize("executor", [pytest.param("torch", marks=pytest.mark.slow), "numba"])
def test_other_tensors_of_the_step_change_nothing(executor: str) -> None:
    def train_one(others: list[Tensor], first: bool) -> dict[str, Tensor]:
        p = parameter((17, 5), BF16, 1)
        params = [p, *others] if first else [*others, p]
        optimizer = AdamW(params, **OPTIONS)
        with mcf.executor(executor):
            for t in range(4):
                for other in others:
                    other.grad = random(other.shape, other.dtype, t + 50, 0.1)
                p.grad = random((17, 5), BF16, t + 1, 0.1)
                optimizer.step()
        return {"param": p.detach(), **optimizer.state[p]}

    alone = train_one([], first=True)
    others = [parameter(s, d, 2) for s in (0, 1) for d in (BF16, FP16, FP32)]
    others.append(parameter(70_000, BF16, 2))
    others[2].data[:] = torch.nan
    for together in (train_one(others, first=True), train_one(others, first=False)):
        for name, tensor in alone.items():
            assert_same_bits(together[name], tensor, name)
