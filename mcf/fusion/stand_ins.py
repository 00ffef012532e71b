"""Proxies of tensors while a graph is recorded: the number and the system of each element.

Two integer tensors have the tensor's shape: `codes` has the index of an element in its system,
and `lanes` the index of the system, or -1 if all systems share the element. So PyTorch itself moves
elements (views, copies, broadcasts, concatenations), on both tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SHARED = -1


class MixedLanesError(Exception):
    """A number of one system depends on another's, or systems perform different operations."""


class Numbers(NamedTuple):
    """The elements of a tensor."""

    codes: Tensor
    lanes: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.codes.shape


def contiguous(codes: Tensor, lanes: Tensor) -> Numbers:
    """Return new numbers, contiguous as a kernel writes them."""
    return Numbers(codes.contiguous(), lanes.contiguous())


def moved(func: Any, args: Any, kwargs: Any, zero: int = 0) -> Any:
    """Apply a function that moves elements to numbers.

    Args:
        func: a function of PyTorch; if it fills with zeros, these have the code `zero`.
        args: its arguments, numbers in place of tensors.
        kwargs: further arguments, without tensors.
        zero: a code.
    """
    codes = func(*_replaced(args, lambda x: x.codes - zero if zero else x.codes), **kwargs)
    # Add 1, so that filled-in zeros become shared elements.
    lanes = func(*_replaced(args, lambda x: x.lanes + 1), **kwargs)
    if isinstance(codes, Tensor):
        return Numbers(codes + zero if zero else codes, lanes - 1)
    return [Numbers(c, n - 1) for c, n in zip(codes, lanes, strict=True)]


def _replaced(x: Any, part: Callable[[Numbers], Tensor]) -> Any:
    if isinstance(x, Numbers):
        return part(x)
    if isinstance(x, list | tuple):
        return type(x)(_replaced(each, part) for each in x)
    return x


def spread(given: Sequence[Numbers]) -> list[Numbers]:
    """Broadcast operands to one shape."""
    codes = torch.broadcast_tensors(*(x.codes for x in given))  # type: ignore[no-untyped-call]
    lanes = torch.broadcast_tensors(*(x.lanes for x in given))  # type: ignore[no-untyped-call]
    return [Numbers(c, n) for c, n in zip(codes, lanes, strict=True)]


class Places(NamedTuple):
    """Elements of a tensor by system.

    Args:
        shared: the flat indices of elements that all systems share.
        own: the flat indices [systems, count] of the other elements.
    """

    shared: Tensor
    own: Tensor


def by_lane(lanes: Tensor, systems: int) -> Places:
    """Return the elements of each system in order.

    Raises:
        MixedLanesError: if one system has more elements than another.
    """
    flat = lanes.reshape(-1)
    shared = (flat == SHARED).nonzero()[:, 0]
    mine, order = flat.sort(stable=True)
    own = order[len(shared) :]
    count, left = divmod(len(own), systems)
    expected = torch.arange(systems, device="cpu").repeat_interleave(count)
    if left or not torch.equal(mine[len(shared) :], expected):
        raise MixedLanesError("systems have different numbers of elements")
    return Places(shared, own.view(systems, count))
