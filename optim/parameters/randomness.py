"""Random numbers of a parameter's elements, independent of the part that is local.

A parameter's stream of random numbers is keyed by its name or its index among all parameters.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor

from mcf.kernels import streams
from mcf.optim.sharding import shards

# The attribute of a parameter that `set_index_offset` sets.
_OFFSET = "_mcf_index_offset"

# Keys of random bits besides seed, step and element: `stream_by` of a group.
STREAM_BY = ("name", "place")

# The attribute of a parameter that `set_stream` sets.
_STREAM = "_mcf_stream"

# Prefixes of wrappers: inside names those of torch.compile, FSDP and activation checkpointing; at
# the front that of DistributedDataParallel, DataParallel and AveragedModel.
_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_FRONT = "module"

# Indices are below, hashes of names from here on, so that they never coincide.
_NAMES = 2**62


def set_index_offset(p: Tensor, offset: int) -> None:
    """Declare that `p` is the part of a larger tensor that begins at its element `offset`.

    Use it for parameters that are split along their first dimension among processes. With the
    offset, in row-major order, the parts get the random bits, and so the rounded weights, that the
    whole tensor would get in one process. The offset belongs to the tensor and not to a checkpoint;
    `copy.deepcopy` of an optimizer and pickling keep it, `copy.deepcopy` of a parameter alone drops
    it, like all attributes.

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
    setattr(p, _OFFSET, offset)


def index_offset(p: Tensor) -> int:
    """Return the index of a parameter's first element in its whole tensor.

    The layout of a DTensor determines it; for a plain tensor it is the value of `set_index_offset`,
    or 0.
    """
    if shards.is_sharded(p):
        first = shards.stretches(p).first
        return int(first[0]) if len(first) else 0
    return _said(p)


def _said(p: Tensor) -> int:
    found: int = getattr(p, _OFFSET, 0)
    return found


def stretches(p: Tensor) -> shards.Stretches:
    """Return `shards.stretches`, shifted by the offset of `set_index_offset`."""
    found = shards.stretches(p)
    return found if shards.is_sharded(p) else found._replace(first=found.first + _said(p))


def in_one(p: Tensor) -> bool:
    """Return whether the local part of a parameter is one stretch of the whole, or empty."""
    return not shards.is_sharded(p) or len(shards.stretches(p).starts) <= 1


def whole_pairs(where: str, p: Tensor, precision: str) -> None:
    """Raise unless the local part has both of any two neighbours whose codes share a byte.

    Raises:
        ValueError: on every process that shares the parameter.
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
    """Set the stream of random numbers of `p`, for every optimizer and index.

    Use it for optimizers that share parameters among processes and pass no names, so that each
    process counts its own from 0: `torch.distributed.optim.ZeroRedundancyOptimizer`, and two
    optimizers for two parts of a model. With

        for name, p in model.named_parameters():
            mcf.optim.set_stream(p, name)

    before the optimizer is created, weights get the bits of one optimizer of
    `model.named_parameters()`; with the indices in `model.parameters()`, the bits of one optimizer
    of those. The stream overrides names and indices of the groups. It belongs to the tensor and not
    to a checkpoint, and is copied and dropped like the offset of `set_index_offset`. Parameters
    with equal streams get equal numbers, which is correct only for parts of one tensor (with their
    offsets).

    Args:
        p: a parameter of an optimizer that rounds stochastically.
        stream: its name, without regard to prefixes of wrappers (`module.`, `_orig_mod.`,
            `_fsdp_wrapped_module.`, `_checkpoint_wrapped_module.`); or its index among all
            parameters, from 0.

    Raises:
        TypeError, ValueError: for a value that is neither a string nor a whole number from 0.
    """
    if isinstance(stream, bool) or not isinstance(stream, (str, int)):
        raise TypeError(f"stream must be a name or a place (int), got {type(stream).__name__}")
    if isinstance(stream, int) and not 0 <= stream < 2**53:
        raise ValueError(f"stream must be a name, or a place from 0 and below 2**53, got {stream}")
    setattr(p, _STREAM, stream)


def deepcopied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Return `copy.deepcopy` of an optimizer, with the offsets and streams of its parameters."""
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    made.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    for old, new in zip(optimizer.param_groups, made.param_groups, strict=True):
        for p, q in zip(old["params"], new["params"], strict=True):
            mark_as(q, p)
    return made


def mark_as(copied: Tensor, p: Tensor) -> None:
    """Copy the offset and the stream of a parameter to its copy."""
    for name in (_OFFSET, _STREAM):
        if hasattr(p, name):
            setattr(copied, name, getattr(p, name))


def columns(
    seed: int, known: Mapping[Tensor, int], params: Sequence[Tensor], steps: Sequence[int]
) -> list[list[float]]:
    """Return `streams.COLUMNS` of parameters at their steps; `known`: see `stream_numbers`."""
    return [
        [float(streams.key(seed, step, known[p])), float(index_offset(p))]
        for p, step in zip(params, steps, strict=True)
    ]


