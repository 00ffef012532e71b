"""softmax, log_softmax and logsumexp along a dimension.

Each consists of elementwise steps (`mcf.elementary.fused`), and between them the maximum and the
sum of each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mcf.elementary import exponential
from mcf.elementary import working as ex
from mcf.elementary.format import computing_in, working
from mcf.elementary.fused import Step, run_step
from mcf.elementary.hyperbolic import log1p
from mcf.elementary.operator import checked
from mcf.elementary.tables import Components
from mcf.kernels import operations as op
from mcf.kernels import registry
from mcf.kernels.formats import Format, format_of
from mcf.kernels.register_choice import registers_for
from mcf.kernels.row_tasks import RowTask

# Shorter rows are added side by side, element by element.
_SHORT = 32


class Rows(NamedTuple):
    """The layout of rows in two dimensions.

    Args:
        axis: the dimension of a row's elements: 1 if an executor may have loops over rows, else 0,
            so
            that elementwise kernels add all rows at once.
    """

    axis: int

    @classmethod
    def of(cls, shape: torch.Size, dim: int, dtype: torch.dtype | None) -> Rows:
        """Return the layout of rows along a dimension of a shape, for a working dtype."""
        long = shape[dim] >= _SHORT or shape[dim] == shape.numel()
        return cls(int(long and dtype is torch.float64))

    def flat(self, x: Tensor, dim: int) -> Tensor:
        """Return a tensor in two dimensions, contiguous."""
        count = x.shape[dim]
        if self.axis:
            return x.movedim(dim, -1).reshape(-1, count).contiguous()
        return x.movedim(dim, 0).reshape(count, -1).contiguous()

    def shaped(self, x: Tensor, shape: Sequence[int], dim: int) -> Tensor:
        """Undo `flat` for a tensor of this shape; the result is contiguous."""
        size = [*shape]
        length = size.pop(dim)
        moved = [*size, length] if self.axis else [length, *size]
        return x.reshape(moved).movedim(-self.axis, dim).contiguous()

    def largest(self, x: Components) -> tuple[Tensor, Components]:
        """Return the index of each row's largest number (the first if equal), and the number.

        NaN is the largest; then the index is arbitrary. Normalised expansions are ordered by their
        leading components, then the next, and so on.
        """
        rows, count = self._shape(x)
        found = self._alone(x) if x[0].device.type == "cpu" else None
        if found is not None:
            return found
        if self.axis:
            index = torch.empty(rows, dtype=torch.int64, device=x[0].device)
            top = tuple(c.new_empty(rows) for c in x)
            task = RowTask("largest", len(x), len(x))
            if registry.rows(task, (rows, count), [index, *top, *x, *x]):
                return index, top
        among = torch.ones_like(x[0], dtype=torch.bool)
        for c in x:
            candidates = torch.where(among, c, -math.inf)
            largest = candidates.amax(self.axis, keepdim=True)
            if c is x[0]:
                nan = largest.isnan()
            among = among & (candidates == largest)
        index = among.to(torch.int8).argmax(self.axis, keepdim=True)
        first, *others = (c.gather(self.axis, index).view(rows) for c in x)
        return index.view(rows), (torch.where(nan.view(rows), math.nan, first), *others)

    def _alone(self, x: Components) -> tuple[Tensor, Components] | None:
        """Return the largest numbers if leading components decide; None otherwise."""
        first, index = x[0].max(self.axis, keepdim=True)
        # Without NaN every row has a maximum, so this count means exactly one per row.
        if int((x[0] == first).count_nonzero()) != len(index.view(-1)) or bool(first.isnan().any()):
            return None
        return index.view(-1), tuple(c.gather(self.axis, index).view(-1) for c in x)

    def spread(self, x: Components, like: Tensor) -> Components:
        """Broadcast numbers of rows to their elements."""
        return tuple(c.unsqueeze(self.axis).expand(like.shape).contiguous() for c in x)

    def rest(self, x: Components, index: Tensor) -> Components:
        """Return sums of all numbers except one of each row, in pairs; x is changed."""
        rows, count = self._shape(x)
        if self.axis:
            sums = tuple(c.new_empty(rows) for c in x)
            if registry.rows(RowTask("rest", len(x)), (rows, count), [*sums, index, *x]):
                return sums
        for c in x:
            c.scatter_(self.axis, index.unsqueeze(self.axis), 0.0)
        return _total(x if self.axis == 0 else tuple(c.mT.contiguous() for c in x))

    def _shape(self, x: Components) -> tuple[int, int]:
        """Return the number of rows and their length."""
        return x[0].shape[1 - self.axis], x[0].shape[self.axis]


def _total(x: Components) -> Components:
    """Return the sum over dimension 0, in pairs."""
    while x[0].shape[0] > 1:
        n = x[0].shape[0]
        half = n // 2
        total = op.add(tuple(c[:half] for c in x), tuple(c[half : 2 * half] for c in x))
        if n % 2:
            total = tuple(torch.cat([c, last[-1:]]) for c, last in zip(total, x, strict=True))
        x = total
    return tuple(c[0] for c in x)


def _entered(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Convert the numbers to working components."""
    return ex.enter(given[0], fmt)


