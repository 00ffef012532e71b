"""Which random numbers the elements of a parameter get, whatever part of it is in memory here."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor

from mcf.kernels import streams
from mcf.optim.parameters import stream_names
from mcf.optim.sharding import shards

_ATTRIBUTE = "_mcf_index_offset"


def set_index_offset(p: Tensor, offset: int) -> None:
    """Say that `p` is the part of a larger tensor that begins at its element `offset`.

    For parameters that are cut along their first dimension and shared among processes: with the
    offset, in row-major order, the parts get the random bits, and so the rounded weights, that
    the whole tensor would get in one process. The offset belongs to the tensor and not to a
    checkpoint; `copy.deepcopy` of an optimizer and pickling keep it, `copy.deepcopy` of a parameter
    alone leaves it out, as it does all attributes.

    Args:
        p: a parameter of an optimizer that rounds stochastically.
        offset: index of its first element in the whole tensor, from 0.

    Raises:
        TypeError, ValueError: for an offset that is not a whole number from 0.
    """
    if shards.is_sharded(p):
        raise TypeError(
            "p is a DTensor, which says itself which part of it is here; allowed are plain tensors"
        )
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset must be an int, got {type(offset).__name__}")
    if not 0 <= offset < 2**53:
        raise ValueError(f"offset must be from 0 and below 2**53, got {offset}")
    setattr(p, _ATTRIBUTE, offset)


def index_offset(p: Tensor) -> int:
    """The index of a parameter's first element in its whole tensor.

    What its layout says, or `set_index_offset` said of a plain one, else 0.
    """
    if shards.is_sharded(p):
        first = shards.stretches(p).first
        return int(first[0]) if len(first) else 0
    return _said(p)


def _said(p: Tensor) -> int:
    found: int = getattr(p, _ATTRIBUTE, 0)
    return found


def stretches(p: Tensor) -> shards.Stretches:
    """See `mcf.optim.sharding.shards`; after what `set_index_offset` said."""
    found = shards.stretches(p)
    return found if shards.is_sharded(p) else found._replace(first=found.first + _said(p))


def in_one(p: Tensor) -> bool:
    """Whether what is here of a parameter is one stretch of the whole, or nothing."""
    return not shards.is_sharded(p) or len(shards.stretches(p).starts) <= 1


def whole_pairs(where: str, p: Tensor, precision: str) -> None:
    """What is here of a parameter has both of any two neighbours whose codes share a byte.

    Raises:
        ValueError: the same on every process that shares the parameter.
    """
    if not shards.whole_pairs(p):
        raise ValueError(
            f"{where} of shape {list(p.shape)} is cut by {tuple(p.placements)} between two "  # type: ignore[attr-defined]
            f"columns whose codes share a byte under precision={precision!r}; allowed are cuts of "
            "the last dimension at even places, or precision='8bit'"
        )
    if not shards.is_sharded(p) and _said(p) % 2:
        raise ValueError(
            f"{where} begins at the odd index {_said(p)} of its whole tensor (set_index_offset), "
            f"but under precision={precision!r} two neighbours share a byte; allowed are even "
            "ones, or precision='8bit'"
        )


def set_stream(p: Tensor, stream: str | int) -> None:
    """Say which stream of random numbers `p` gets, whatever optimizer it is in and where.

    For optimizers that share parameters among processes and pass on no names, so that each process
    counts its own from 0: `torch.distributed.optim.ZeroRedundancyOptimizer`, and two optimizers for
    two parts of a model. With

        for name, p in model.named_parameters():
            mcf.optim.set_stream(p, name)

    before the optimizer is made, weights get the bits that one optimizer made with
    `model.named_parameters()` gives them; with the places of `model.parameters()` those of one made
    with that. It goes before names and places of the groups, belongs to the tensor and not to a
    checkpoint, and is kept and left out where `set_index_offset` is. Parameters with the same
    stream get the same numbers: right for parts of one tensor (with their offsets) only.

    Args:
        p: a parameter of an optimizer that rounds stochastically.
        stream: its name, of which prefixes that wrappers add do not count (`module.`,
            `_orig_mod.`, `_fsdp_wrapped_module.`, `_checkpoint_wrapped_module.`); or its place
            among all parameters, from 0.

    Raises:
        TypeError, ValueError: for what is neither a string nor a whole number from 0.
    """
    if isinstance(stream, bool) or not isinstance(stream, (str, int)):
        raise TypeError(f"stream must be a name or a place (int), got {type(stream).__name__}")
    if isinstance(stream, int) and not 0 <= stream < 2**53:
        raise ValueError(f"stream must be a name, or a place from 0 and below 2**53, got {stream}")
    setattr(p, stream_names.ATTRIBUTE, stream)


def numbers(groups: Sequence[Mapping[str, Any]]) -> dict[Tensor, int]:
    """The number of each parameter's stream, which keys are made of.

    Raises:
        ValueError, TypeError: for names that do not fit their group.
    """
    return dict(stream_names.numbers(groups))


def deepcopied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy` of an optimizer, with the offsets and streams of its parameters."""
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    made.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    for old, new in zip(optimizer.param_groups, made.param_groups, strict=True):
        for p, q in zip(old["params"], new["params"], strict=True):
            mark_as(q, p)
    return made


