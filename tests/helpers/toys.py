"""Toy formats, exhaustively: every number, every normalised pair, the algorithms bound to them.

They run on the torch executor's toy binding, in float64 registers which hold every sum and product
of a toy format's numbers exactly; so the truth is computed in plain float64 as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import FunctionType

import torch
from torch import Tensor

from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP64, Format
from mcf.kernels.torch.registers import primitives
from tests.helpers.draws import power_of_two

# An error beyond every bound.
INFINITE = Fraction(10**9)

Algorithm = Callable[..., tuple[Tensor, Tensor]]


@functools.cache
def _binder(fmt: Format) -> Binder:
    return Binder(lambda f: f, primitives(fmt.register, fmt, {"rc": fmt, "rv": fmt}))


def bound(algorithm: FunctionType, fmt: Format) -> Algorithm:
    """An algorithm on tensors that hold a format's numbers in registers (float64 for a toy)."""
    result: Algorithm = _binder(fmt)(algorithm)
    return result


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """x rounded to the toy format."""
    result: Tensor = primitives(FP64, fmt, {})["rn"](x)
    return result


def positives(fmt: Format, low: int | None = None, high: int | None = None) -> Tensor:
    """Every positive number with an exponent from low to high (default: the format's range)."""
    with_subnormals = low is None
    low = fmt.emin if low is None else low
    high = fmt.emax if high is None else high
    half = 1 << (fmt.p - 1)
    mantissas = torch.arange(half, 2 * half, dtype=torch.float64)
    exponents = torch.arange(low, high + 1, dtype=torch.float64)
    x = (mantissas * power_of_two(exponents - (fmt.p - 1))[:, None]).flatten()
    if with_subnormals:
        x = torch.cat([torch.arange(1, half) * float(fmt.min_subnormal), x])
    return x


def finite(fmt: Format) -> Tensor:
    """Every finite number once, zero once."""
    x = positives(fmt)
    return torch.cat([-x.flip(0), torch.zeros(1, dtype=torch.float64), x])


def exponents(x: Tensor) -> Tensor:
    """floor(log2 |x|), a very small number for 0."""
    return torch.where(x == 0, -(1 << 20), torch.frexp(x).exponent - 1)


def expansions(hi: Tensor, lo: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """Every pair (hi, lo) of the given numbers with RN(hi + lo) = hi."""
    h, e = (t.flatten() for t in torch.meshgrid(hi, lo, indexing="ij"))
    keep = rounded(h + e, fmt) == h
    return h[keep], e[keep]


def products(n: int, m: int, step: int = 1 << 20) -> Iterator[tuple[Tensor, Tensor]]:
    """Every pair of indices below n and m, a stretch at a time."""
    for start in range(0, n * m, step):
        k = torch.arange(start, min(start + step, n * m))
        yield k // m, k % m


def relative(error: Tensor, truth: Tensor, fmt: Format) -> Fraction:
    """The largest |error / truth| in units of u^2; infinite where a zero is missed."""
    if bool((error[truth == 0] != 0).any()) or not bool(torch.isfinite(error).all()):
        return INFINITE
    live = truth != 0
    if not bool(live.any()):
        return Fraction(0)
    ratio = (error[live] / truth[live]).abs()
    k = int(ratio.argmax())
    return abs(Fraction(float(error[live][k])) / Fraction(float(truth[live][k]))) / fmt.u**2
