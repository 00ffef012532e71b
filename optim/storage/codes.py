"""Moments as codes of 8 or 4 bits, each element by itself: no scales and no blocks.

A second moment v is an unsigned number of 6 exponent bits and 2 of the significand, from 2**-60 to
10; a first moment m the e4m3 number of 4 m / u, where u is the power of two in (sqrt(v), 2 sqrt(v)]
of v *as it is stored* (that in (n / 2, n] of Adamax's norm n). Both are rounded stochastically, by
the random bits of the element's moments. `mcf.kernels.algorithms.codes` defines the formats and
states the guarantees. Scaling by u is exact.

|m| <= c sqrt(v) by Cauchy's inequality, c^2 = (1 - b1)^2 / ((1 - b2) (1 - b1^2 / b2)) for b1^2 <
b2: 7.3 at betas of (0.9, 0.999), at most 1 / sqrt(1 - b2). So the quotient needs no scale; 112 is
enough for b2 = 0.9999 and every b1. In 4 bits |m| is at most 3 u, more than 3 sqrt(v), and larger
values are cut. Two neighbours of 4 bits share a byte, so that their tensor has half as many
elements in its last dimension.

A rule without a second moment has nothing to relate its momentum to. The momentum is then stored as
the e5m2 number of 2**12 times it, from 2**-26 to 14 with 3 bits, and multiples of 2**-28 below.

The code of an element depends on that element alone: it is the same for any shards, and one kernel
decodes it in registers, steps and encodes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mcf.kernels.algorithms.codes import (
    from_4_bits,
    from_e4m3_over_4,
    from_e5m2_over_4096,
    from_unsigned,
    to_4_bits,
    to_e4m3_over_4,
    to_e5m2_over_4096,
    to_unsigned,
    unsigned_bits,
)
from mcf.kernels.algorithms.primitives import bits, from_bits, greater, rn, wadd, wshl, wshr, wsub
from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.formats import FP32, UINT4, UINT8, Format
from mcf.kernels.torch.registers import primitives
from mcf.optim.storage import values
from mcf.optim.storage.base import Coding, Storage, as_stored
from mcf.optim.storage.slots import stored_bits, unit
from mcf.optim.storage.values import Value


def root(pattern):
    """Biased exponent of the power of two in (sqrt(v), 2 sqrt(v)], from the bits of v."""
    return wshr(wadd(wshr(pattern, 23), 129), 1)


def norm(pattern):
    """Biased exponent of the power of two in (n / 2, n], from the bits of n."""
    return wshr(pattern, 23)


def decode_ratio(code, second):
    """m = r u."""
    return rn(from_e4m3_over_4(code) * from_bits(wshl(unit(bits(second)), 23)))


def encode_ratio(first, random, second, kept):
    """r = m / u, rounded."""
    inverse = from_bits(wshl(wsub(254, unit(stored_bits(second, kept))), 23))
    return to_e4m3_over_4(rn(first * inverse), random)


def decode_ratio4(code, second):
    """m = r u, r in 4 bits."""
    return rn(from_4_bits(code) * from_bits(wshl(unit(bits(second)), 23)))


def encode_ratio4(first, random, second, kept):
    """r = m / u, rounded to 4 bits."""
    inverse = from_bits(wshl(wsub(254, unit(stored_bits(second, kept))), 23))
    return to_4_bits(rn(first * inverse), random)


def bits_of_code(second, kept):
    """Return the bits of v as it is stored, or of v itself if its code overflows.

    So m shrinks with a v that overflows. If v was rounded down to a number other than the largest
    these are the bits of v too; its exponent is the same, and a unit depends only on the exponent.
    """
    value = from_bits(unsigned_bits(kept))
    return bits(greater(second, value))


class Code(Storage):
    """A moment as a code of 8 bits, or two codes of 4 bits per byte; for moments only."""

    parameter_bytes = None
    wide = True
    stochastic = True

    def __init__(self, name: str, coding: Coding, kept: Format = UINT8) -> None:
        """Take the storage's name, the conversion of numbers, and the format of codes."""
        self.name, self.coding, self._kept = name, coding, kept
        first = coding.decode is not from_unsigned
        self.first_bytes = kept.itemsize if first else None
        self.second_bytes = None if first else kept.itemsize

    def format(self, component: Format) -> Format:
        return self._kept

    def second_moment(self, strict: bool) -> dict[str, Algorithm]:
        return {**super().second_moment(strict), "stored_bits": bits_of_code}