def _is_number(x: Tensor) -> Tensor:
    """Return where a number is neither infinite nor NaN."""
    return x.abs() < math.inf


def _difference(x: Components, top: Components) -> tuple[Components, Tensor]:
    """Return x - max(x), and whether it is finite; 0 elsewhere."""
    number = _is_number(top[0])
    usable = (x[0] > -math.inf) & number
    apart = (*x, *ex.minus(ex.sanitized(top, number, 0.0)))
    return ex.collected(ex.sanitized(apart, usable, 0.0), 4), usable


def _shifted(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return exp(x - max(x)) as components and an exponent, and also with the exponent applied."""
    x, top = given
    difference, usable = _difference(x, top)
    near = usable & (difference[0] >= -working().exp_limit)
    values, exponents = exponential.scaled_exp(ex.sanitized(difference, near, 0.0), terms)
    values = ex.sanitized(values, near, 0.0)
    exponents = torch.where(near, exponents, 0)
    return (*values, exponents.to(x[0].dtype), *ex.scale_all(values, exponents))


def _quotient(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return softmax from the result of `_shifted`, the rest of the sum and the maximum."""
    values, (exponent,), rest, (top,) = given
    total = op.add(rest, torch.ones_like(top))
    out = ex.leave(op.div(values, total), fmt, terms, exponent.to(torch.int64))
    return ex.special(~_is_number(top), math.nan, out)


def _log_total(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return log(sum(exp(x - max(x)))) = log(1 + rest), as components and an exponent."""
    (rest,) = given
    zero = rest[0] == 0
    rest = ex.sanitized(rest, ~zero)
    result, k = log1p(rest, terms)
    return (*ex.sanitized(result, ~zero, 0.0), k.to(rest[0].dtype))


def _less(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return log_softmax from x, the maximum and the result of `_log_total`."""
    x, top, result, (exponent,) = given
    difference, _ = _difference(x, top)
    k = exponent.to(torch.int64)
    # Apply the exponent: each term of a sum is at least log(1 + exp(-1100)), or negligible next
    # to eta.
    total = ex.scale_all(result, k)
    alone = difference[0] == 0
    left = op.add(ex.head(difference, len(result)), ex.minus(total))
    k = torch.where(alone, k, 0)
    out = ex.leave(ex.select(alone, ex.minus(result), left), fmt, terms, k)
    out = ex.special(x[0] == -math.inf, -math.inf, out)
    return ex.special(~_is_number(top[0]), math.nan, out)


def _sum(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """Return logsumexp from the maximum and the result of `_log_total`."""
    top, result, (exponent,) = given
    k, first = exponent.to(torch.int64), top[0]
    top = ex.sanitized(top, _is_number(first), 0.0)
    zero = top[0] == 0
    total = op.add(ex.head(top, len(result)), ex.scale_all(result, k))
    out = ex.leave(ex.select(zero, result, total), fmt, terms, torch.where(zero, k, 0))
    out = ex.special(first == -math.inf, -math.inf, out)
    out = ex.special(first == math.inf, math.inf, out)
    return ex.special(first.isnan(), math.nan, out)


ENTERED = Step("entered", _entered, ("x",), enters=True)
SHIFTED = Step("shifted_exp", _shifted, ("x", "top"))
QUOTIENT = Step("softmax", _quotient, ("values", "exponent", "rest", "top"), leaves=True)
LOG_TOTAL = Step("log_total", _log_total, ("rest",))
LESS = Step("log_softmax", _less, ("x", "top", "result", "exponent"), leaves=True)
SUM = Step("logsumexp", _sum, ("top", "result", "exponent"), leaves=True)
# Elements per thread at a time: smaller chunks mean more calls, larger ones more temporary memory.
_CHUNK = 1 << 18


def _rows(name: str, x: Components, rows: Rows, fmt: Format, out: list[Tensor]) -> None:
    """Compute a function of rows of working components, and store it in `out`."""
    terms = len(out)
    n = ex.working_terms(fmt, terms)
    index, top = rows.largest(x)
    tops = rows.spread(top, x[0])
    shifted = run_step(SHIFTED, fmt, n, (x, tops))
    rest = rows.rest(shifted[n + 1 :], index)
    if name == "softmax":
        spread = rows.spread(rest, x[0])
        given = shifted[:n], shifted[n : n + 1], spread, tops[:1]
        run_step(QUOTIENT, fmt, terms, given, out)
        return
    total = run_step(LOG_TOTAL, fmt, n, (rest,))
    if name == "log_softmax":
        spread = rows.spread(total, x[0])
        run_step(LESS, fmt, terms, (x, tops, spread[:n], spread[n:]), out)
    else:
        run_step(SUM, fmt, terms, (top, total[:n], total[n:]), out)


def _compute(name: str, x: list[Tensor], dim: int) -> list[Tensor]:
    first = x[0]
    fmt, terms = format_of(first.dtype), len(x)
    out, one_each = _fake(name, x, dim), name == "logsumexp"
    if first.numel() == 0:
        return out
    with computing_in(registers_for(fmt, first.device)):
        width = working().format
        rows = Rows.of(first.shape, dim, width.dtype)
        flat = [rows.flat(c, dim) for c in x]
        axis = 1 - rows.axis
        # Results have the layout of the rows, except for logsumexp.
        written = [c.view(-1) if one_each else torch.empty_like(flat[0]) for c in out]
        size = flat[0].shape[axis]
        if first.device.type == "cpu":
            most = _CHUNK * torch.get_num_threads()
            size = max(1, most // flat[0].shape[rows.axis])
        parts = [torch.split(c, size, axis) for c in flat]
        targets = [torch.split(c, size, 0 if one_each else axis) for c in written]
        for part, target in zip(zip(*parts, strict=True), zip(*targets, strict=True), strict=True):
            given = tuple(c.contiguous() for c in part)
            given = given if fmt is width else run_step(ENTERED, fmt, terms, (given,))
            _rows(name, given, rows, fmt, [*target])
    return out if one_each else [rows.shaped(c, first.shape, dim) for c in written]


def _fake(name: str, x: list[Tensor], dim: int) -> list[Tensor]:
    shape = [*x[0].shape]
    if name == "logsumexp":
        del shape[dim]
    return [c.new_empty(shape) for c in x]


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("along(str name, Tensor[] x, int dim) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.impl("along", _compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("mcf::along", _fake, lib=_library)


def _along(name: str, x: Components, dim: int) -> Components:
    tensors = checked(name, x)
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        raise IndexError(f"{name}: dim must be in [{-first.dim()}, {first.dim() - 1}], got {dim}")
    if first.shape[dim] == 0:
        raise ValueError(f"{name}: dimension {dim} is empty")
    return tuple(torch.ops.mcf.along(name, tensors, dim))


def softmax(x: Components, dim: int) -> Components:
    """Return exp(x_i) / sum_j exp(x_j) along a dimension, each with full relative accuracy."""
    return _along("softmax", x, dim)


def log_softmax(x: Components, dim: int) -> Components:
    """Return x_i - logsumexp(x) along a dimension."""
    return _along("log_softmax", x, dim)


def logsumexp(x: Components, dim: int) -> Components:
    """Return log(sum_j exp(x_j)) along a dimension, which it removes.

    The error is relative to the larger of the result and the largest x: where the two nearly
    cancel, it is that of x.
    """
    return _along("logsumexp", x, dim)
