"""Formats of 8 bits with the functions that code numbers in them, as kernels that tests run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.kernels.algorithms import float8
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import E4M3 as E4M3_FORMAT
from mcf.kernels.formats import E5M2 as E5M2_FORMAT
from mcf.kernels.formats import FP32, INT8, Format
from tests.helpers.executors import run


def encode(x):
    """A slot: the code of one number."""


def encode_pair(x):
    """A slot: the codes of two."""


def decode(code):
    """A slot: the number of a code."""


def decode_pair(hi, lo):
    """A slot: the number of two codes."""


def exponent_of(x):
    """A slot: the exponent of a block."""


def to_codes(x):
    hi, lo = encode_pair(x)
    return encode(x), hi, lo, exponent_of(x)


def to_values(one, hi, lo):
    return decode(one), decode_pair(hi, lo)


def kernel(
    function: object, slots: Any, results: tuple[str, ...], inputs: tuple[Field, ...]
) -> Elementwise:
    output = FP32 if inputs[0].format == INT8 else INT8
    made = tuple(Field(f"new_{r}", output, read=False, written=True) for r in results)
    return Elementwise(
        name="float8",
        function=function,  # type: ignore[arg-type]
        results=results,
        fields=(*inputs, *made),
        stores=tuple((r, f"new_{r}") for r in results),
        arithmetic=FP32,
        rounded=results,
        slots=slots,
    )


NAMES = ("one", "hi", "lo")


@dataclasses.dataclass(frozen=True, eq=False)
class Coding:
    """A format and what stores numbers in it."""

    format: Format
    slots: dict[str, Any]

    def __str__(self) -> str:
        return self.format.name

    @property
    def largest(self) -> float:
        return float(self.format.max)

    @property
    def dtype(self) -> torch.dtype:
        assert self.format.dtype is not None
        return self.format.dtype

    @functools.cached_property
    def to(self) -> Elementwise:
        """The kernel of `codes`."""
        given = tuple(self.slots.items())
        return kernel(to_codes, given, (*NAMES, "exponent"), (Field("x", FP32),))

    @functools.cached_property
    def back(self) -> Elementwise:
        """The kernel of `values`."""
        codes = tuple(Field(n, INT8) for n in NAMES)
        return kernel(to_values, tuple(self.slots.items()), ("value", "pair"), codes)

    def codes(self, executor: str, x: Tensor) -> tuple[Tensor, ...]:
        """One number, a pair, and the exponent of a block."""
        found = tuple(torch.empty(x.shape, dtype=torch.int8) for _ in range(4))
        run(executor, self.to, x, *found)
        return found

    def values(self, executor: str, *given: Tensor) -> tuple[Tensor, Tensor]:
        """Of one number and of a pair."""
        found = (torch.empty(given[0].shape), torch.empty(given[0].shape))
        run(executor, self.back, *given, *found)
        return found


E4M3 = Coding(
    E4M3_FORMAT,
    {
        "encode": float8.to_e4m3,
        "decode": float8.from_e4m3,
        "encode_pair": float8.to_e4m3_pair,
        "decode_pair": float8.from_e4m3_pair,
        "exponent_of": float8.e4m3_exponent,
    },
)
E5M2 = Coding(
    E5M2_FORMAT,
    {
        "encode": float8.to_e5m2,
        "decode": float8.from_e5m2,
        "encode_pair": float8.to_e5m2_pair,
        "decode_pair": float8.from_e5m2_pair,
        "exponent_of": float8.e5m2_exponent,
    },
)
each_format = pytest.mark.parametrize("coding", [E4M3, E5M2], ids=str)
