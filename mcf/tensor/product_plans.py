"""Matrix products of few numbers by plan: a fold of products, and what its partial sums settle to.

They are the kernels of `mcf.reductions.products`, prepared once for operands of a kind. An element
has the same bits in a product of any shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import settle_kernel
from mcf.tensor.copies import Copies
from mcf.tensor.launches import SMALL
from mcf.tensor.recorded import watched
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64 = torch.float64
_FEW = 64
_MOST = 1024
_plans: dict[tuple[Any, ...], ProductPlan | None] = {}


def multiplied(x: Any, y: Any) -> MCFTensor | None:
    """x @ y of two matrices, a matrix and a vector, two batches or a batch and one of the others.

    None where there is no plan.
    """
    if type(x) is not MCFTensor or type(y) is not MCFTensor or watched():
        return None
    one, two = x.__dict__, y.__dict__
    a, b, terms = one["_c0"], two["_c0"], one["_terms"]
    if type(a) is not Tensor or type(b) is not Tensor or two["_terms"] != terms:
        return None
    if a.dtype is not _FLOAT64 or b.dtype is not _FLOAT64:
        return None
    key = (terms, a.shape, a.device, b.shape, b.device, registry.get_executor())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = ProductPlan.of(a, b, terms)
    if plan is None:
        return None
    return plan.run(COMPONENTS[terms](one), COMPONENTS[terms](two))


class ProductPlan:
    """The launches of a product of contiguous components of float64."""

    def __init__(
        self, size: torch.Size, terms: int, state: int, call: Any, shapes: tuple[Any, Any]
    ) -> None:
        """A plan of a prepared fold, for operands of these shapes."""
        # Of operands that are not contiguous.
        self._copies = [Copies(terms, shape, range(len(shape))) for shape in shapes]
        self._call, self._size, self._terms, self._state = call, size, terms, state
        self._count = size.numel()
        like = torch.empty(size, dtype=_FLOAT64, device="cpu")
        self._like, self._device = like, like.device
        spec = settle_kernel(state)
        launch = registry.prepare(spec, [[like] * len(spec.fields)])
        assert launch is not None
        self._settle = launch.row(np.ones((1, len(spec.scalars))))
        self._free: list[tuple[Any, list[int], list[int]]] = []

    @classmethod
    def of(cls, a: Tensor, b: Tensor, terms: int) -> ProductPlan | None:
        """The plan for tensors of one kind, or None if only the operators can take them."""
        dims = a.ndim, b.ndim
        if a.device.type != "cpu" or b.device.type != "cpu" or 0 in (a.numel(), b.numel()):
            return None
        if a.shape[-1:] != b.shape[max(b.ndim - 2, 0) :][:1]:
            return None
        if dims == (2, 2):
            size, batch = [a.shape[0], b.shape[1]], 1
        elif dims == (2, 1):
            size, batch = [a.shape[0]], 1
        elif dims == (1, 2):
            size, batch = [b.shape[1]], 1
        elif dims[0] > 2 and dims[1] in (1, 2):
            # A vector or a matrix beside a batch is one for all rows.
            size, batch = [*a.shape[:-1], *b.shape[1:]], 1
        elif dims == (3, 3) and a.shape[0] == b.shape[0]:
            size, batch = [a.shape[0], a.shape[1], b.shape[2]], a.shape[0]
        else:
            return None
        rows = 1 if a.ndim == 1 else a.numel() // (batch * a.shape[-1])
        columns = b.shape[-1] if b.ndim > 1 else 1
        if max(a.numel(), b.numel(), batch * rows * columns) > SMALL:
            return None
        spec = product_fold(FP64, terms, terms, terms)
        call = registry.prepare_product(spec, (batch, rows, a.shape[-1], columns), a.device)
        if call is None:
            return None
        return cls(torch.Size(size), terms, spec.state, call, (a.shape, b.shape))

    def run(self, x: Components, y: Components) -> MCFTensor:
        """The product of operands of the kind."""
        # A call's room is one that no other call has at the time.
        try:
            found = self._free.pop()
        except IndexError:
            found = self._room()
        _, partial, rest = found
        out = [_empty_like(self._like) for _ in range(self._terms)]
        given: list[int] = []
        taken = []
        for copies, parts in zip(self._copies, (x, y), strict=True):
            if parts[0].is_contiguous():
                given += map(_address, parts)
            else:
                copied = copies.taken(parts)
                given += copied[1]
                taken.append((copies, copied))
        self._call(given, partial[0])
        for copies, copied in taken:
            copies.freed(copied)
        self._settle([*map(_address, out), *rest, *partial])
        self._free.append(found)
        return fresh(out, self._size, _FLOAT64, self._device)

    def _room(self) -> tuple[Any, list[int], list[int]]:
        """Room for partial sums and for what nobody asks for: the addresses."""
        state = self._state
        room = torch.empty(2 * state, self._count, dtype=_FLOAT64, device="cpu")
        places = [room.data_ptr() + 8 * self._count * k for k in range(2 * state)]
        return room, places[:state], places[state + self._terms :]