def mark_as(copied: Tensor, p: Tensor) -> None:
    """Give a copy of a parameter the offset and the stream that were said of it."""
    for name in (_ATTRIBUTE, stream_names.ATTRIBUTE):
        if hasattr(p, name):
            setattr(copied, name, getattr(p, name))


def columns(
    seed: int, known: Mapping[Tensor, int], params: Sequence[Tensor], steps: Sequence[int]
) -> list[list[float]]:
    """`streams.COLUMNS` of parameters at their steps, of what `numbers` found."""
    return [
        [float(streams.key(seed, step, known[p])), float(index_offset(p))]
        for p, step in zip(params, steps, strict=True)
    ]


class Streams:
    """The streams of some parameters, which stay the same from step to step but for their keys."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        params: Sequence[Tensor],
        owners: Any = None,
        first: Any = None,
    ) -> None:
        """Of the parameters of a step.

        Args:
            groups: all of an optimizer's.
            params: some of theirs; each must `fit`.
            owners: the numbers of the parameters of which there are rows; None for one each.
            first: the index of each row's first element, with `owners`.
        """
        self._params = params
        self._everything, self._names = _everything(groups), _names(groups)
        self._told = _told_of(params)
        known = numbers(groups)
        self._numbers = np.array([known[p] for p in params], dtype=np.uint64)
        self._owners = np.arange(len(params)) if owners is None else owners
        if owners is None:
            first = list(map(index_offset, params))
        self._first = np.array(first, dtype=np.uint64)

    @staticmethod
    def fit(p: Tensor) -> bool:
        """Whether lines of scalars serve all elements: in order, upper index words the same."""
        found = stretches(p)
        ends = found.first % 2**32 + found.lengths
        return shards.local(p).is_contiguous() and bool((ends <= 2**32).all())

    def hold(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether parameters are counted and called as before."""
        now = _everything(groups)
        return (
            len(now) == len(self._everything)
            and all(map(is_, now, self._everything))
            and _names(groups) == self._names
            and _told_of(self._params) == self._told
        )

    def scalars(self, seed: int, steps: Sequence[int]) -> Any:
        """`streams.SCALARS` at each parameter's step, float64 [rows, scalars]."""
        keys = streams.key(seed, np.array(steps, dtype=np.uint64), self._numbers)[self._owners]
        return np.stack(streams.scalars(keys, self._first), axis=1).astype(np.float64)


def _everything(groups: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))


def _names(groups: Iterable[Mapping[str, Any]]) -> list[list[str] | None]:
    """Copies, since lists may be changed in place."""
    return [
        list(group.get("param_names") or ()) if group.get("stream_by") == "name" else None
        for group in groups
    ]


def _told_of(params: Sequence[Tensor]) -> tuple[list[int], list[Any]]:
    return list(map(_said, params)), list(map(stream_names.told, params))
