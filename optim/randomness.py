"""Which random numbers the elements of a parameter get, whatever part of it is in memory here."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor

from mcf.kernels import streams

_ATTRIBUTE = "_mcf_index_offset"


def set_index_offset(p: Tensor, offset: int) -> None:
    """Say that `p` is the part of a larger tensor that begins at its element `offset`.

    For parameters that are cut along their first dimension and shared among processes: with the
    offset, in row-major order, the parts get the random bits, and so the rounded weights, that
    the whole tensor would get in one process. The offset belongs to the tensor and not to a
    checkpoint; `copy.deepcopy` of an optimizer and pickling keep it, `copy.deepcopy` of a parameter
    alone leaves it out, as it does all attributes.

    Args:
        p: a parameter of an optimizer that rounds stochastically or stores moments of 8 bits.
        offset: index of its first element in the whole tensor, from 0.

    Raises:
        TypeError, ValueError: for an offset that is not a whole number from 0.
    """
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset must be an int, got {type(offset).__name__}")
    if not 0 <= offset < 2**53:
        raise ValueError(f"offset must be from 0 and below 2**53, got {offset}")
    setattr(p, _ATTRIBUTE, offset)


def index_offset(p: Tensor) -> int:
    """What `set_index_offset` said of a parameter, else 0."""
    found: int = getattr(p, _ATTRIBUTE, 0)
    return found


def deepcopied(optimizer: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy` of an optimizer, with the offsets of its parameters."""
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    made.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    for old, new in zip(optimizer.param_groups, made.param_groups, strict=True):
        for p, q in zip(old["params"], new["params"], strict=True):
            if index_offset(p):
                set_index_offset(q, index_offset(p))
    return made


def columns(
    seed: int, places: Mapping[Tensor, int], params: Sequence[Tensor], steps: Sequence[int]
) -> list[list[float]]:
    """`streams.COLUMNS` of parameters at their steps."""
    return [
        [float(streams.key(seed, step, places[p])), float(index_offset(p))]
        for p, step in zip(params, steps, strict=True)
    ]


class Streams:
    """The streams of some parameters, which stay the same from step to step but for their keys."""

    def __init__(self, everything: Iterable[Tensor], params: Sequence[Tensor]) -> None:
        """`everything` counts an optimizer's parameters; each of `params` must `fit`."""
        self._everything = list(everything)
        self._params = params
        places = {p: k for k, p in enumerate(self._everything)}
        self._places = np.array([places[p] for p in params], dtype=np.uint64)
        self._offsets = _offsets(params)
        self._first = np.array(self._offsets, dtype=np.uint64)

    @staticmethod
    def fit(p: Tensor) -> bool:
        """Whether one line of scalars serves all elements: in order, upper index word the same."""
        (first,) = _offsets([p])
        return p.is_contiguous() and first % 2**32 + p.numel() <= 2**32

    def hold(self, everything: Iterable[Tensor]) -> bool:
        """Whether parameters are counted as before."""
        now = list(everything)
        return (
            len(now) == len(self._everything)
            and all(map(is_, now, self._everything))
            and _offsets(self._params) == self._offsets
        )

    def scalars(self, seed: int, steps: Sequence[int]) -> Any:
        """`streams.SCALARS` at each parameter's step, float64 [parameters, scalars]."""
        keys = streams.key(seed, np.array(steps, dtype=np.uint64), self._places)
        return np.stack(streams.scalars(keys, self._first), axis=1).astype(np.float64)


def _offsets(params: Iterable[Tensor]) -> list[int]:
    return list(map(index_offset, params))
