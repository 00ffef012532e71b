"""The second moment against exact arithmetic over long runs: what `plus` is for.

Contract: after 5 / (1 - beta2) steps on random gradients from v = 0, the stored second moment over
the exact one is 1.000 within 1e-3, for beta2 = .95, .98, .99, .999. With float32 registers this
holds for every element. In bf16 arithmetic it holds for the mean of 256 elements:

- Each step rounds v by a few u^2 = 2^-16 and remembers about 1 / (1 - beta2) steps: a random walk
  of up to 2^-16 sqrt(1000) a few times over, 1e-3 for one element, 6e-5 for the mean of 256.
- beta2 = .999 is 1 - RN(.001) as two bf16 components and RN(.001) = .00099945, so that v settles at
  .001 / .00099945 = 1.00055 of the truth: the representation, not the steps.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.optim import AdamW
from tests.helpers.draws import power_of_two
from tests.optim.exact_rules import Exact, fixed_array, floats
from tests.optim.helpers import BF16, FP16, FP32, FP64, random, second_moment

N = 256
BETAS = (0.95, 0.98, 0.99, 0.999)
TOLERANCE = 1e-3

pytestmark = pytest.mark.statistical


def gradients(dtype: torch.dtype, beta2: float) -> list[Tensor]:
    """Five time constants of noise, each element at its own scale."""
    scale = 0.1 * power_of_two((2 * random(N, FP64, 5)).round())
    count = round(5 / (1 - beta2))
    return [(random(N, FP64, 10 + t) * scale).to(dtype) for t in range(count)]


@functools.cache
def truth(dtype: torch.dtype, beta2: float) -> Tensor:
    """The exact second moment at the end."""
    exact = Exact("adamw", torch.zeros(N), {"betas": (0.9, beta2)})
    for g in gradients(dtype, beta2):
        exact.moments(fixed_array(g))
    return floats(exact.v)


def ratios(make: Any, dtype: torch.dtype, beta2: float, **options: Any) -> Tensor:
    """The stored second moment over the exact one, by element."""
    p = torch.nn.Parameter(torch.zeros(N, dtype=dtype))
    optimizer = make([p], lr=0.0, betas=(0.9, beta2), eps=1e-6, **options)
    for g in gradients(dtype, beta2):
        p.grad = g
        optimizer.step()
    return second_moment(optimizer, p) / truth(dtype, beta2)


def mean_is_right(ratio: Tensor) -> bool:
    return abs(float(ratio.mean()) - 1) < TOLERANCE


# Of fp16, which differs in the format alone, the longest run is `slow`.
_LONG = pytest.param(FP16, 0.999, marks=pytest.mark.slow)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    ("dtype", "beta2"),
    [*((BF16, b) for b in BETAS), *((FP16, b) for b in BETAS if b != 0.999), _LONG],
)
def test_every_element_in_float32_registers(dtype: torch.dtype, beta2: float) -> None:
    ratio = ratios(AdamW, dtype, beta2, precision="plus")
    assert (ratio - 1).abs().max() < TOLERANCE


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("beta2", BETAS)
def test_the_mean_in_bf16_arithmetic(beta2: float) -> None:
    ratio = ratios(AdamW, BF16, beta2, precision="plus", compute_dtype=BF16)
    assert mean_is_right(ratio)
    # No element is lost either: four standard deviations of the walk above.
    assert (ratio - 1).abs().max() < 5e-3


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("compute_dtype", [FP32, BF16])
def test_one_component_stalls(compute_dtype: torch.dtype) -> None:
    # v = 1 and g^2 = .25, as an exact pair and as one bf16 word.
    def after(precision: str, steps: int) -> Tensor:
        p = torch.nn.Parameter(torch.zeros(4, dtype=BF16))
        p.grad = torch.full_like(p, 0.5)
        options: Any = {"precision": precision, "compute_dtype": compute_dtype}
        optimizer = AdamW([p], lr=0.0, betas=(0.9, 0.999), **options)
        optimizer.step()
        optimizer.state[p]["exp_avg_sq"].fill_(1)
        if precision == "plus":
            optimizer.state[p]["exp_avg_sq_lo"].zero_()
        for _ in range(steps):
            optimizer.step()
        return second_moment(optimizer, p)

    # .999 v + .00025 rounds to 1: a fixed point, so v stays there for ever.
    for precision in ("plain", "kahan", "light"):
        assert (after(precision, 100) == 1).all()
    # 5e-4 is beta2's representation, the rest of 3e-3 the walk of a single element.
    exact = 0.25 + 0.75 * 0.999**5000
    v = after("plus", 5000)
    torch.testing.assert_close(v, torch.full_like(v, exact), rtol=3e-3, atol=0)
