"""Sums of floats and products by magnitude against rational arithmetic, and what they may lose.

*Exact*: the error of x + a b + c d, of expansions, in integers. Mutants caught: a product without
its errors, or without its last order.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from mcf.elementary.error_steps import Magnitudes, Steps
from mcf.elementary.tables import Components
from mcf.elementary.working import Sums, two_prod
from mcf.kernels.formats import FP64
from tests.helpers.draws import bell, power_of_two

COUNT = 200
pytestmark = pytest.mark.usefixtures("on_torch")


def expansion(seed: int, terms: int, scale: float) -> Components:
    """Numbers of every size below the scale, each component up to a half unit of the one before."""
    out = [(bell(COUNT, seed) / 6).copysign(bell(COUNT, seed + 1)) * scale]
    for k in range(1, terms):
        unit = power_of_two(torch.frexp(out[-1])[1] - FP64.p)
        out.append((bell(COUNT, seed + 2 * k) / 12) * unit)
    return tuple(out)


def exactly(x: Components, k: int) -> Fraction:
    """The k-th number."""
    return sum((Fraction(c[k].item()) for c in x), Fraction(0))


def whole(sums: Sums, x: Components, y: Components) -> None:
    sums.add_product(x, y)


def without_errors(sums: Sums, x: Components, y: Components) -> None:
    """Products as they are rounded."""
    for order in range(len(x)):
        for j in range(order + 1):
            sums.add(x[j] * y[order - j], order)


def without_the_last_order(sums: Sums, x: Components, y: Components) -> None:
    for order in range(len(x) - 1):
        for j in range(order + 1):
            for k, c in enumerate(two_prod(x[j], y[order - j]), order):
                sums.add(c, k)


def worst(terms: int, product: Callable[[Sums, Components, Components], None]) -> float:
    """The largest part of what may be lost that was."""
    x = expansion(1, terms, 1.0)
    a, b = expansion(20, terms, 1.0), expansion(40, terms, 0.5)
    c, d = expansion(60, terms, 1.0), expansion(80, terms, 2.0**-19)
    sums = Sums(x[0], terms)
    product(sums, a, b)
    product(sums, c, d)
    for k, part in enumerate(x[1:], 1):
        sums.add(part, k)
    found = sums.total()
    part = 0.0
    for k in range(COUNT):
        numbers = [exactly(each, k) for each in (x, a, b, c, d, found)]
        size = [abs(float(v)) for v in numbers]
        steps = Steps(terms)
        lost = Magnitudes(steps, size[0])
        lost.add_product(size[1] * size[2])
        lost.add_product(size[3] * size[4])
        for j in range(1, terms):
            lost.add(size[0] * steps.constant(j), j)
        right = numbers[0] + numbers[1] * numbers[2] + numbers[3] * numbers[4]
        part = max(part, float(abs(numbers[5] - right)) / lost.lost)
    return part


@pytest.mark.parametrize("terms", [2, 3])
def test_what_sums_of_products_lose(terms: int) -> None:
    assert 0.001 < worst(terms, whole) <= 1


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("mutant", [without_errors, without_the_last_order])
def test_mutants(terms: int, mutant: Callable[[Sums, Components, Components], None]) -> None:
    assert worst(terms, mutant) > 2
