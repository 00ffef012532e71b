"""Cached launches of searches in small sorted sequences (`mcf.kernels.row_tasks`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.launches import SMALL
from mcf.expansions.launch.row_launches import canonical_launch
from mcf.expansions.tensor import COMPONENTS, MCFTensor
from mcf.kernels import registry
from mcf.kernels.row_tasks import RowTask

_address = Tensor.data_ptr
_FLOAT64 = torch.float64
_MOST = 1024
_plans: dict[tuple[Any, ...], SearchPlan | None] = {}


def places(sequence: Any, values: Any, right: bool) -> Tensor | None:
    """Return how many elements of a sorted sequence precede each value, or None without a plan."""
    if type(sequence) is not MCFTensor or type(values) is not MCFTensor or watched():
        return None
    own, wanted = sequence.__dict__, values.__dict__
    s, w, terms = own["_c0"], wanted["_c0"], own["_terms"]
    if s.dtype is not _FLOAT64 or w.dtype is not _FLOAT64 or wanted["_terms"] != terms:
        return None
    if (
        type(s) is not Tensor
        or type(w) is not Tensor
        or not (s.is_contiguous() and w.is_contiguous())
    ):
        return None
    key = (terms, right, s.shape, s.device, w.shape, w.device, registry.get_executor())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = SearchPlan.of(s, w, terms, right)
    if plan is None:
        return None
    there, given = ([*map(_address, COMPONENTS[terms](o))] for o in (own, wanted))
    return plan.run(there, given)


class SearchPlan:
    """The launches that make two tensors canonical, and the launch of the search."""

    def __init__(self, sequence: Tensor, wanted: Tensor, terms: int, call: Any) -> None:
        """Create a plan of a prepared loop over the wanted values."""
        self._call, self._terms = call, terms
        self._sizes = sequence.numel(), wanted.numel()
        self._like = torch.empty(wanted.shape, dtype=torch.int64, device="cpu")
        self._canonical = [canonical_launch(terms, c) for c in (sequence, wanted)]
        self._free: list[tuple[Tensor, list[int], list[int]]] = []

    @classmethod
    def of(cls, sequence: Tensor, wanted: Tensor, terms: int, right: bool) -> SearchPlan | None:
        """Create the plan for a signature, or return None if only the operators support it."""
        if sequence.device.type != "cpu" or wanted.device.type != "cpu" or sequence.ndim != 1:
            return None
        if terms > 2 or not all(0 < c.numel() <= SMALL for c in (sequence, wanted)):
            return None
        sizes = sequence.numel(), wanted.numel()
        task = RowTask(f"search_{'right' if right else 'left'}", terms, 0, (*sizes, 0))
        call = registry.prepare_rows(task, (1, wanted.numel()), wanted.device)
        return None if call is None else cls(sequence, wanted, terms, call)

    def run(self, there: list[int], given: list[int]) -> Tensor:
        """Return the indices at which values at the addresses `given` are inserted in `there`."""
        out = torch.empty_like(self._like)
        if self._terms == 1:
            self._call([out.data_ptr(), *there, *given])
            return out
        # Concurrent calls must not share a workspace.
        try:
            found = self._free.pop()
        except IndexError:
            found = self._room()
        _, ordered, wanted = found
        self._canonical[0](ordered + there)
        self._canonical[1](wanted + given)
        self._call([out.data_ptr(), *ordered, *wanted])
        self._free.append(found)
        return out

    def _room(self) -> tuple[Tensor, list[int], list[int]]:
        """Return a workspace for the keys, and the addresses of both sets of keys."""
        size, count = self._sizes
        workspace = torch.empty(self._terms * (size + count), dtype=_FLOAT64, device="cpu")
        start = workspace.data_ptr()
        middle = start + 8 * self._terms * size
        each = range(self._terms)
        return (
            workspace,
            [start + 8 * size * k for k in each],
            [middle + 8 * count * k for k in each],
        )
