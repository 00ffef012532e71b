"""Elementwise sums of tensors: without any error, or in float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import round_odd, round_to
from mcf.kernels import registry
from mcf.kernels.algorithms import two_sum
from mcf.kernels.algorithms.primitives import ZERO, where
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP64, Format, format_of

# Number of terms below which a float64 sum divided by it and rounded to float32 is the correctly
# rounded mean.
MOST_TERMS = 1 << 26

# Elements rounded at a time.
BLOCK = 1 << 14

# Dtypes of terms; with float64 the sum's components could overflow.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def add_term(total, term):  # type: ignore[no-untyped-def]
    """s + e = total + term exactly; e is 0 if the sum is not finite."""
    s, e = two_sum(total, term)  # type: ignore[no-untyped-call]
    return s, where(e == e, e, ZERO)  # type: ignore[no-untyped-call]


def inexact(out_error):  # type: ignore[no-untyped-def]
    """Return whether the error is not 0."""
    return (out_error != ZERO,)


@functools.cache
def kernel(fmt: Format) -> Elementwise:
    """total <- RN(total + term), error <- the rounding error; counts the nonzero errors."""
    return Elementwise(
        name=f"add_term_{fmt.name}",
        function=add_term,
        results=("total", "error"),
        fields=(
            Field("total", FP64, written=True),
            Field("error", FP64, read=False, written=True),
            Field("term", fmt),
        ),
        stores=(("total", "total"), ("error", "error")),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        rounded=("total", "error"),
        sums=inexact,
        sum_count=1,
        counts=1,
    )


class ExactSum:
    """The sum of any number of tensors of one shape, without any error.

    It is kept as an expansion of float64 components, x0 + x1 + ...: each term is added to x0 by
    TwoSum, whose error is added to x1 in the same way, and so on; a component is added if the last
    one has an error (Shewchuk 1997, doi:10.1007/PL00009321). One component, 8 bytes per element,
    holds the sum of n bf16 numbers that lie within 45 - log2(n) binades of the largest.

    The value is the mathematical sum, so it depends neither on the order of the terms nor on how
    they were grouped in partial sums. NaN and infinities are those of IEEE sums: inf - inf is NaN.
    """

    def __init__(self, like: Tensor) -> None:
        """Begin with zero, with a tensor's number of elements and device."""
        self.components = [_zeros(like)]

    @property
    def terms(self) -> list[Tensor]:
        """The terms to add to another sum."""
        return self.components

    def rounded(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return sum / count, rounded once to nearest even; zeros are +0.

        Args:
            dtype: bfloat16, float16 or float32.
            count: at most `MOST_TERMS`.
        """
        made = self.components[0].new_empty(self.components[0].numel(), dtype=dtype)
        # In blocks, so that a CPU's cache holds all temporary tensors.
        size = BLOCK if made.device.type == "cpu" else max(1, made.numel())
        blocks = zip(*(torch.split(x, size) for x in (made, *self.components)), strict=True)
        for out, *here in blocks:
            out.copy_(_rounded(here, dtype, count))
        return made


class Float32Sum:
    """The sum of tensors of one shape in float32, each addition rounded, in the order of calls.

    For n terms |error| <= (n - 1) 2**-24 sum |term| to first order. 4 bytes per element.
    """

    def __init__(self, like: Tensor) -> None:
        """Begin with zero, with a tensor's number of elements and device."""
        self.total = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)

    @property
    def terms(self) -> list[Tensor]:
        """The terms to add to another sum."""
        return [self.total]

    def rounded(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return sum / count, rounded to float32 and then to `dtype`."""
        return (self.total / count).to(dtype) + 0.0


Sum = ExactSum | Float32Sum
KINDS: dict[str, type[ExactSum] | type[Float32Sum]] = {"exact": ExactSum, "float32": Float32Sum}


@torch.no_grad()
def add(sums: Sequence[Any], terms: Sequence[Tensor]) -> None:
    """Add a flat tensor to each of some sums, all of one class, the terms of one dtype."""
    pairs = [(s, t) for s, t in zip(sums, terms, strict=True) if t.numel()]
    if pairs and isinstance(pairs[0][0], Float32Sum):
        for s, t in pairs:
            s.total += t
        return
    level = 0
    while pairs:
        rows = []
        for s, t in pairs:
            if level == len(s.components):
                s.components.append(_zeros(t))
            rows.append([s.components[level], torch.empty_like(s.components[level]), t])
        spec = kernel(format_of(rows[0][2].dtype, "gradient"))
        nothing = torch.zeros(len(rows), 0, dtype=torch.float64, device="cpu")
        lost = registry.run(spec, rows, nothing)
        assert lost is not None
        some = lost[:, 0].tolist()
        left = zip(pairs, rows, some, strict=True)
        pairs = [(s, error) for (s, _), (_, error, _), count in left if count]
        level += 1


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.numel(), dtype=torch.float64, device=like.device)


def _settled(components: Sequence[Tensor]) -> list[Tensor]:
    """Return the same value with each component the rounding of its sum with the next one."""
    c = list(components)
    if len(c) == 1:
        return c
    finite = c[0].isfinite()
    c[1:] = [torch.where(finite, x, 0.0) for x in c[1:]]
    # As many sweeps as components suffice, except for ties, which need one or two more.
    for _ in range(4 * len(c)):
        same = True
        for k in reversed(range(len(c) - 1)):
            s = c[k] + c[k + 1]
            t = s - c[k]
            e = (c[k] - (s - t)) + (c[k + 1] - t)
            same = same and bool(((s == c[k]) | ~finite).all())
            c[k], c[k + 1] = s, torch.where(finite, e, 0.0)
        if same:
            return c
    raise AssertionError("sweeps of components do not settle")


def _rounded(components: Sequence[Tensor], dtype: torch.dtype, count: int) -> Tensor:
    c = _settled(components)
    # Round to odd, so that the roundings of this sum and of the quotient do not affect the last
    # one: a boundary between two results times `count` has less than 52 bits.
    total = round_odd(c[0], c[1]) if len(c) > 1 else c[0]
    mean = total / count
    found = mean.to(dtype) if dtype is torch.float32 else _nearest(mean, dtype)
    # Return the same NaN for every input NaN.
    return torch.where(found == found, found, torch.nan) + 0.0


def _nearest(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float64 numbers rounded once to a 16-bit format."""
    fmt = format_of(dtype)
    drop = 53 - fmt.p
    bits = x.view(torch.int64)
    odd = (bits >> drop) & 1
    # To nearest, ties to even, if the result is normal: a carry continues into the exponent.
    y = odd.add_(bits).add_((1 << drop - 1) - 1).bitwise_and_(-(1 << drop))
    f = y.view(torch.float64).to(torch.float32)
    small = (f.abs() < float(fmt.min_normal)).sum() - (f == 0).sum()
    if bool((small == 0) & f.sum().isfinite()):
        return f.to(dtype)
    return round_to(x, dtype)
