"""Cached launches of small matrix products: a fold of products, then finalized partial sums.

A plan runs the kernels of `mcf.reductions.products`, prepared once per signature. An element has
the same bits in products of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.launch.launches import SMALL, in_float64, new_like, rounding, row_launch
from mcf.expansions.launch.offsets import elements_in_order
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.operators import ADD, kernel, settle_kernel
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.register_choice import get_registers

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64 = torch.float64
_FORMATS = frozenset({torch.float64, torch.float32})
_MOST = 1024
_plans: dict[tuple[Any, ...], ProductPlan | None] = {}


# A transposed view: the order of dimensions, and the position of a new dimension of size 1.
Turned = tuple[tuple[int, ...], int | None]


def multiplied(
    x: Any,
    y: Any,
    first: Turned | None = None,
    second: Turned | None = None,
    plus: Any = None,
    out: Any = None,
) -> Any:
    """Return x @ y, or None where no plan supports it.

    The operands are matrices, vectors and batches of matrices.

    Args:
        x: the left operand.
        y: the right operand.
        first: a transposed view of the left operand to multiply instead.
        second: a transposed view of the right operand to multiply instead.
        plus: an expansion to add.
        out: a contiguous tensor for the result, which may share memory with an operand.
    """
    if type(x) is not MCFTensor or type(y) is not MCFTensor or watched():
        return None
    one, two = x.__dict__, y.__dict__
    a, b, terms = one["_c0"], two["_c0"], one["_terms"]
    if type(a) is not Tensor or type(b) is not Tensor or two["_terms"] != terms:
        return None
    if a.dtype is not b.dtype or a.dtype not in _FORMATS:
        return None
    key: tuple[Any, ...] = (terms, a.dtype, a.shape, a.device, b.shape, b.device, first, second)
    key += (None if a.is_contiguous() else a.stride(), None if b.is_contiguous() else b.stride())
    likes = [a, b]
    given = [*map(_address, COMPONENTS[terms](one)), *map(_address, COMPONENTS[terms](two))]
    if plus is not None:
        if type(plus) is not MCFTensor:
            return None
        other = plus.__dict__
        c = other["_c0"]
        if type(c) is not Tensor or c.dtype is not a.dtype or other["_terms"] != terms:
            return None
        key += (c.shape, c.device, c.stride())
        likes.append(c)
        given += map(_address, COMPONENTS[terms](other))
    key += (registry.get_executor(), get_registers())
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = ProductPlan.of(likes, terms, (first, second))
    if plan is None:
        return None
    if plan.laid:
        # The copies must live while the plan runs.
        copies = [plan.lay(k, COMPONENTS[terms]((one, two)[k]), given) for k in plan.laid]
        found = plan.run(given) if out is None else plan.into(given, out)
        del copies
        return found
    return plan.run(given) if out is None else plan.into(given, out)


class ProductPlan:
    """A product as a program of the addresses of the operands and of the result."""

    def __init__(
        self,
        like: Tensor,
        terms: int,
        program: Program,
        summed: bool,
        laid: dict[int, Turned | None],
    ) -> None:
        """Create a plan of a program.

        Args:
            like: a tensor with size, dtype and device of the result.
            terms: number of components of each operand.
            program: takes the addresses of operands, addend and result.
            summed: whether there is an addend.
            laid: operands that are copied in the order of reading, with their transposed views.
        """
        self.laid = laid
        size, self._dtype = like.shape, like.dtype
        self._like, self._size, self._terms, self._device = like, size, terms, like.device
        self._program, self._summed = program, summed

    @classmethod
    def of(
        cls, likes: Sequence[Tensor], terms: int, turned: Sequence[Turned | None]
    ) -> ProductPlan | None:
        """Create the plan for a signature, or return None if only the operators support it."""
        if not all(in_float64(c) and c.numel() for c in likes):
            return None
        a, b = (c if t is None else _view(c, t) for c, t in zip(likes, turned, strict=False))
        found = _sizes(a.shape, b.shape)
        if found is None:
            return None
        size, shape = found
        # The plan expands only small addends.
        if len(likes) > 2 and size.numel() > SMALL:
            return None
        fmt = FORMATS[a.dtype]
        item = int(fmt.itemsize)
        spec = product_fold(fmt, terms, terms, terms)
        call = registry.prepare_product(spec, shape, a.device)
        if call is None:
            return None
        state, count, number = spec.state, size.numel(), len(likes)
        given = (number + 1) * terms
        sizes: list[int] = []

        def workspaces(each: int, elements: int, size: int = 8) -> list[int]:
            at = given + len(sizes)
            sizes.extend([size * elements] * each)
            return [*range(at, at + each)]

        steps: list[Step] = []
        taken = [[*range(k * terms, (k + 1) * terms)] for k in range(number + 1)]
        views, laid = [a, b], dict[int, Turned | None]()
        if number > 2:
            try:
                views.append(likes[2].expand(size))
            except RuntimeError:
                return None
        for k, view in enumerate(views):
            if view.is_contiguous():
                continue
            if view.numel() > SMALL:
                laid[k] = turned[k]
                continue
            index = elements_in_order(view, range(view.ndim))
            if index is not None:
                moved = workspaces(terms, view.numel(), item)
                steps.append(Move(taken[k], moved, view.numel(), index, item))
                taken[k] = moved
        partial = workspaces(state, count)
        steps.append(Launch(call, taken[0] + taken[1], partial[0]))
        like = torch.empty(size, dtype=_FLOAT64, device="cpu")
        product = taken[-1] if number == 2 else workspaces(terms, count, item)
        settle = row_launch(settle_kernel(state), like)
        if fmt is FP64:
            # Components beyond the result's go to a workspace that nothing reads.
            rest = workspaces(state - terms, count)
            steps.append(Launch(settle, [*product, *rest, *partial]))
        else:
            whole = workspaces(state, count)
            steps.append(Launch(settle, [*whole, *partial]))
            steps.append(Launch(rounding(state, fmt, terms, like), [*product, *whole]))
        if number > 2:
            total = row_launch(kernel(ADD, fmt, terms, terms), like)
            steps.append(Launch(total, taken[-1] + product + taken[2]))
        program = Program.of(steps, given, sizes)
        if program is None:
            return None
        return cls(new_like(size, a.dtype, a.device), terms, program, number > 2, laid)

    def lay(self, k: int, parts: Components, given: list[int]) -> list[Tensor]:
        """Return contiguous copies of an operand's components; write their addresses to `given`."""
        turned = self.laid[k]
        copies = [(c if turned is None else _view(c, turned)).contiguous() for c in parts]
        given[k * self._terms : (k + 1) * self._terms] = map(_address, copies)
        return copies

    def run(self, given: list[int]) -> MCFTensor | None:
        """Compute the product of operands at addresses; None where only the operator rounds it."""
        like = self._like
        out = [_empty_like(like) for _ in range(self._terms)]
        if not self._program([*given, *map(_address, out)]):
            return None
        return fresh(out, self._size, self._dtype, self._device)

    def into(self, given: list[int], out: MCFTensor) -> MCFTensor | None:
        """Write the product to a tensor; return None, with nothing written, where that is unsafe.

        The last launch reads no operand, so `out` may overlap one, except where an addend is
        read. A float32 result might need the operator's rounding, so it is not written to `out`.
        """
        own = out.__dict__
        first, terms = own["_c0"], own["_terms"]
        if type(first) is not Tensor or terms != self._terms or first.dtype is not _FLOAT64:
            return None
        if self._dtype is not _FLOAT64:
            return None
        if first.shape != self._size or first.device != self._device or self._summed:
            return None
        if not first.is_contiguous():
            return None
        self._program([*given, *map(_address, COMPONENTS[terms](own))])
        return out


def _view(x: Tensor, turned: Turned) -> Tensor:
    order, new = turned
    x = x.permute(order)
    return x if new is None else x.unsqueeze(new)


def _sizes(a: torch.Size, b: torch.Size) -> tuple[torch.Size, tuple[int, int, int, int]] | None:
    """Return the result's size and (batch, rows, inner, columns); None for unsupported shapes."""
    dims = len(a), len(b)
    if a[-1:] != b[max(len(b) - 2, 0) :][:1]:
        return None
    batch = 1
    if dims == (2, 2):
        size = [a[0], b[1]]
    elif dims == (2, 1):
        size = [a[0]]
    elif dims == (1, 2):
        size = [b[1]]
    elif dims[0] > 2 and dims[1] in (1, 2):
        # A vector or a matrix is shared by all rows of a batch.
        size = [*a[:-1], *b[1:]]
    elif dims == (3, 3) and a[0] == b[0]:
        size, batch = [a[0], a[1], b[2]], a[0]
    else:
        return None
    rows = 1 if len(a) == 1 else a.numel() // (batch * a[-1])
    return torch.Size(size), (batch, rows, a[-1], b[-1] if len(b) > 1 else 1)
