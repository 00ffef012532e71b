"""Random numbers from counters: the same for an element on every executor, layout and shard.

A stream is one tensor at one step. Its key is a hash of (seed, step, tensor), and the numbers of an
element hashes of keys made of it and of the element's index in the whole tensor, row-major
(`mcf.kernels.algorithms.words`): 16 bits for a weight, and under a key of their own 16 for each of
two moments. Nothing is stored, and the order in which elements are visited does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.algorithms import words
from mcf.kernels.elementwise import parameters
from mcf.kernels.tables import table_of, to_device

# Parameters of the two hashes next to an index: two or three keys and the index of the first
# element, as 16-bit halves, which float32 registers hold exactly.
WEIGHT = parameters(words.random16)[1:]
MOMENTS = parameters(words.random16_pair)[1:]

# Scalars of a kernel that draws random numbers.
SCALARS = tuple(dict.fromkeys((*WEIGHT, *MOMENTS)))

# Columns that a caller's scalar table has instead: the key and the index of the first element.
COLUMNS = ("stream_key", "stream_index")

# Keys have at most 52 bits, which a float64 holds exactly.
KEY_BITS = 52

# Numbers here are ints. For many tensors they are arrays of uint64, or int64 tensors with the same
# bits.
_WORD = 2**64 - 1
_CONSTANTS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _wrapped(x: Any) -> Any:
    """Return x modulo 2**64; tensors wrap anyway."""
    return x if isinstance(x, Tensor) else x & _WORD


def _right(x: Any, count: int) -> Any:
    """Return x shifted right, with zeros filled in from the left."""
    return (x >> count) & (2 ** (64 - count) - 1) if isinstance(x, Tensor) else x >> count


def mix(x: Any) -> Any:
    """Apply the finaliser of SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195)."""
    a, b, c = map(_signed, _CONSTANTS) if isinstance(x, Tensor) else _CONSTANTS
    x = _wrapped(x + a)
    x = _wrapped((x ^ _right(x, 30)) * b)
    x = _wrapped((x ^ _right(x, 27)) * c)
    return x ^ _right(x, 31)


def key(seed: int, step: Any, tensor: Any) -> Any:
    """Return the key of a tensor's stream at a step, KEY_BITS bits."""
    mixed = mix(seed & _WORD)
    if isinstance(step, Tensor):
        mixed = _signed(mixed)
    for part in (step, tensor):
        mixed = mix(part ^ mixed)
    return _right(mixed, 64 - KEY_BITS)


def scalars(key: Any, index: Any) -> list[Any]:
    """Return SCALARS for a range from `index` up to at most the next multiple of 2**32."""
    high, low = index >> 32, index & 0xFFFFFFFF
    weight = mix(mix(key) ^ high)
    moments = mix(weight)
    keys = [weight >> shift & 0xFFFF for shift in (48, 32, 16, 0)]
    further = [moments >> shift & 0xFFFF for shift in (48, 32)]
    return [*keys, low >> 16, low & 0xFFFF, *further]


def table(keys: Tensor, indices: Sequence[int]) -> Tensor:
    """Return SCALARS of many ranges, one row each, float64 on the device of their keys."""
    starts = to_device(table_of(indices, torch.int64), keys.device)
    return torch.stack(scalars(keys.to(torch.int64), starts), 1).double()
