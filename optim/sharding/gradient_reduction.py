"""Means of gradients over processes and micro-batches, with exact or float32 sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcf.optim.sharding import gradient_sums
from mcf.optim.sharding.exchange import Group, collected, dealt
from mcf.optim.sharding.shards import local

# Bytes of gradients per message; bounds the temporary memory.
BUCKET_BYTES = 25 << 20


class GradientReduction:
    """mean = round(sum of all micro-batches' gradients of all processes / their number).

    PyTorch's engines add bf16 gradients in bf16, in an order that depends on the number of
    processes: a sum of n numbers has up to n - 1 roundings of 2**-9, and other bits on every mesh.
    Here each gradient travels in its own dtype to the process that owns the piece (an all-to-all,
    which moves as many bytes as a reduce-scatter), is added there, and the mean is sent to all.

        reduction = GradientReduction(model.parameters(), how="exact")
        for micro in my_micro_batches:
            loss(micro).backward()
            reduction.add()
        reduction.finish()
        optimizer.step()

    how="exact": the sum has no error (`gradient_sums.ExactSum`) and the mean is rounded once, to
    nearest even: |error| <= half an ulp of the mean. It is a function of the set of gradients
    alone, so that one process with eight micro-batches, two with four and eight with one have the
    same bits, whatever the order. Owners keep 8 bytes per element of their pieces during a step,
    more only if gradients of one element differ by a factor above about 2**45.

    how="float32": sums in float32, 4 bytes per element of a piece; n summands leave at most (n - 1)
    2**-24 sum |g| / n before the mean is rounded. The bits depend on the number of processes.

    A NaN or an infinity of any process reaches the mean of all.

    Args:
        params: tensors whose `.grad` is reduced, the same on every process in the same order. For a
            DTensor it is the local part, which must be the same for all processes of the group.
        group: a group of torch.distributed; None for all processes, or this one alone if there is
            no process group.
        how: "exact" or "float32".

    Raises:
        ValueError: for another `how`, and for a group without this process.
        TypeError: in `add`, for gradients that are not bfloat16, float16 or float32, or sparse.
    """

    def __init__(self, params: Iterable[Tensor], group: Any = None, how: str = "exact") -> None:
        self.params = list(params)
        self.group = Group(group)
        self._sums = Sums(self.group, how)
        self.reset()

    def reset(self) -> None:
        """Discard the sums."""
        self._sums.reset()
        self._seen: set[int] = set()
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Add every parameter's gradient to the sums, and set `.grad` to None.

        All processes of the group call it, each with its own micro-batch. A parameter without a
        gradient adds zeros.
        """
        found = [check(p.grad, f"gradient {k}") for k, p in enumerate(self.params)]
        device = next((local(p).device for p in self.params), torch.device("cpu"))
        # A parameter without a gradient anywhere is skipped; otherwise all processes add one.
        have = self.group.largest([g is not None for g in found], device)
        some = [k for k, yes in enumerate(have) if yes]
        for bucket in _buckets([local(self.params[k]) for k in some]):
            keys = [some[j] for j in bucket]
            grads = []
            for k in keys:
                g, p = found[k], local(self.params[k])
                grads.append(torch.zeros_like(p) if g is None else g)
            self._sums.add(keys, grads)
        for p in self.params:
            p.grad = None
        self._seen.update(some)
        self.count += 1

    @torch.no_grad()
    def finish(self) -> None:
        """Set `.grad` of every parameter that had one anywhere to the mean, on all processes.

        Raises:
            RuntimeError: if nothing was added.
        """
        if not self.count:
            raise RuntimeError("finish() before add(): there is no gradient to take a mean of")
        some = sorted(self._seen)
        for bucket in _buckets([local(self.params[k]) for k in some]):
            keys = [some[j] for j in bucket]
            made = [torch.empty_like(self.params[k]) for k in keys]
            self._sums.means(keys, [local(t) for t in made], self.count * self.group.size)
            for k, t in zip(keys, made, strict=True):
                self.params[k].grad = t
        self.reset()


def reduce_gradients(
    params: Iterable[Tensor] | nn.Module, group: Any = None, how: str = "exact"
) -> None:
    """`.grad` of each parameter <- its mean over the processes of a group, in place of DDP's.

    It is `GradientReduction` with one micro-batch per process, with its guarantees.

    Args:
        params: tensors or a module, the same on every process in the same order.
        group: a group of torch.distributed; None for all processes.
        how: "exact" or "float32".

    Raises:
        ValueError: for another `how`, and for a group without this process.
        TypeError: for gradients that are not bfloat16, float16 or float32, or sparse.
    """
    tensors = params.parameters() if isinstance(params, nn.Module) else params
    reduction = GradientReduction(tensors, group, how)
    reduction.add()
    reduction.finish()


class Sums:
    """The sums of this process's pieces of some tensors, by a key for each."""

    def __init__(self, group: Group, how: str) -> None:
        if how not in gradient_sums.KINDS:
            known = " or ".join(repr(name) for name in gradient_sums.KINDS)
            raise ValueError(f"how must be {known}, got {how!r}")
        self._kind = gradient_sums.KINDS[how]
        self._group = group
        self._sums: dict[Any, gradient_sums.Sum] = {}

    def reset(self) -> None:
        """Discard all sums."""
        self._sums.clear()

    def add(self, keys: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Add all processes' versions of some tensors of one dtype and device."""
        for row in dealt(self._group, tensors):
            self.add_here(keys, row)

    def add_here(self, keys: Sequence[Any], pieces: Sequence[Tensor]) -> None:
        """Add pieces to the sums of this process."""
        for key, piece in zip(keys, pieces, strict=True):
            if key not in self._sums:
                self._sums[key] = self._kind(piece)
        gradient_sums.add([self._sums[key] for key in keys], pieces)

    def terms(self, key: Any) -> list[Tensor]:
        """Return the terms of a sum, one or more tensors of the piece's length."""
        return self._sums[key].terms

    def mean(self, key: Any, dtype: torch.dtype, count: int) -> Tensor:
        """Return the mean of this process's piece of a tensor, and discard its sum."""
        return self._sums.pop(key).rounded(dtype, count)

    def means(self, keys: Sequence[Any], out: Sequence[Tensor], count: int) -> None:
        """Fill whole tensors with means, on all processes."""
        pieces = [self.mean(key, t.dtype, count) for key, t in zip(keys, out, strict=True)]
        collected(self._group, pieces, out)


def check(grad: Tensor | None, name: str) -> Tensor | None:
    """Return the local part of a gradient that can be reduced, or None for None.

    Raises:
        TypeError: for another dtype or layout.
    """
    if grad is None:
        return None
    here = local(grad)
    if here.layout != torch.strided or here.dtype not in gradient_sums.DTYPES:
        raise TypeError(
            f"{name} has layout {here.layout} and dtype {here.dtype}; allowed are dense tensors of "
            f"{', '.join(map(str, gradient_sums.DTYPES))}"
        )
    return here


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the indices of tensors of one dtype and device, in messages of bounded size."""
    kinds: dict[Any, list[int]] = {}
    for k, t in enumerate(tensors):
        kinds.setdefault((t.dtype, t.device), []).append(k)
    for numbers in kinds.values():
        bucket: list[int] = []
        size = 0
        for k in numbers:
            more = tensors[k].numel() * tensors[k].element_size()
            if bucket and size + more > BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(k)
            size += more
        if bucket:
            yield bucket
