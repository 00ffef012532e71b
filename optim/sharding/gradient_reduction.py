"""Means of gradients over processes and micro-batches, with exact or float32 sums."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcf.convert.rounding import round_odd, round_to
from mcf.kernels import registry
from mcf.kernels.algorithms import two_sum
from mcf.kernels.algorithms.primitives import ZERO, where
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP64, Format, format_of
from mcf.optim.sharding.processes import Group
from mcf.optim.sharding.shards import local

# Bytes of gradients per message; bounds the temporary memory.
BUCKET_BYTES = 25 << 20


class GradientReduction:
    """Average gradients over micro-batches and processes, with one rounding.

    mean = round(sum of all micro-batches' gradients of all processes / their number)

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

    how="exact": the sum has no error (`ExactSum`) and the mean is rounded once, to
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
    """Replace each `.grad` by its mean over the processes of a group, in place of DDP's mean.

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
        if how not in KINDS:
            known = " or ".join(repr(name) for name in KINDS)
            raise ValueError(f"how must be {known}, got {how!r}")
        self._kind = KINDS[how]
        self._group = group
        self._sums: dict[Any, Sum] = {}

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
        add([self._sums[key] for key in keys], pieces)

    def terms(self, key: Any) -> list[Tensor]:
        """Return the terms of a sum, one or more tensors of the piece's length."""
        return self._sums[key].components

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
    if here.layout != torch.strided or here.dtype not in DTYPES:
        raise TypeError(
            f"{name} has layout {here.layout} and dtype {here.dtype}; allowed are dense tensors of "
            f"{', '.join(map(str, DTYPES))}"
        )
    return here


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the indices of tensors of one dtype and device, in messages of bounded size."""
    open_: dict[Any, tuple[list[int], int]] = {}
    for k, t in enumerate(tensors):
        kind = t.dtype, t.device
        bucket, size = open_.get(kind, ([], 0))
        if bucket and size + t.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(k)
        open_[kind] = bucket, size + t.nbytes
    yield from (bucket for bucket, _ in open_.values())


def dealt(group: Group, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return, for each process, its version of this process's piece of each tensor.

    Args:
        group: the group, whose processes all call this with tensors of the same sizes.
        tensors: tensors of one dtype and device.
    """
    lengths = [group.piece(t.numel()) for t in tensors]
    rows = tensors[0].new_empty(group.size, sum(lengths))
    for t, part in zip(tensors, torch.split(rows, lengths, dim=1), strict=True):
        flat = t.reshape(-1)
        whole = flat.numel() // part.shape[1] if part.shape[1] else 0
        cut = whole * part.shape[1]
        part[:whole] = flat[:cut].view(whole, -1) if whole else part[:0]
        part[whole:] = 0
        if cut < flat.numel():
            part[whole, : flat.numel() - cut] = flat[cut:]
    return [list(torch.split(row, lengths)) for row in group.all_to_all(rows)]


def collected(group: Group, pieces: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Fill tensors, on every process, with the pieces of all processes."""
    found = group.all_gather(torch.cat(list(pieces)))
    lengths = [len(p) for p in pieces]
    for t, part in zip(tensors, torch.split(found, lengths, dim=1), strict=True):
        t.copy_(part.reshape(-1)[: t.numel()].view(t.shape))


# Elements rounded at a time.
BLOCK = 1 << 14

# Dtypes of terms; with float64 the sum's components could overflow.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def add_term(total, term):  # type: ignore[no-untyped-def]
    """s + e = total + term exactly; e is 0 if the sum is not finite."""
    s, e = two_sum(total, term)  # type: ignore[no-untyped-call]
    return s, where(e == e, e, ZERO)  # type: ignore[no-untyped-call]


def inexact(out_error):  # type: ignore[no-untyped-def]
    """Return whether the error is not 0."""
    return (out_error != ZERO,)


@functools.cache
def kernel(fmt: Format) -> Elementwise:
    """total <- RN(total + term), error <- the rounding error; counts the nonzero errors."""
    return Elementwise(
        name=f"add_term_{fmt.name}",
        function=add_term,
        results=("total", "error"),
        fields=(
            Field("total", FP64, written=True),
            Field("error", FP64, read=False, written=True),
            Field("term", fmt),
        ),
        stores=(("total", "total"), ("error", "error")),
        arithmetic=FP64,
        roundings=(("rc", FP64),),
        rounded=("total", "error"),
        sums=inexact,
        sum_count=1,
        counts=1,
    )


class Sum:
    """A sum of tensors of one shape, as components of one dtype that add up to it."""

    dtype: torch.dtype

    def __init__(self, like: Tensor) -> None:
        """Begin with zero, with a tensor's number of elements and device."""
        self.components: list[Tensor] = []
        self.extend(like)

    def extend(self, like: Tensor) -> None:
        """Append a component of zeros."""
        self.components.append(torch.zeros(like.numel(), dtype=self.dtype, device=like.device))

    def rounded(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return sum / count in a dtype."""
        raise NotImplementedError


class ExactSum(Sum):
    """The sum of any number of tensors of one shape, without any error.

    It is kept as an expansion of float64 components, x0 + x1 + ...: each term is added to x0 by
    TwoSum, whose error is added to x1 in the same way, and so on; a component is added if the last
    one has an error (Shewchuk 1997, doi:10.1007/PL00009321). One component, 8 bytes per element,
    holds the sum of n bf16 numbers that lie within 45 - log2(n) binades of the largest.

    The value is the mathematical sum, so it depends neither on the order of the terms nor on how
    they were grouped in partial sums. NaN and infinities are those of IEEE sums: inf - inf is NaN.
    """

    dtype = torch.float64

    def rounded(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return sum / count, rounded once to nearest even; zeros are +0.

        Args:
            dtype: bfloat16, float16 or float32.
            count: at most 2**26: a float64 sum divided by it and rounded to float32 is then the
                correctly rounded mean.
        """
        made = self.components[0].new_empty(self.components[0].numel(), dtype=dtype)
        # In blocks, so that a CPU's cache holds all temporary tensors.
        size = BLOCK if made.device.type == "cpu" else max(1, made.numel())
        blocks = zip(*(torch.split(x, size) for x in (made, *self.components)), strict=True)
        for out, *here in blocks:
            out.copy_(_rounded(here, dtype, count))
        return made


class Float32Sum(Sum):
    """The sum of tensors of one shape in float32, each addition rounded, in the order of calls.

    For n terms |error| <= (n - 1) 2**-24 sum |term| to first order. 4 bytes per element.
    """

    dtype = torch.float32

    def rounded(self, dtype: torch.dtype, count: int) -> Tensor:
        """Return sum / count, rounded to float32 and then to `dtype`."""
        return (self.components[0] / count).to(dtype) + 0.0


KINDS: dict[str, type[Sum]] = {"exact": ExactSum, "float32": Float32Sum}


@torch.no_grad()
def add(sums: Sequence[Any], terms: Sequence[Tensor]) -> None:
    """Add a flat tensor to each of some sums, all of one class, the terms of one dtype."""
    pairs = [(s, t) for s, t in zip(sums, terms, strict=True) if t.numel()]
    if pairs and isinstance(pairs[0][0], Float32Sum):
        for s, t in pairs:
            s.components[0] += t
        return
    level = 0
    while pairs:
        rows = []
        for s, t in pairs:
            if level == len(s.components):
                s.extend(t)
            rows.append([s.components[level], torch.empty_like(s.components[level]), t])
        spec = kernel(format_of(rows[0][2].dtype, "gradient"))
        nothing = torch.zeros(len(rows), 0, dtype=torch.float64, device="cpu")
        lost = registry.run(spec, rows, nothing)
        assert lost is not None
        some = lost[:, 0].tolist()
        left = zip(pairs, rows, some, strict=True)
        pairs = [(s, error) for (s, _), (_, error, _), count in left if count]
        level += 1


def _settled(components: Sequence[Tensor]) -> list[Tensor]:
    """Return the same value with each component the rounding of its sum with the next one."""
    c = list(components)
    if len(c) == 1:
        return c
    finite = c[0].isfinite()
    c[1:] = [torch.where(finite, x, 0.0) for x in c[1:]]
    # As many sweeps as components suffice, except for ties, which need one or two more.
    for _ in range(4 * len(c)):
        same = True
        for k in reversed(range(len(c) - 1)):
            s = c[k] + c[k + 1]
            t = s - c[k]
            e = (c[k] - (s - t)) + (c[k + 1] - t)
            same = same and bool(((s == c[k]) | ~finite).all())
            c[k], c[k + 1] = s, torch.where(finite, e, 0.0)
        if same:
            return c
    raise AssertionError("sweeps of components do not settle")


def _rounded(components: Sequence[Tensor], dtype: torch.dtype, count: int) -> Tensor:
    c = _settled(components)
    # Round to odd, so that the roundings of this sum and of the quotient do not affect the last
    # one: a boundary between two results times `count` has less than 52 bits.
    total = round_odd(c[0], c[1]) if len(c) > 1 else c[0]
    found = round_to(total / count, dtype)
    # Return the same NaN for every input NaN.
    return torch.where(found == found, found, torch.nan) + 0.0
