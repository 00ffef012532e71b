"""What stands in for a tensor while a graph is recorded: which number each element is, and whose.

Two tensors of integers have the tensor's shape: `codes` says which number of a system an element
is, `lanes` which system has it, or -1 where all systems share it. So whatever moves elements about
(views, copies, broadcasts, concatenations) is done by torch itself, to both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SHARED = -1


class MixedLanesError(Exception):
    """A number of one system depends on another's, or systems do not do the same."""


class Numbers(NamedTuple):
    """The elements of a tensor."""

    codes: Tensor
    lanes: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the tensor."""
        return self.codes.shape


def contiguous(codes: Tensor, lanes: Tensor) -> Numbers:
    """New numbers, as a kernel writes them."""
    return Numbers(codes.contiguous(), lanes.contiguous())


def moved(func: Any, args: Any, kwargs: Any, zero: int = 0) -> Any:
    """What a function that moves elements makes of numbers.

    Args:
        func: of torch; where it fills up with zeros, those are of the code `zero`.
        args: its arguments, numbers in the place of tensors.
        kwargs: more of them, without tensors.
        zero: a code.
    """
    codes = func(*_replaced(args, lambda x: x.codes - zero if zero else x.codes), **kwargs)
    # One more, so that what is filled up is shared.
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
    """Operands of one shape."""
    codes = torch.broadcast_tensors(*(x.codes for x in given))  # type: ignore[no-untyped-call]
    lanes = torch.broadcast_tensors(*(x.lanes for x in given))  # type: ignore[no-untyped-call]
    return [Numbers(c, n) for c, n in zip(codes, lanes, strict=True)]


class Places(NamedTuple):
    """Elements of a tensor by system.

    Args:
        shared: the flat indices of those that all systems share.
        own: the flat indices [systems, count] of the others.
    """

    shared: Tensor
    own: Tensor


def by_lane(lanes: Tensor, systems: int) -> Places:
    """The elements of each system in order.

    Raises:
        MixedLanesError: where one has more than another.
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
