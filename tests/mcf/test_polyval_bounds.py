"""`mcf.polyval` of one component keeps its bound under hill climbing, whatever over- or underflows.

Bit patterns of coefficients and points are mutated, and the worst kept, against rational
arithmetic. The search finds fault with what was there before: the compensated rule in the format
itself, whose products of float16 fall below the range of their errors, and plain Horner.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import operations
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from mcf.reductions.sum_bounds import ROWS

pytestmark = pytest.mark.usefixtures("on_torch")

Rule = Callable[[list[Tensor], Tensor], Tensor]
KEPT, CHILDREN, GENERATIONS = 40, 4, 12
COUNT = 4
INTEGERS = {16: torch.int16, 32: torch.int32, 64: torch.int64}


def numbers(bits: np.ndarray, fmt: Format) -> Tensor:
    """Columns [COUNT + 1, M] of a format: coefficients, then the point; no NaN or infinity."""
    width = torch.finfo(fmt.dtype).bits
    cut = (bits >> np.uint64(64 - width)).astype(f"u{width // 8}").view(f"i{width // 8}")
    values = torch.from_numpy(cut.copy()).view(fmt.dtype)
    return torch.where(values.isfinite(), values, torch.ones((), dtype=fmt.dtype))


def excess(result: Tensor, given: Tensor, fmt: Format) -> list[float]:
    """Errors over the bound, -1 where something overflows, or underflows in float64."""
    bound = ROWS["polyval"].bound(fmt, 1, COUNT)
    least = ROWS["polyval"].underflow(fmt, 1, COUNT)
    found = []
    for column, got in zip(given.double().T.tolist(), result.double().tolist(), strict=True):
        *c, x = map(Fraction, column)
        terms = [a * x**k for k, a in enumerate(reversed(c))]
        exact, size = sum(terms), sum(map(abs, terms))
        if not math.isfinite(got) or size * 4 > Fraction(torch.finfo(fmt.dtype).max):
            found.append(-1.0)
            continue
        # A product of float64 numbers whose error is out of range is beyond what is promised.
        if fmt == FP64 and any(abs(t) < Fraction(2) ** -800 for t in (*terms, x, *c) if t):
            found.append(-1.0)
            continue
        allowed = bound.error(exact, size) + least
        error = abs(Fraction(got) - exact)
        found.append(float(error / allowed) if allowed else (math.inf if error else 0.0))
    return found


def cancelling(fmt: Format, columns: int) -> np.ndarray:
    """2**-14 (x - a)**3 near a = 1, 2, ..., 32: all cancels, products lie where float16 ends."""
    a = 2.0 ** (np.arange(columns) % 6)
    c = 2.0**-14 * np.stack([a**0, -3 * a, 3 * a**2, -(a**3)])
    x = a * (1 + (1 + np.arange(columns) % 5) * 2.0**-7)
    width = torch.finfo(fmt.dtype).bits
    values = torch.from_numpy(np.concatenate([c, x[None]])).to(fmt.dtype)
    return values.view(INTEGERS[width]).numpy().astype(np.uint64) << np.uint64(64 - width)


def mutated(bits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each column with a bit flipped, a run of equal bits, or another exponent."""
    bits = bits.copy()
    rows, columns = np.arange(bits.shape[0])[:, None], bits.shape[1]
    chosen = generator.integers(bits.shape[0], size=columns) == rows
    one = np.uint64(1) << generator.integers(48, 64, size=columns, dtype=np.uint64)
    low, high = np.sort(generator.integers(1, 64, size=(2, columns), dtype=np.uint64), axis=0)
    run = (np.uint64(1) << high) - (np.uint64(1) << low)
    kind = generator.integers(3, size=columns)
    new = np.where(kind == 0, bits ^ one, np.where(kind == 1, bits | run, bits & ~run))
    return np.where(chosen, new, bits)


def worst(rule: Rule, fmt: Format) -> float:
    generator = np.random.default_rng(0)
    size = (COUNT + 1, KEPT * CHILDREN)
    bits = generator.integers(2**64, size=size, dtype=np.uint64)
    bits[:, ::2] = cancelling(fmt, size[1] // 2)
    best = np.full(0, -1.0)
    parents = bits[:, :0]
    for _ in range(GENERATIONS):
        given = numbers(bits, fmt)
        scores = np.array(excess(rule(list(given[:-1]), given[-1]), given, fmt))
        scores, bits = np.concatenate([best, scores]), np.concatenate([parents, bits], axis=1)
        order = np.argsort(-scores)[:KEPT]
        best, parents = scores[order], bits[:, order]
        bits = mutated(np.repeat(parents, CHILDREN, axis=1), generator)
    return float(best[0])


def of_expansions(c: list[Tensor], x: Tensor) -> Tensor:
    result = mcf.polyval([mcf.from_components((k,)) for k in c], mcf.from_components((x,)))
    assert result.terms == 1
    return result.components[0]


def in_the_format(c: list[Tensor], x: Tensor) -> Tensor:
    """The compensated rule without wider numbers."""
    value, error = c[0], torch.zeros_like(x)
    for k in c[1:]:
        product, low = operations.two_prod(value, x)
        value, high = operations.two_sum(product, k)
        error = error * x + (low + high)
    return value + error


def horner(c: list[Tensor], x: Tensor) -> Tensor:
    return functools.reduce(lambda value, k: value * x + k, c)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("rule", [mcf.polyval, of_expansions])
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32, FP64], ids=lambda f: f.name)
def test_bound(rule: Rule, fmt: Format) -> None:
    assert 0.25 < worst(rule, fmt) <= 1


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("rule", "fmt"),
    [(in_the_format, FP16), (horner, FP16), (horner, BF16), (horner, FP32), (horner, FP64)],
    ids=lambda c: getattr(c, "name", getattr(c, "__name__", None)),
)
def test_the_search_finds_fault_with_mutants(rule: Rule, fmt: Format) -> None:
    assert worst(rule, fmt) > 2


def test_one_component_has_derivatives_and_every_mode_the_same_bits() -> None:
    """3 x**3 - x + 1/4 at 5/8: 9 x**2 - 1, and the powers of x."""
    x = mcf.from_components((torch.tensor([0.625]),)).requires_grad_()
    c = mcf.from_components((torch.tensor([[3.0], [0.0], [-1.0], [0.25]]),)).requires_grad_()
    value = mcf.polyval(c, x)
    value.sum().backward()
    assert value.tolist() == mcf.polyval(c.detach(), x.detach()).tolist() == [0.357421875]
    assert x.grad.tolist() == [9 * 0.625**2 - 1]
    assert c.grad.flatten().tolist() == [0.625**3, 0.625**2, 0.625, 1.0]
