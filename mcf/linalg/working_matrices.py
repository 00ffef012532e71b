"""Prepare matrices for decompositions: float64 expansions, scaled, with one batch dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.convert.few import visible
from mcf.convert.rounding import convert
from mcf.kernels import operations
from mcf.kernels.formats import FP64, format_of, power_of_two
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg.number_kinds import REAL, Real
from mcf.linalg.parts import Components, each


def working_terms(x: Components) -> int:
    """Return how many float64 components hold all bits of x, at least two (4 x 24 bits fit two)."""
    return max(2, len(x)) if x[0].dtype is torch.float64 else 2


def flattened(a: Components, numbers: Real = REAL) -> Components:
    """Return A [..., m, n] as float64 components [batch, m, n]."""
    refuse_float32("a decomposition", format_of(a[0].dtype), a[0].device)
    wide = numbers.by_parts(lambda p: convert(p, torch.float64, working_terms(p)), a)
    return each(lambda c: c.reshape(math.prod(a[0].shape[:-2]), *a[0].shape[-2:]), wide)


def opened(a: Components, numbers: Real = REAL) -> tuple[Components, Tensor]:
    """Return A 2^-k as float64 components [batch, m, n] with largest element in [1/2, 1), and k."""
    flat = flattened(a, numbers)
    if 0 in flat[0].shape[1:]:
        return flat, torch.zeros(flat[0].shape[0], dtype=torch.int64, device=flat[0].device)
    largest = torch.stack([c.abs().amax((1, 2)) for c in numbers.leading(flat)]).amax(0)
    exponent = torch.frexp(largest)[1].long()
    less = -exponent[:, None, None]
    return numbers.by_parts(lambda p: _scaled(p, less), flat), exponent


def _scaled(x: Components, exponent: Tensor | int) -> Components:
    """Return x 2^exponent of float64 components, by one product each if that is exact."""
    if isinstance(exponent, int) and exponent == 0:
        return x
    if isinstance(exponent, int) or exponent.numel() == 0 or not visible(x[0]):
        return operations.ldexp(x, exponent)
    low, high = exponent.aminmax()
    if not (FP64.emin <= low.item() and high.item() <= FP64.emax):
        return operations.ldexp(x, exponent)
    factor = power_of_two(exponent)
    out = [c * factor for c in x]
    # No check is needed below the range: smaller components are lost anyway.
    if not math.isfinite(out[0].sum().item()):
        return operations.ldexp(x, exponent)
    return tuple(out)


def closed(
    x: Components, a: Components, exponent: Tensor | int = 0, numbers: Real = REAL
) -> Components:
    """Return x [batch, ...] times 2^exponent, rounded to A's format, and with A's batch shape."""
    if isinstance(exponent, Tensor):
        exponent = exponent.reshape(-1, *(1 for _ in x[0].shape[1:]))
    fmt, terms = a[0].dtype, len(a) // numbers.parts
    whole = numbers.by_parts(lambda p: convert(_scaled(p, exponent), fmt, terms), x)
    return each(lambda c: c.reshape(*a[0].shape[:-2], *x[0].shape[1:]), whole)


def descending(x: Components) -> Tensor:
    """Return indices [batch, n] that sort x in descending order, stably."""
    index: Tensor | None = None
    for c in reversed(convert(x, torch.float64, len(x))):
        key = c if index is None else c.gather(-1, index)
        step = torch.sort(key, dim=-1, descending=True, stable=True).indices
        index = step if index is None else index.gather(-1, step)
    assert index is not None
    return index


def rows_in(order: Tensor, x: Components) -> Components:
    """Return the rows of x [batch, n, m] in the given order [batch, n]."""
    index = order[..., None].expand(*order.shape, x[0].shape[-1])
    return each(lambda c: c.gather(1, index), x)


def squared_norms(x: Components, numbers: Real = REAL) -> Components:
    """Return x x^H of each row x, for x [batch, n, m]."""
    lying = each(lambda c: c[..., None, :], x)
    product = numbers.real(numbers.matmul(lying, numbers.adjoint(lying)))
    return each(lambda c: c[..., 0, 0], product)
