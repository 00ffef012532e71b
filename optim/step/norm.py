"""The Euclidean norm of all gradients: same bits for any order, layout, device and sharding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.optim.sharding.processes import Across

# Elements per block: bounds the temporary memory, and keeps it in a CPU's cache.
BLOCK = {"cpu": 1 << 14}
DEVICE_BLOCK = 1 << 22

# Squares are cut into multiples of 2**-HIGH and of 2**-(HIGH + LOW) of the largest one's binade.
HIGH, LOW = 28, 30
# Sums of the multiples of 2**-HIGH are kept in two words, the second of which is below 2**TOP.
TOP = 32

# Gradients of at most SMALL elements are concatenated, at most TOGETHER of them, because the CPU's
# work per gradient costs more than the copy.
SMALL, TOGETHER = 1 << 16, 256

# A gradient as its components, one or more.
Components = Sequence[Tensor]


@torch.no_grad()
def total_norm(
    gradients: Sequence[Components],
    parts: Sequence[Across | None] = (),
    sharers: Sequence[Across] = (),
) -> Tensor:
    """Return sqrt(sum of squares) over all elements of all gradients.

    Each square (g / 2**e)^2, with 2**e just above the largest |g|, is rounded to a multiple of
    2**-58; the multiples are summed as integers. So the result has the same bits for any order,
    layout, number of tensors, of threads or of processes that share them.

    Args:
        gradients: one tuple of components each, floating-point, of any layout; the value is their
            sum in float64. One local tensor must have less than 2**33 elements, all together less
            than 2**50.
        parts: for each gradient the processes that have its other parts; None if all of it is
            local.
        sharers: all entries that `parts` may have, in the same order on every process; all of these
            processes call this.

    Returns:
        A float64 tensor without dimensions, on the device of the first; infinity or NaN if an
        element is. Relative error at most n * 2**-58 + 2**-51 for n elements, if the norm is a
        normal float64. No device is waited for.
    """
    some = _joined(gradients, parts or [None] * len(gradients))
    if not some and not sharers:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    home = some[0][0][0].device if some else torch.device("cpu")
    nothing = torch.zeros((), dtype=torch.float64, device=home)
    largest = torch.stack([nothing, *(_largest(g).to(home) for g, _ in some)]).amax()
    for who in sharers:
        # As integers, whose maximum keeps NaN on every backend: its pattern is above infinity's.
        largest = who.reduce(largest.abs().view(torch.int64), "max").view(torch.float64)
    if home.type == "cpu" and not sharers and not largest.isfinite():
        return largest
    # On a device this is not known yet; then the sums are discarded at the end.
    exponent = torch.frexp(torch.where(largest.isfinite(), largest, 0.0)).exponent
    # Three words for local gradients, and for the parts that each group of processes shares.
    totals = {who: torch.zeros(3, dtype=torch.int64, device=home) for who in (None, *sharers)}
    for g, whose in some:
        _, high, low = totals[whose].unbind()
        here = -exponent.to(g[0].device)
        # In two steps, because 2**1074 overflows.
        half = here.div(2, rounding_mode="floor")
        first, second = _power(half), _power(here - half)
        for block in _dense(g):
            whole, rest = registry.on(block.device).square_sums(block, first, second, HIGH, LOW)
            high += whole.to(home) + (rest.to(home) >> LOW)
            low += rest.to(home) & ((1 << LOW) - 1)
            high += low >> LOW
            low &= (1 << LOW) - 1
        _carry(totals[whose])
    total = torch.zeros(3, dtype=torch.int64, device=home)
    for whose, words in totals.items():
        total += words if whose is None else whose.reduce(words, "sum")
    top, high, low = _carry(total).unbind()
    # The sum of the first two words is rounded once.
    squares = (top.double() * 2.0**TOP + high.double()) * 2.0**LOW + low.double()
    # Sums over non-finite elements are meaningless.
    squares = torch.where(largest.isfinite(), squares, 0.0)
    # torch's square root of a float64 on a CPU is not always correctly rounded.
    root = squares.sqrt() if home.type != "cpu" else squares.fill_(math.sqrt(squares.item()))
    half = exponent.div(2, rounding_mode="floor")
    norm = root * 2.0 ** -((HIGH + LOW) // 2) * _power(half) * _power(exponent - half)
    return torch.where(largest.isfinite(), norm, largest)


def _joined(
    gradients: Sequence[Components], parts: Sequence[Across | None]
) -> list[tuple[Components, Across | None]]:
    """Return the gradients with local elements; concatenate small ones of one dtype and device."""
    found: list[tuple[Components, Across | None]] = []
    small: dict[Any, list[Tensor]] = {}
    for g, whose in zip(gradients, parts, strict=True):
        count = g[0].numel()
        if len(g) == 1 and 0 < count <= SMALL and type(g[0]) is Tensor:
            kind = g[0].dtype, g[0].device, whose
            small.setdefault(kind, []).append(g[0].reshape(-1))
        elif count:
            found.append((g, whose))
    for (_, _, whose), tensors in small.items():
        for start in range(0, len(tensors), TOGETHER):
            found.append(((torch.cat(tensors[start : start + TOGETHER]),), whose))
    return found


def _dense(gradient: Components) -> Iterator[Tensor]:
    """Yield the values of a gradient in contiguous tensors: unchanged, or in blocks."""
    g = gradient[0]
    if len(gradient) == 1 and g.is_contiguous() and not g.is_neg() and type(g) is Tensor:
        yield g
        return
    for part in parts(gradient, BLOCK.get(g.device.type, DEVICE_BLOCK)):
        yield _value(part)


def finite(gradient: Components) -> Tensor:
    """Return whether all elements are finite, as a bool tensor on their device."""
    if gradient[0].numel() == 0:
        return torch.ones((), dtype=torch.bool, device=gradient[0].device)
    return _largest(gradient).isfinite()


def _largest(gradient: Components) -> Tensor:
    """Return the largest |g| in float64; NaN if an element is NaN."""
    if len(gradient) == 1:
        low, high = torch.aminmax(gradient[0])
        return torch.maximum(low.double().abs(), high.double().abs())
    blocks = parts(gradient, BLOCK.get(gradient[0].device.type, DEVICE_BLOCK))
    return torch.stack([_value(part).abs_().amax() for part in blocks]).amax()


def _value(components: Components) -> Tensor:
    value = components[0].to(torch.float64, copy=True)
    for low in components[1:]:
        value += low
    return value


def _carry(words: Tensor) -> Tensor:
    """Carry between the words of sums, in place, so that all but the first are in range."""
    top, high, low = words.unbind()
    high += low >> LOW
    low &= (1 << LOW) - 1
    top += high >> TOP
    high &= (1 << TOP) - 1
    return words


def _power(exponent: Tensor) -> Tensor:
    """Return 2**exponent exactly, for |exponent| below 1023."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def parts(components: Components, size: int) -> Iterator[list[Tensor]]:
    """Yield corresponding parts of at most `size` elements, as views."""
    shape, count = components[0].shape, components[0].numel()
    if count <= size:
        yield list(components)
        return
    dim = max(range(len(shape)), key=lambda d: shape[d])
    step = max(1, shape[dim] * size // count)
    for start in range(0, shape[dim], step):
        length = min(step, shape[dim] - start)
        yield from parts([t.narrow(dim, start, length) for t in components], size)
