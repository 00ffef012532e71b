"""Random numbers from counters: the same for an element on every executor, layout and shard.

A stream is one tensor at one step. Its key is a hash of (seed, step, tensor), and the number of an
element a hash of the key and the element's index in the whole tensor, row-major
(`mcf.kernels.algorithms.words.random16`). Nothing is stored, and the order in which elements are
visited does not matter.
"""

from __future__ import annotations

from typing import Any

from mcf.kernels.algorithms import words
from mcf.kernels.elementwise import parameters

# Scalars of a kernel that draws: two keys and the index of the first element, in halves of words,
# which float32 registers hold exactly.
SCALARS = parameters(words.random16)[1:]

# Columns of the table of scalars that a caller gives instead: `key` and the first element's index.
COLUMNS = ("stream_key", "stream_index")

# What a float64 holds exactly.
KEY_BITS = 52

# Numbers here are ints, or arrays of uint64 of the streams of many tensors.
_WORD = 2**64 - 1


def mix(x: Any) -> Any:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195)."""
    x = x + 0x9E3779B97F4A7C15 & _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def key(seed: int, step: Any, tensor: Any) -> Any:
    """The key of a tensor's stream at a step, KEY_BITS bits."""
    mixed = mix(seed & _WORD)
    for part in (step, tensor):
        mixed = mix(part ^ mixed)
    return mixed >> (64 - KEY_BITS)


def scalars(key: Any, index: Any) -> list[Any]:
    """SCALARS of a stretch that begins at `index` and stays below the next multiple of 2**32."""
    high, low = index >> 32, index & 0xFFFFFFFF
    mixed = mix(mix(key) ^ high)
    return [mixed >> shift & 0xFFFF for shift in (48, 32, 16, 0)] + [low >> 16, low & 0xFFFF]
