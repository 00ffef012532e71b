"""Checks for tensors of a step that share memory: two that are written would race."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from mcf.kernels.overlap import share, span


class Use(NamedTuple):
    """A tensor of a step, with its name for error messages and whether it is written."""

    where: str
    tensor: Tensor
    written: bool


def shared(uses: Sequence[Use]) -> Iterable[tuple[Use, Use]]:
    """Yield all pairs that share memory, at least one of which is written."""
    spans = [span(use.tensor) for use in uses]
    if disjoint([s for s, _ in spans], [e for _, e in spans]):
        return
    # By device, because addresses on two devices may coincide.
    order = sorted(range(len(uses)), key=lambda k: (str(uses[k].tensor.device), *spans[k]))
    open_: list[int] = []
    for k in order:
        start, end = spans[k]
        if start == end:
            continue
        here = uses[k].tensor.device
        open_ = [j for j in open_ if spans[j][1] > start and uses[j].tensor.device == here]
        for j in open_:
            a, b = uses[j], uses[k]
            if (a.written or b.written) and share(a.tensor, b.tensor):
                yield a, b
        open_.append(k)


def disjoint(starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Return whether stretches of memory are disjoint; empty ones overlap nothing."""
    first, last = (np.array(x, dtype=np.uint64) for x in (starts, ends))
    some = first != last
    first, last = first[some], last[some]
    order = np.argsort(first)
    return bool((last[order][:-1] <= first[order][1:]).all())


def check(uses: Sequence[Use]) -> set[int]:
    """Raise if two tensors that a step writes share memory.

    Returns:
        The ids of tensors that are only read, and share memory with one that is written. They must
        be read before anything is written.

    Raises:
        ValueError: naming both.
    """
    read = set()
    for a, b in shared(uses):
        if a.written and b.written:
            raise ValueError(
                f"{a.where} shares memory with {b.where}: a step writes both, and the result would "
                "depend on which comes last. To tie weights, use one Parameter in both places; "
                "else give one of them memory of its own (x.data = x.data.clone()), or leave it "
                "out of the optimizer"
            )
        read.add(id(a.tensor) if b.written else id(b.tensor))
    return read


def present(where: str, t: Tensor) -> None:
    """Raise unless a tensor has the memory that its shape and strides need.

    Raises:
        RuntimeError: if its storage was freed or cut short, as sharding and swapping do; reading it
            would crash the process.
    """
    if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__ or not t.numel():
        return
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    needed = (t.storage_offset() + last + 1) * t.element_size()
    found = t.untyped_storage().nbytes()
    if found < needed:
        raise RuntimeError(
            f"{where} has a storage of {found} bytes and needs {needed}: it was freed or resized "
            "after the tensor was made (untyped_storage().resize_); give it back first"
        )
