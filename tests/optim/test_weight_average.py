"""Averages of weights against exact arithmetic, and what is averaged of each precision.

Proven bounds, of one update of an average a by a weight w with c = 1 - decay: what the components
round, and the float32 registers' few roundings of c (w - a).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FORMATS
from mcf.optim import AdamW, WeightAverage
from mcf.optim.companions import weight_average
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from tests.helpers.executors import on_each_executor
from tests.optim.exact_rules import BITS, fixed, fixed_array
from tests.optim.helpers import BF16, FP16, FP32, FP64, assert_same, parameter, random, steps

pytestmark = pytest.mark.usefixtures("on_torch")

# Of the average: what its components round; and of c (|w| + |a|) what registers round.
STORED = {
    (BF16, 1): 2.0**-8, (FP16, 1): 2.0**-11, (FP32, 1): 2.0**-24,
    (BF16, 2): 2.0**-17, (FP16, 2): 2.0**-22, (FP32, 2): 2.0**-46, (FP64, 2): 2.0**-104,
}  # fmt: skip
REGISTERS = {torch.float32: 2.0**-22, torch.float64: 2.0**-51}


def spec(weights: Storage, stored: list[torch.dtype], kept: int, dtype: torch.dtype) -> Elementwise:
    formats = tuple(FORMATS[d] for d in stored)
    return weight_average.kernel(weights, formats, {1: SINGLE, 2: PAIR}[kept], FORMATS[dtype])


def exact(tensors: list[Tensor], k: int) -> Fraction:
    return sum((Fraction(t[k].item()) for t in tensors), Fraction(0))


def excess(made: Elementwise, kept: list[Tensor], weight: list[Tensor], c: float) -> float:
    """The largest error of one update, as a multiple of the bound."""
    before = [t.clone() for t in kept]
    registry.run(made, [[*kept, *weight]], torch.tensor([[c]], dtype=FP64))
    # The weight is a number of the registers.
    wide = FP64 if kept[0].dtype == FP64 else FP32
    share = Fraction(torch.tensor(c, dtype=FP64).to(wide).item())
    worst = 0.0
    for k in range(kept[0].numel()):
        a, w, found = exact(before, k), exact(weight, k), exact(kept, k)
        right = a + share * (w - a)
        bound = Fraction(STORED[kept[0].dtype, len(kept)]) * abs(right)
        bound += Fraction(REGISTERS[wide]) * share * (abs(w) + abs(a))
        # Where components underflow.
        bound += FORMATS[kept[0].dtype].min_subnormal
        worst = max(worst, float(abs(found - right) / bound))
    return worst


def pair(x: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    """A float64 tensor in components."""
    found = []
    for _ in range(count):
        found.append(x.to(dtype))
        x = x - found[-1].double()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "kept"), list(STORED), ids=str)
def test_one_update_is_within_its_bound(dtype: torch.dtype, kept: int) -> None:
    made = spec(PAIR, [dtype, dtype], kept, dtype)
    worst = 0.0
    for seed, (size, c) in enumerate([(1.0, 1.0), (1.0, 1e-3), (2.0**-6, 0.1), (2.0**-10, 1e-4)]):
        w = random(256, FP64, 2 * seed + 1)
        # From far away, and near the weight.
        a = w + size * random(256, FP64, 2 * seed)
        worst = max(worst, excess(made, pair(a, dtype, kept), pair(w, dtype, 2), c))
    print(f"{dtype} {kept}: {worst:.2g}")
    assert worst <= 1


def walked(count: int, dtype: torch.dtype, kept: int, decay: float) -> tuple[Any, Any]:
    """Averages of float32 weights that walk: as kept, and without rounding, in fixed point."""
    n = 16
    made = spec(SINGLE, [FP32], kept, dtype)
    w = random(n, FP32, 0)
    found = [w.to(dtype), *([(w - w.to(dtype).float()).to(dtype)] if kept == 2 else [])]
    true = sum(fixed_array(t) for t in found)
    start = true.copy()
    share = fixed(torch.tensor(1 - decay, dtype=FP32).item())
    table = torch.tensor([[1 - decay]], dtype=FP64)
    for t in range(count):
        # A drift, and noise around it.
        w = w + (random(n, FP32, 1 + t, 2.0**-6) + 2.0**-9)
        registry.run(made, [[*found, w]], table)
        true = true + ((share * (fixed_array(w) - true)) >> BITS)
    away = sum(fixed_array(t) for t in found) - true
    norm = lambda x: float(np.sqrt(sum((int(k) / 2**BITS) ** 2 for k in x)))  # noqa: E731
    return norm(away) / norm(true - start), found


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("dtype", "kept", "least", "most"),
    [
        pytest.param(BF16, 1, 0.6, 1.0, id="bf16"),
        pytest.param(BF16, 2, 0.0, 2e-4, id="pair"),
        pytest.param(FP32, 1, 0.0, 2e-6, id="float32"),
    ],
)
def test_a_long_average(dtype: torch.dtype, kept: int, least: float, most: float) -> None:
    """Of the way of an average of decay .999 a bf16 number misses most: it hardly moves."""
    error, _ = walked(600, dtype, kept, 0.999)
    print(f"{dtype} x {kept}: {error:.2g} of the way")
    assert least <= error <= most


# -- what is averaged --------------------------------------------------------------------------


def trained(precision: str, of: torch.dtype = BF16, **options: Any) -> Any:
    """An optimizer after steps, and the average that followed it."""
    optimizer = AdamW([parameter((4, 5), of, 1)], 1e-2, precision=precision)
    found = WeightAverage(optimizer, **options)
    true = []
    for k in range(3):
        steps(optimizer, 1, seed=k)
        (p,) = optimizer.param_groups[0]["params"]
        true.append(optimizer.master_weight(p).double())
    return optimizer, found, p, true


@pytest.mark.parametrize("precision", mcf.optim.PRECISIONS)
def test_true_weights_are_averaged(precision: str) -> None:
    """Whatever is stored beside the parameter; rounded as the docstring says."""
    _, found, p, true = trained(precision, decay=0.75)
    expected = true[0]
    for w in true[1:]:
        expected = expected + 0.25 * (w - expected)
    assert (found.weight(p) - expected).abs().max() < 2.0**-15
    # Of bf16 numbers alone it would not be.
    high, low = found.weight(p, exact=True)
    assert high.dtype == low.dtype == BF16
    assert low.count_nonzero()


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize(("dtype", "kept"), [(FP16, 2), (FP32, 2), (FP64, 2), (BF16, 1)], ids=str)
def test_equal_weights(dtype: torch.dtype, kept: int) -> None:
    options = {"components": kept, "dtype": FP32 if dtype == BF16 else None}
    _, found, p, true = trained("light", dtype, decay=None, **options)
    error = (found.weight(p, exact=True)[0].double() - sum(true) / 3).abs().max()
    assert error < {FP16: 2.0**-10, FP32: 2.0**-23, FP64: 2.0**-50, BF16: 2.0**-22}[dtype]
    # In float32 a mean of bf16 numbers has more bits than one.
    assert found.weight(p, exact=True)[0].dtype == (FP32 if dtype == BF16 else dtype)


def test_groups_and_parameters_added_later() -> None:
    first, frozen, later = (parameter(3, BF16, k) for k in range(3))
    frozen.requires_grad_(False)
    optimizer = AdamW([{"params": [first], "precision": "master"}, {"params": [frozen]}], 0.01)
    found = WeightAverage(optimizer, None)
    steps_of([first], optimizer)
    optimizer.add_param_group({"params": [later], "precision": "split16"})
    steps_of([first, later], optimizer)
    frozen.requires_grad_(True)
    steps_of([first, later], optimizer)
    counts = {k: entry["n_averaged"] for k, entry in found.state_dict()["state"].items()}
    assert counts == {0: 3, 1: 1, 2: 2}
    assert torch.equal(found.weight(frozen).to(BF16), frozen)


def steps_of(params: list[Parameter], optimizer: Any) -> None:
    for p in params:
        p.grad = random(p.shape, p.dtype, 7)
    optimizer.step()


def test_every_and_update() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], 0.1)
    never, third = WeightAverage(optimizer, every=None), WeightAverage(optimizer, every=3)
    steps(optimizer, 5)
    assert never.state_dict()["state"] == {}
    assert torch.equal(never.weight(p), optimizer.master_weight(p))
    assert third.state_dict()["state"][0]["n_averaged"] == 1
    never.update()
    third.close()
    steps(optimizer, 5)
    assert never.state_dict()["state"][0]["n_averaged"] == 1
    assert third.state_dict()["state"][0]["n_averaged"] == 1


# -- bits --------------------------------------------------------------------------------------


@on_each_executor
@pytest.mark.parametrize("precision", ["plus", pytest.param("split16", marks=pytest.mark.slow)])
def test_executors_agree(executor: str, precision: str) -> None:
    def run() -> dict[str, Tensor]:
        # Not contiguous, one element, none.
        wide = parameter((4, 6), BF16).t()
        params = [Parameter(wide.detach()), parameter(1, BF16), parameter(0, BF16)]
        optimizer = AdamW(params, 1e-2, precision=precision)
        kinds = [{}, {"decay": None, "components": 1}, {"components": 1, "dtype": FP32}]
        found = [WeightAverage(optimizer, **kind) for kind in kinds]
        with mcf.executor("torch"):
            # What is under test is not the step.
            steps(optimizer, 1)
        for a in found:
            a.update()
        return {
            f"{j}.{k}.{i}": t
            for j, a in enumerate(found)
            for k, p in enumerate(params)
            for i, t in enumerate(a.weight(p, exact=True))
        }

    right = run()
    with mcf.executor(executor):
        assert_same(run(), right)
