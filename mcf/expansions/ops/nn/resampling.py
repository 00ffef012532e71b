"""Implement upsampling, sampling at grids, and padding by reflection or replication."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.dispatch.widening import fitted
from mcf.expansions.tensor import MCFTensor

nn: Any = torch._C._nn
Weights = Callable[[Fraction], list[Fraction]]


def _linear(t: Fraction) -> list[Fraction]:
    """Return the linear weights of elements 0 and 1 for a point t in [0, 1]."""
    return [1 - t, t]


def _cubic(t: Any, a: Any = Fraction(-3, 4)) -> list[Any]:
    """Return the cubic weights of elements -1 to 2 for A = -3/4.

    See Keys (1981), doi:10.1109/TASSP.1981.1163711.
    """

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
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


def _unnormalised(g: Any, n: int, corners: bool) -> Any:
    """Convert a coordinate in [-1, 1] to a fractional index among n elements."""
    return (g + 1) * (n - 1) / 2 if corners else ((g + 1) * n - 1) / 2


def _floor(x: Any) -> Any:
    """Return floor(x) as a float64 tensor: no image has 2^53 elements."""
    fixed = x.detach()
    near = fixed.to_plain(torch.float64) if isinstance(fixed, MCFTensor) else fixed.double()
    down = near.floor()
    return torch.where(fixed < down, down - 1, down)


def _reflected(x: Any, n: int, corners: bool) -> Any:
    """Reflect an index into the image, at its end elements (`corners`) or half a step beyond."""
    low, span = (0.0, n - 1) if corners else (-0.5, n)
    if span <= 0:
        return x * 0
    away = (x - low).abs()
    # As in PyTorch, NaN and infinity map to the center of the first element.
    away = torch.where(torch.isfinite(away), away, -low)
    turns = _floor(away / span)
    rest = away - turns * span
    return torch.where(turns % 2 == 1, span - rest, rest) + low


def _placed(x: Any, n: int, padding_mode: int, corners: bool) -> Any:
    """Apply a padding mode to an index: 0 zeros outside, 1 border, 2 reflection."""
    if padding_mode == 2:
        x = _reflected(x, n, corners)
    if padding_mode == 0:
        return x
    return torch.where(x.isnan(), 0, x).clamp(0, n - 1)


def _taken(image: Any, places: list[Any]) -> Any:
    """Gather elements [batch, c, *out] at integer indices, one [batch, *out] per dimension.

    Elements outside the image are 0.
    """
    space = image.shape[2:]
    inside = torch.ones_like(places[0], dtype=torch.bool)
    flat = torch.zeros_like(places[0])
    for place, n in zip(places, space, strict=True):
        inside = inside & (place >= 0) & (place < n)
        flat = flat * n + place.clamp(0, n - 1)
    batch, channels = image.shape[:2]
    rows = flat.reshape(batch, 1, -1).expand(-1, channels, -1)
    found = image.reshape(batch, channels, -1).gather(2, rows)
    found = found.reshape(batch, channels, *flat.shape[1:])
    return torch.where(inside.unsqueeze(1), found, 0)


def _whole(x: Any) -> Any:
    """Convert an index to int64; NaN and huge values become indices outside of any image."""
    plain = x.to_plain(torch.float64) if isinstance(x, MCFTensor) else x.double()
    return plain.nan_to_num(-9e15).clamp(-9e15, 9e15).to(torch.int64)


@implements(torch.grid_sampler, torch.grid_sampler_2d, torch.grid_sampler_3d)
def grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Interpolate `input` at each point of the grid: mode 0 linear, 1 nearest, 2 cubic."""
    dims = input.dim() - 2
    if dims not in (2, 3) or grid.dim() != input.dim() or grid.shape[-1] != dims:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions and "
            f"{dims} coordinates, but got input with sizes {list(input.shape)} and grid with sizes "
            f"{list(grid.shape)}"
        )
    if interpolation_mode == 2 and dims == 3:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    space = input.shape[2:]
    # Fractional indices have float64 components; the result is rounded once.
    at = grid.to(torch.float64)
    # The grid's last dimension starts with x, which is the last spatial dimension.
    points = [_unnormalised(at[..., dims - 1 - k], n, align_corners) for k, n in enumerate(space)]

    def whole(x: Any, n: int) -> Any:
        return _whole(_placed(x, n, padding_mode, align_corners))

    if interpolation_mode == 1:
        places = [
            _whole(torch.round(_placed(x, n, padding_mode, align_corners)))
            for x, n in zip(points, space, strict=True)
        ]
        return fitted(_taken(input, places), input, grid)
    if interpolation_mode == 0:
        points = [
            _placed(x, n, padding_mode, align_corners) for x, n in zip(points, space, strict=True)
        ]
    floors = [_floor(x) for x in points]
    parts = [x - f for x, f in zip(points, floors, strict=True)]
    first, count = (-1, 4) if interpolation_mode == 2 else (0, 2)
    weights = [_cubic(t, -0.75) if interpolation_mode == 2 else [1 - t, t] for t in parts]
    total = None
    for offsets in itertools.product(range(count), repeat=dims):
        factor: Any = 1
        places = []
        for k, offset in enumerate(offsets):
            factor = factor * weights[k][offset]
            place = floors[k] + (first + offset)
            places.append(whole(place, space[k]) if interpolation_mode == 2 else _whole(place))
        part = _taken(input, places) * factor.unsqueeze(1)
        total = part if total is None else total + part
    return fitted(total, input, grid)


def _coordinates(n: int, corners: bool, like: MCFTensor) -> MCFTensor:
    """Return n points spanning [-1, 1], or the centers of n equal parts of it."""
    places = [
        Fraction(0) if n == 1 else Fraction(2 * k, n - 1) - 1 if corners
        else Fraction(2 * k + 1, n) - 1
        for k in range(n)
    ]  # fmt: skip
    return tensor(places, like.terms, like.dtype, like.device)


@implements(torch.affine_grid_generator)
def affine_grid_generator(theta: Any, size: Any, align_corners: bool) -> Any:
    """Return theta (x, y, 1) for each element of an image, theta (x, y, z, 1) for a volume."""
    space = list(size)[2:]
    axes = [_coordinates(n, align_corners, theta.detach()) for n in space]
    mesh = torch.meshgrid(*axes, indexing="ij")
    # The last spatial dimension is x.
    points = torch.stack([*reversed(mesh), torch.ones_like(mesh[0])], -1).reshape(
        -1, len(space) + 1
    )
    out = points @ theta.mT
    return out.reshape(theta.shape[0], *space, len(space))