class Streams:
    """The streams of some parameters, which change from step to step only in their keys."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        params: Sequence[Tensor],
        owners: Any = None,
        first: Any = None,
    ) -> None:
        """Compute the streams of the parameters of a step.

        Args:
            groups: all groups of an optimizer.
            params: some of their parameters; each must `fit`.
            owners: the index of each row's parameter; None for one row each.
            first: the index of each row's first element, with `owners`.
        """
        self._params = params
        self._everything, self._names = _everything(groups), _names(groups)
        self._given = _declared(params)
        known = stream_numbers(groups)
        self._numbers = np.array([known[p] for p in params], dtype=np.uint64)
        self._owners = np.arange(len(params)) if owners is None else owners
        if owners is None:
            first = list(map(index_offset, params))
        self._first = np.array(first, dtype=np.uint64)

    @staticmethod
    def fit(p: Tensor) -> bool:
        """Return whether rows of scalars fit all elements: in order, with equal upper words."""
        found = stretches(p)
        ends = found.first % 2**32 + found.lengths
        return shards.local(p).is_contiguous() and bool((ends <= 2**32).all())

    def hold(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the parameters have the same order and names as before."""
        now = _everything(groups)
        return (
            len(now) == len(self._everything)
            and all(map(is_, now, self._everything))
            and _names(groups) == self._names
            and _declared(self._params) == self._given
        )

    def scalars(self, seed: int, steps: Sequence[int]) -> Any:
        """Return the scalars of each row's random numbers, float64 [rows, len(streams.SCALARS)]."""
        keys = streams.key(seed, np.array(steps, dtype=np.uint64), self._numbers)[self._owners]
        return np.stack(streams.scalars(keys, self._first), axis=1).astype(np.float64)


def _everything(groups: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))


def _names(groups: Iterable[Mapping[str, Any]]) -> list[list[str] | None]:
    """Copy the names, since lists may be changed in place."""
    return [
        list(group.get("param_names") or ()) if group.get("stream_by") == "name" else None
        for group in groups
    ]


def _declared(params: Sequence[Tensor]) -> tuple[list[int], list[Any]]:
    return list(map(_said, params)), list(map(given_stream, params))


def set_default_key(where: str, group: dict[str, Any]) -> None:
    """Set the default of a new group's `stream_by`.

    Raises:
        ValueError: if names are requested and missing.
    """
    if group.get("stream_by") is None:
        group["stream_by"] = "place" if group.get("param_names") is None else "name"
    elif group["stream_by"] == "name" and group.get("param_names") is None:
        raise ValueError(
            f"{where} has stream_by='name' and no param_names; allowed is 'place', or parameters "
            "that are given with names"
        )


def stream_names(where: str, group: Mapping[str, Any]) -> Sequence[str] | None:
    """Return parameter names used as RNG stream keys; None if streams are keyed by index.

    Raises:
        ValueError, TypeError: unless each parameter has a name.
    """
    params = group["params"]
    if group.get("stream_by") != "name" or all(given_stream(p) is not None for p in params):
        return None
    found = group.get("param_names")
    if not isinstance(found, (list, tuple)) or len(found) != len(params):
        has = len(found) if isinstance(found, (list, tuple)) else type(found).__name__
        raise ValueError(
            f"{where} has {len(params)} params and {has} param_names, and random bits are keyed on "
            "names; allowed are as many, stream_by='place', or mcf.optim.set_stream for each "
            "parameter of a part"
        )
    for k, name in enumerate(found):
        if not isinstance(name, str):
            raise TypeError(
                f"param_names[{k}] of {where} is a {type(name).__name__}, and random bits are "
                "keyed on names; allowed are strings, or stream_by='place'"
            )
    return found


def stream_numbers(groups: Sequence[Mapping[str, Any]]) -> dict[Tensor, int]:
    """Return the number of each parameter's stream, from `set_stream`, its name or its index.

    Raises:
        ValueError, TypeError: for names that do not fit their group.
    """
    found, seen = dict[Tensor, int](), dict[str, int]()
    for index, group in enumerate(groups):
        given = stream_names(f"param_groups[{index}]", group)
        for k, p in enumerate(group["params"]):
            number, mine = len(found), given_stream(p)
            if given is not None:
                name = unwrapped(given[k])
                before = seen.get(name, 0)
                seen[name] = before + 1
                number = of_name(name, before)
            if mine is not None:
                number = of_name(unwrapped(mine)) if isinstance(mine, str) else mine
            found[p] = number
    return found


def given_stream(p: Tensor) -> str | int | None:
    """Return the stream that `mcf.optim.set_stream` set for a parameter."""
    found: str | int | None = getattr(p, _STREAM, None)
    return found


@functools.lru_cache(1 << 16)
def unwrapped(name: str) -> str:
    """Return a parameter's name without prefixes of module wrappers.

    "module._orig_mod.layers.0._checkpoint_wrapped_module.weight" is "layers.0.weight".
    """
    words = [word for word in name.split(".") if word not in _INSIDE]
    while len(words) > 1 and words[0] == _FRONT:
        del words[0]
    return ".".join(words)


@functools.lru_cache(1 << 16)
def of_name(name: str, before: int = 0) -> int:
    """Return the number of a name's stream, 62 bits of its SHA-256 (UTF-8).

    Args:
        name: as `unwrapped` returns it.
        before: the number of earlier parameters of that name, so that each gets its own stream.
    """
    text = f"{name}\0{before}" if before else name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return _NAMES | int.from_bytes(digest[:8], "big") >> 2