RATIO8 = Code("ratio8", Coding(decode_ratio, encode_ratio, relative=True))
RATIO4 = Code("ratio4", Coding(decode_ratio4, encode_ratio4, relative=True), UINT4)
SIGNED8 = Code("se5m2", Coding(from_e5m2_over_4096, to_e5m2_over_4096, relative=False))
UNSIGNED8 = Code("ue6m2", Coding(from_unsigned, to_unsigned, relative=False))

# The second moments of rules, with the unit of first moments relative to them; the first moments.
_UNITS = {"exp_avg_sq": root, "exp_inf": norm}
_FIRSTS = ("exp_avg", "exp_avg_diff", "previous_grad")
_MOMENTUM = "momentum_buffer"

# Random bits that round to nearest: one half of the unit in the last place.
_HALF = 0x8000


def holds(name: str, state: Mapping[str, Tensor]) -> bool:
    """Return whether a state is a moment in codes."""
    t = state.get(name)
    return isinstance(t, Tensor) and t.dtype == UINT8.dtype


def read(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """Return the numbers of a moment in codes as a step reads them, in float32."""
    code = state[name]
    if _is_alone(name, state) or name not in _FIRSTS:
        number = from_e5m2_over_4096 if _is_alone(name, state) else from_unsigned
        found: Tensor = _bound()(number)(code.float())
        return found
    second, _, slots = _beside(state)
    decode: Algorithm = decode_ratio
    if code.shape != second.shape:
        code, decode = torch.stack((code & 15, code >> 4), -1).view(second.shape), decode_ratio4
    found = _bound(slots)(decode)(code.float(), second)
    return found


def keep(name: str, state: Mapping[str, Tensor], value: Value) -> Tensor:
    """Store a moment as codes, rounded to nearest; return the rounding error in float64.

    First moments are stored after second ones.
    """
    number = values.rounded(value, torch.float32)
    half = torch.full_like(number, _HALF, dtype=torch.int32)
    if _is_alone(name, state):
        code = _bound()(to_e5m2_over_4096)(number, half)
    elif name not in _FIRSTS:
        code = _bound()(to_unsigned)(number, half)
    else:
        second, kept, slots = _beside(state)
        packed = state[name].shape != second.shape
        encode = encode_ratio4 if packed else encode_ratio
        code = _bound(slots)(encode)(number, half, second, kept)
        if packed:
            low, high = code.unflatten(-1, (-1, 2)).unbind(-1)
            code = low + 16 * high
    state[name].copy_(code)
    return values.less(value, read(name, state))[0]


def numbers_of(t: Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor has the shape of two codes per byte for numbers of a shape."""
    halves = (*shape[:-1], shape[-1] / 2) if shape else ()
    return t.dtype == UINT8.dtype and tuple(t.shape) == halves


def _is_alone(name: str, state: Mapping[str, Tensor]) -> bool:
    """Return whether a moment is a first one without a second one."""
    return name == _MOMENTUM or (name in _FIRSTS and not any(n in state for n in _UNITS))


def in_order(names: Sequence[str]) -> list[str]:
    """Return names of moments in the order in which they can be stored: second moments first."""
    return sorted(names, key=lambda name: name in _FIRSTS)


def _beside(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Algorithm]]:
    """Return the second moment, its stored form, and the slots for moments relative to it."""
    name = next(n for n in _UNITS if n in state)
    kept = state[name].float()
    if holds(name, state):
        return read(name, state), kept, {"unit": _UNITS[name], "stored_bits": bits_of_code}
    return kept, kept, {"unit": _UNITS[name], "stored_bits": as_stored}


def _bound(slots: Mapping[str, Algorithm] | None = None) -> Binder:
    return Binder(lambda f: f, primitives(FP32, FP32, {}), dict(slots or {}))
