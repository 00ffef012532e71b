"""softmax, log_softmax and logsumexp along a dimension."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.elementary import exponential, logarithm
from mcf.elementary.format import computing_in, working
from mcf.elementary.operator import checked
from mcf.elementary.tables import Components
from mcf.elementary.working import (
    collected,
    enter,
    head,
    leave,
    minus,
    sanitized,
    scale_all,
    select,
    special,
    working_terms,
)
from mcf.kernels import operations as ex
from mcf.kernels.formats import Format, format_of
from mcf.kernels.register_choice import registers_for


def _moved(name: str, x: Components, dim: int) -> tuple[Components, Format]:
    """The components with the dimension in front."""
    tensors = checked(name, x)
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        raise IndexError(f"{name}: dim must be in [{-first.dim()}, {first.dim() - 1}], got {dim}")
    if first.shape[dim] == 0:
        raise ValueError(f"{name}: dimension {dim} is empty")
    return tuple(c.movedim(dim, 0).contiguous() for c in tensors), format_of(first.dtype)


def _total(x: Components) -> Components:
    """Sum over dimension 0, in pairs."""
    while x[0].shape[0] > 1:
        n = x[0].shape[0]
        half = n // 2
        total = ex.add(tuple(c[:half] for c in x), tuple(c[half : 2 * half] for c in x))
        if n % 2:
            total = tuple(torch.cat([c, last[-1:]]) for c, last in zip(total, x, strict=True))
        x = total
    return tuple(c[0] for c in x)


def _largest(x: Components) -> tuple[Tensor, Components]:
    """Index along dimension 0 of the largest number, the first of those, and the number.

    Normalised expansions are in the order of their leading components, among equals of the next,
    and so on.
    """
    among = torch.ones_like(x[0], dtype=torch.bool)
    for c in x:
        candidates = torch.where(among, c, -math.inf)
        among = among & (candidates == candidates.amax(0))
    index = among.to(torch.int8).argmax(0, keepdim=True)
    return index, tuple(c.gather(0, index)[0] for c in x)


Along = Callable[[Components, int], Components]


def _in_registers(function: Along) -> Along:
    """The function, computing in components of the registers that are chosen."""

    @functools.wraps(function)
    def run(x: Components, dim: int) -> Components:
        first = checked(function.__name__, x)[0]
        with computing_in(registers_for(format_of(first.dtype), first.device)):
            return function(x, dim)

    return run


class _Shifted:
    """exp(x - max(x)) along dimension 0, as components and exponents, and sums of them."""

    def __init__(self, x: Components, fmt: Format) -> None:
        self.working = working_terms(fmt, len(x))
        y = enter(x, fmt)
        self.nan = y[0].isnan().any(0) | (y[0] == math.inf).any(0)
        self.nothing = (y[0] == -math.inf).all(0)
        present = y[0] > -math.inf
        usable = present & ~self.nan
        self.index, self.top = _largest(
            tuple(torch.where(usable, c, -math.inf if k == 0 else 0.0) for k, c in enumerate(y))
        )
        self.top = sanitized(self.top, self.top[0].isfinite(), 0.0)
        apart = (*y, *(-c.expand(y[0].shape) for c in self.top))
        apart = sanitized(apart, usable, 0.0)
        self.difference = collected(apart, 4)
        near = usable & (self.difference[0] >= -working().exp_limit)
        self.values, self.exponents = exponential.exp(
            sanitized(self.difference, near, 0.0), self.working
        )
        self.values = sanitized(self.values, near, 0.0)
        self.exponents = torch.where(near, self.exponents, 0)
        self.scaled = scale_all(self.values, self.exponents)
        # All but the largest, which is 1: the sum of these may be as small as it likes.
        rest = tuple(c.scatter(0, self.index, 0.0) for c in self.scaled)
        self.rest = _total(rest)


def _log_total(s: _Shifted) -> tuple[Components, Tensor]:
    """log(sum(exp(x - max))) = log(1 + rest)."""
    zero = s.rest[0] == 0
    rest = sanitized(s.rest, ~zero)
    one = torch.ones_like(rest[0])
    result, k = logarithm.log((one, *rest), ex.add((one,), (rest[0],))[0], s.working)
    return sanitized(result, ~zero, 0.0), k


@_in_registers
def softmax(x: Components, dim: int) -> Components:
    """exp(x_i) / sum_j exp(x_j) along a dimension, each with its full relative accuracy."""
    moved, fmt = _moved("softmax", x, dim)
    s = _Shifted(moved, fmt)
    total = ex.add(s.rest, torch.ones_like(s.rest[0]))
    shape = s.values[0].shape
    quotient = ex.div(s.values, tuple(c.expand(shape) for c in total))
    out = leave(quotient, fmt, len(x), s.exponents)
    out = special((s.nan | s.nothing).expand(shape), math.nan, out)
    return tuple(c.movedim(0, dim) for c in out)


@_in_registers
def log_softmax(x: Components, dim: int) -> Components:
    """x_i - logsumexp(x) along a dimension."""
    moved, fmt = _moved("log_softmax", x, dim)
    s = _Shifted(moved, fmt)
    result, k = _log_total(s)
    # As a number: no term of a sum is smaller than log(1 + exp(-1100)), or counts beside eta.
    shape = s.values[0].shape
    total = tuple(c.expand(shape) for c in scale_all(result, k))
    alone = s.difference[0] == 0
    difference = ex.add(head(s.difference, s.working), minus(total))
    k = torch.where(alone, k.expand(shape), 0)
    lone = tuple(-c.expand(shape) for c in result)
    out = leave(select(alone, lone, difference), fmt, len(x), k)
    gone = moved[0] == -math.inf
    out = special(gone, -math.inf, out)
    out = special((s.nan | s.nothing).expand(shape), math.nan, out)
    return tuple(c.movedim(0, dim) for c in out)


@_in_registers
def logsumexp(x: Components, dim: int) -> Components:
    """log(sum_j exp(x_j)) along a dimension, which it removes.

    The error is relative to the larger of the result and the largest x: where the two nearly
    cancel, it is that of x.
    """
    moved, fmt = _moved("logsumexp", x, dim)
    s = _Shifted(moved, fmt)
    result, k = _log_total(s)
    low = scale_all(result, k)
    zero = s.top[0] == 0
    total = ex.add(head(s.top, s.working), low)
    out = leave(select(zero, result, total), fmt, len(x), torch.where(zero, k, 0))
    out = special(s.nothing, -math.inf, out)
    first = moved[0]
    nan = first.isnan().any(0)
    out = special((first == math.inf).any(0), math.inf, out)
    return special(nan, math.nan, out)
