"""What stochastic rounding of a first moment adds to the updates: predicted from the code alone.

A moment x between neighbours a and b is rounded with variance (x - a)(b - x), which is exact: so
many of the random words round up. Of an error b1^k is left after k steps, so that updates, and
their sums over many steps, get the share (b1 / (1 - b1))^2 E[(x - a)(b - x)] / s^2 of the variance
that a gradient of standard deviation s around 0 gives them itself. The expectation is over x, whose
variance is (1 - b1) / (1 + b1) s^2, and that share more.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from statistics import NormalDist

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.kernels.algorithms import codes as algorithms
from mcf.optim import AdamW
from mcf.optim.storage import codes
from tests.kernels.test_codes import LEVELS, WORDS, e4m3_over_4, reference
from tests.optim.helpers import BF16, random

# The numbers of each code from 0 that moments reach, and its rounding.
CODES: dict[str, tuple[list[Fraction], Callable[..., object]]] = {
    "4bit": (LEVELS, algorithms.to_4_bits),
    "8bit": ([e4m3_over_4(k) for k in range(127)], algorithms.to_e4m3_over_4),
}
BETA1 = Fraction(9, 10)


def rounding(x: Fraction, levels: list[Fraction]) -> Fraction:
    """(x - a)(b - x) for the neighbours of |x|."""
    x = min(abs(x), levels[-1])
    k = next((k for k, level in enumerate(levels) if level >= x), 0)
    return Fraction(0) if levels[k] == x else (x - levels[k - 1]) * (levels[k] - x)


@pytest.mark.parametrize("name", CODES)
def test_the_variance_of_one_rounding(name: str) -> None:
    """Over all words, in rationals: the mean is x and the variance (x - a)(b - x)."""
    levels, encode = CODES[name]
    for k, j in ((0, 0x1234), (1, 0x8000), (4, 0xFFFF), (6, 0x4001)):
        a, b = levels[k], levels[k + 1]
        x = a + (b - a) * Fraction(j, 2**16)
        many = torch.full((1 << 16,), float(x))
        assert Fraction(many[0].item()) == x
        up = int((reference(encode)(many, WORDS) == k + 1).sum())
        mean = a + (b - a) * Fraction(up, 2**16)
        variance = Fraction(up, 2**16) * (1 - Fraction(up, 2**16)) * (b - a) ** 2
        assert mean == x
        assert variance == rounding(x, levels)


def share(name: str) -> float:
    """The prediction: the mean over v in an octave pair, and over quantiles of m."""
    levels, _ = CODES[name]
    count, roots = 40, 8
    found = Fraction(0)
    for _ in range(3):
        spread = float((1 - BETA1) / (1 + BETA1) * (1 + found)) ** 0.5
        normal = NormalDist(0, spread)
        total = Fraction(0)
        for r in range(roots):
            # sqrt(v) / u from 1/2 to 1, each octave as likely.
            root = Fraction(2.0 ** ((r + 0.5) / roots - 1)).limit_denominator(1 << 12)
            for q in range(count):
                m = Fraction(normal.inv_cdf((q + 0.5) / count)).limit_denominator(1 << 16)
                total += rounding(m * root, levels) / root**2
        found = (BETA1 / (1 - BETA1)) ** 2 * total / (count * roots)
        found = found.limit_denominator(1 << 20)
    return float(found)


@pytest.mark.sampled(every=2)
@pytest.mark.statistical
@pytest.mark.parametrize("name", CODES)
def test_what_rounding_adds_to_updates(name: str) -> None:
    """Measured on the moment that a step divides, beside the exact one (printed)."""
    shape, beta2, steps = (10, 400), 0.99, 500
    p = Parameter(torch.zeros(shape, dtype=BF16))
    optimizer = AdamW([p], 0.0, (0.9, beta2), precision=name)
    m = torch.zeros(shape, dtype=torch.float64)
    squares, own, count = 0.0, 0.0, 0
    with mcf.executor("numba"):
        for t in range(steps):
            # Every octave of v: gradients of sizes between 1 and 4.
            size = torch.linspace(0, 2, 400).exp2()
            p.grad = (random(shape, BF16, t, 0.1).float() * size).to(BF16)
            optimizer.step()
            m = 0.9 * m + 0.1 * p.grad.double()
            if t >= 300 and t % 20 == 0:
                found = codes.read("exp_avg", optimizer.state[p]).double()
                squares += (((found - m) / size) ** 2).mean().item()
                own += ((m / size) ** 2).mean().item()
                count += 1
    # b1^2 of what is stored is in the next update.
    measured, predicted = 0.81 * squares / own, share(name)
    print(f"{name}: added to the variance of updates {measured:.4f}, predicted {predicted:.4f}")
    # The root of v is no constant, and m is not normal: within a fifth.
    assert abs(measured / predicted - 1) < 0.2
