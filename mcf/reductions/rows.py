"""Move the dimensions that a reduction removes to the end, as one; register operators on rows.

An operator reads the choice of registers (`mcf.set_registers`) when it runs, so that a compiled
program follows it. The format of its results does not depend on the choice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components

Dim = int | Sequence[int] | None

# Smallest number of elements for which executors may have loops over interleaved rows.
_MANY = 1 << 15


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a reduction: [outer, length] views or copies of components of one shape.

    Args:
        shape: of the tensor.
        dims: the reduced dimensions, sorted.
        kept: the dimensions that are not reduced.
        length: the number of elements that are reduced to one.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    kept: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, shape: Sequence[int], dim: Dim) -> Rows:
        """Return the rows of a shape; as in PyTorch, None and () mean every dimension.

        Raises:
            IndexError: for a dimension that the tensor does not have.
            RuntimeError: for a dimension that is named twice.
        """
        n = len(shape)
        given = (dim,) if isinstance(dim, int) else tuple(dim or range(n))
        dims = []
        for d in given:
            least, most = -max(n, 1), max(n, 1) - 1
            if not least <= d <= most:
                raise IndexError(
                    f"Dimension out of range (expected to be in range of [{least}, {most}], but "
                    f"got {d})"
                )
            dims.append(d % n if n else 0)
        if len(set(dims)) != len(dims):
            raise RuntimeError(f"dim {list(given)} names a dimension more than once")
        reduced = tuple(sorted(dims)) if n else ()
        kept = tuple([d for d in range(n) if d not in reduced])
        return cls(tuple(shape), reduced, kept, math.prod([shape[d] for d in reduced]))

    def beside(self, x: Components) -> int:
        """Return the stride between a row's elements if rows can be folded in place, else 1."""
        if not self.dims or x[0].numel() < _MANY or not all(c.is_contiguous() for c in x):
            return 1
        first, last = self.dims[0], self.dims[-1]
        if last - first + 1 != len(self.dims) or self.length == 0:
            return 1
        return math.prod(self.shape[last + 1 :])

    def gather(self, x: Components) -> list[Tensor]:
        """Return each component as a contiguous [outer, length] tensor."""
        order = (*self.kept, *self.dims)
        size = math.prod([self.shape[d] for d in self.kept]), self.length
        if order != (*range(len(order)),):
            x = tuple([c.permute(order) for c in x])
        return [c.reshape(size).contiguous() for c in x]

    def arranged(self, x: Components, reproducible: bool = False) -> tuple[list[Tensor], int]:
        """Return components for an operator on [M / inner, length, inner], and `inner`.

        They are those of the tensor if `beside` allows it, else contiguous rows, `inner` being 1.
        """
        inner = 1 if reproducible else self.beside(x)
        return (list(x) if inner > 1 else self.gather(x)), inner

    def shaped(self, x: Sequence[Tensor], keepdim: bool) -> Components:
        """Return results [outer] in the shape of the reduction's result."""
        shape = self.result_shape(keepdim)
        return tuple(c.reshape(shape) for c in x)

    def result_shape(self, keepdim: bool) -> tuple[int, ...]:
        """Return the shape of the result."""
        if keepdim:
            return tuple(1 if d in self.dims else s for d, s in enumerate(self.shape))
        return tuple(self.shape[d] for d in self.kept)

    def spread(self, x: Tensor) -> Tensor:
        """Return a result [outer] as a view that broadcasts against the tensor."""
        return x.reshape(self.result_shape(True))


def check_same(function: str, **arguments: Tensor) -> None:
    """Raise TypeError unless all tensors have one dtype and device."""
    (first_name, first), *others = arguments.items()
    for name, t in others:
        for what in ("dtype", "device"):
            if getattr(t, what) != getattr(first, what):
                raise TypeError(
                    f"{function}: {name} has {what} {getattr(t, what)} and {first_name} has "
                    f"{getattr(first, what)}; convert one, nothing is rounded or moved silently"
                )
        if t.layout is not torch.strided:
            raise TypeError(f"{function}: {name} has layout {t.layout}; only dense tensors are")


_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Replace a function by an operator `torch.ops.mcf.NAME`, which `torch.compile` does not trace.

    Args:
        schema: NAME(arguments); the result is a list of tensors unless the schema names another.
        fake: returns new tensors like the results, for the same arguments.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _library.define(schema if "->" in schema else f"{schema} -> Tensor[]")  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"mcf::{name}", fake, lib=_library)
        return getattr(torch.ops.mcf, name)

    return register


def one_each(x: Sequence[Tensor], results: int, count: int = 0, inner: int = 1) -> list[Tensor]:
    """Return `results` new tensors with one number for each row.

    Rows are those of [M, K], or with an `inner` of more than 1 lie along the middle of
    [M / inner, count, inner].
    """
    rows = x[0].numel() // count if inner > 1 else x[0].shape[0]
    return [x[0].new_empty(rows) for _ in range(results)]


def one_for_each_row(x: list[Tensor], count: int, inner: int, *others: Any) -> list[Tensor]:
    """Return fake results of an operator with one number for each component and row."""
    return one_each(x, len(x), count, inner)


def as_rows(x: Sequence[Tensor], count: int, inner: int) -> list[Tensor]:
    """Return contiguous [M / inner, count, inner] as contiguous rows [M, count]."""
    if inner == 1:
        return list(x)
    return [c.view(-1, count, inner).mT.reshape(-1, count).contiguous() for c in x]
