"""Running extremes in rows: the index of the largest or smallest element so far."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.algorithms.order import DOES_NOT_FOLLOW, DOES_NOT_PRECEDE
from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP64
from mcf.kernels.narrow_keys import narrow_keys
from mcf.kernels.row_tasks import RowTask
from mcf.kernels.torch.registers import primitives


@functools.cache
def _bound(terms: int, largest: bool) -> Callable[[Any, Any], Tensor]:
    bind = Binder(lambda f: f, primitives(FP64, FP64, {"rc": FP64}))
    function: Callable[[Any, Any], Tensor] = bind(
        (DOES_NOT_FOLLOW if largest else DOES_NOT_PRECEDE)[terms]
    )
    return function


def _doubling(keys: Sequence[Tensor], largest: bool) -> Tensor:
    """Return the indices in log2(count) steps; a step of width k covers 2 k elements."""
    rows, count = keys[0].shape
    wins = _bound(len(keys), largest)
    index = torch.arange(count, device=keys[0].device).expand(rows, count)
    width = 1
    while width < count:
        before, after = index[:, : count - width], index[:, width:]
        u, v = (tuple(k.gather(1, at) for k in keys) for at in (before, after))
        later = torch.where(wins(u, v), after, before)
        index = torch.cat([index[:, :width], later], 1)
        width *= 2
    return index.contiguous()


def _extremes(keys: list[Tensor], largest: bool) -> Tensor:
    # Use the sums of narrow pairs as keys: a first component alone would not decide the order.
    sums = narrow_keys(keys) if len(keys) == 2 else None
    given = [k.to(torch.float64).contiguous() for k in keys] if sums is None else sums
    if not given[0].numel():
        return torch.empty(given[0].shape, dtype=torch.int64, device=given[0].device)
    index = torch.empty(given[0].shape, dtype=torch.int64, device=given[0].device)
    task = RowTask("running_largest" if largest else "running_smallest", len(given))
    rows, count = index.shape
    if registry.rows(task, (rows, count), [index, *given]):
        return index
    return _doubling(given, largest)


_library = torch.library.Library("mcf", "FRAGMENT")
_library.define("running_extremes(Tensor[] keys, bool largest) -> Tensor")
_library.impl("running_extremes", _extremes, "CompositeExplicitAutograd")
torch.library.register_fake(
    "mcf::running_extremes",
    lambda keys, largest: torch.empty(keys[0].shape, dtype=torch.int64, device=keys[0].device),
    lib=_library,
)


def running_extremes(keys: Sequence[Tensor], largest: bool) -> Tensor:
    """Return the index of the largest or smallest element so far, the last if equal; NaN stays.

    Args:
        keys: canonical components [rows, count] of any format.
        largest: whether to return the largest element.

    Returns:
        int64 [rows, count].
    """
    result: Tensor = torch.ops.mcf.running_extremes(list(keys), largest)
    return result
