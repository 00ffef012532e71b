"""Implement linear and cubic upsampling, and padding by reflection or replication."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward

nn: Any = torch._C._nn
Weights = Callable[[Fraction], list[Fraction]]


def _linear(t: Fraction) -> list[Fraction]:
    """Return the linear weights of elements 0 and 1 for a point t in [0, 1]."""
    return [1 - t, t]


def _cubic(t: Fraction) -> list[Fraction]:
    """Return the cubic weights of elements -1 to 2 for A = -3/4.

    See Keys (1981), doi:10.1109/TASSP.1981.1163711.
    """
    a = Fraction(-3, 4)

    def near(x: Fraction) -> Fraction:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Fraction) -> Fraction:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _resampled(
    x: Any, d: int, out: int, step: Fraction, corners: bool, first: int, weights: Weights
) -> Any:
    """Interpolate one dimension of x at `out` points, with exact rational weights."""
    n = x.shape[d]
    points = [
        i * step if corners else (i + Fraction(1, 2)) * step - Fraction(1, 2) for i in range(out)
    ]
    if first == 0:
        points = [max(Fraction(0), p) for p in points]
    places = [math.floor(p) for p in points]
    rows = [weights(p - k) for p, k in zip(points, places, strict=True)]
    shape = (-1, *(1 for _ in x.shape[d + 1 :]))
    total = None
    for k, column in enumerate(zip(*rows, strict=True)):
        index = [min(max(place + first + k, 0), n - 1) for place in places]
        taken = x.index_select(d, torch.tensor(index, device=x.device))
        made = tensor(list(column), terms=x.terms, dtype=x.dtype, device=x.device)
        part = taken * made.reshape(shape)
        total = part if total is None else total + part
    return total


def check_sizes(space: Sequence[int], output_size: Sequence[int]) -> None:
    """Raise PyTorch's error if an input or output size is 0."""
    if min(*space, *output_size) < 1:
        given, wanted = (
            ", ".join(f"{d}: {n}" for d, n in zip("DHW"[-len(s) :], s, strict=True))
            for s in (space, output_size)
        )
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input ({given}) and output "
            f"({wanted})"
        )


def _register(name: str, dims: int, first: int, weights: Weights) -> None:
    def upsample(
        input: Any,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None = None,
    ) -> Any:
        x, space = input, input.shape[2:]
        factors = [None] * dims if scale_factors is None else list(scale_factors)
        if output_size is None:
            output_size = [int(n * f) for n, f in zip(space, factors, strict=True)]
        check_sizes(space, output_size)
        for k, (n, out, factor) in enumerate(zip(space, output_size, factors, strict=True)):
            if align_corners:
                step = Fraction(n - 1, out - 1) if out > 1 else Fraction(0)
            else:
                step = Fraction(n, out) if factor is None else 1 / Fraction(factor)
            x = _resampled(x, k + 2, out, step, align_corners, first, weights)
        return x

    implements(getattr(nn, name))(upsample)


_register("upsample_linear1d", 1, 0, _linear)
_register("upsample_bilinear2d", 2, 0, _linear)
_register("upsample_trilinear3d", 3, 0, _linear)
_register("upsample_bicubic2d", 2, -1, _cubic)


def _checked(name: str) -> None:
    function = getattr(nn, name)

    def upsample(
        input: Any, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None = None
    ) -> Any:
        space, size = input.shape[2:], output_size
        if size is None and scale_factors is not None:
            size = [int(n * f) for n, f in zip(space, scale_factors, strict=True)]
        if size is not None and space:
            check_sizes(space, size)
        return forward(function, (input, output_size, scale_factors), {})

    implements(function)(upsample)


for _name in ("upsample_nearest", "_upsample_nearest_exact"):
    for _dims in (1, 2, 3):
        _checked(f"{_name}{_dims}d")


@implements(nn.pad)
def pad(
    input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pad by reflection or replication; other modes are PyTorch's."""
    if mode not in ("reflect", "replicate"):
        found: Tensor = forward(nn.pad, (input, pad, mode, value), {})
        return found
    dims = len(pad) // 2
    if len(pad) % 2 or not dims + 1 <= input.dim() <= dims + 2:
        raise NotImplementedError(
            f"Padding size {len(pad)} is not supported for {input.dim()}D input tensor."
        )
    x = input
    for k in range(dims):
        d, (before, after) = x.dim() - 1 - k, pad[2 * k : 2 * k + 2]
        n = x.shape[d]
        if mode == "reflect" and max(before, after) >= n:
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, but got: "
                f"padding ({before}, {after}) at dimension {d} of input {list(input.shape)}"
            )
        places = torch.arange(-before, n + after, device=x.device)
        if mode == "reflect":
            places = (n - 1) - ((n - 1) - places.abs()).abs()
        x = x.index_select(d, places.clamp(0, n - 1))
    result: Tensor = x
    return result
