"""Numbers of 8 bits from and to float32, on every executor, and pairs of them.

`to_e4m3` is torch's own conversion to `float8_e4m3fn` up to 448, and `from_e4m3` torch's for every
code. The bound of a pair is the docstring's: a mutant that rounds the low number towards zero and
one that keeps it without its factor of 16 exceed it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcf.kernels.algorithms.float8 import (
    constant,
    exponent_of,
    from_e4m3,
    from_pair,
    to_e4m3,
    to_pair,
)
from mcf.kernels.algorithms.primitives import bits, from_bits, rn, wand
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32, INT8
from tests.helpers import assert_same_bits
from tests.helpers.executors import on_each_executor, run

E4M3 = torch.float8_e4m3fn


def both(x):
    hi, lo = to_pair(x)
    return to_e4m3(x), hi, lo, exponent_of(x)


def back(one, hi, lo):
    return from_e4m3(one), from_pair(hi, lo)


def kernel(function: object, results: tuple[str, ...], inputs: tuple[Field, ...]) -> Elementwise:
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
    )


NAMES = ("one", "hi", "lo")
TO = kernel(both, (*NAMES, "exponent"), (Field("x", FP32),))
FROM = kernel(back, ("value", "pair"), tuple(Field(n, INT8) for n in NAMES))


def codes(executor: str, x: Tensor, spec: Elementwise = TO) -> tuple[Tensor, ...]:
    found = tuple(torch.empty(x.shape, dtype=torch.int8) for _ in range(4))
    run(executor, spec, x, *found)
    return found


def values(executor: str, *given: Tensor) -> tuple[Tensor, Tensor]:
    found = (torch.empty(given[0].shape), torch.empty(given[0].shape))
    run(executor, FROM, *given, *found)
    return found


def patterns(count: int) -> Tensor:
    """float32 numbers whose upper halves are spread over all, with lower halves that matter."""
    tops = torch.linspace(-(2**15), 2**15 - 1, count).to(torch.int64)
    low = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    return ((tops[:, None] << 16) + torch.tensor(low)).flatten().to(torch.int32).view(torch.float32)


def around_ties() -> Tensor:
    """Every number of e4m3, the middles between them, and their neighbours in float32."""
    every = torch.arange(127, dtype=torch.int8).view(E4M3).float()
    middles = (every[1:] + every[:-1]) / 2
    some = torch.cat([every, middles])
    near = torch.cat([some, *(torch.nextafter(some, torch.tensor(e)) for e in (0.0, 1e9))])
    return torch.cat([near, -near])


@on_each_executor
def test_one_number(executor: str) -> None:
    x = torch.cat([patterns(1 << 11 if executor == "triton" else 1 << 16), around_ties()])
    x = x[~(x.abs() > 448) | ~x.isfinite()]
    one = codes(executor, x)[0]
    finite = x.isfinite()
    assert_same_bits(one[finite], x[finite].to(E4M3).view(torch.int8))
    assert one[~finite].view(E4M3).isnan().all()


@on_each_executor
def test_every_code(executor: str) -> None:
    every = torch.arange(-128, 128).to(torch.int8)
    found, _ = values(executor, every, every, every)
    expected = every.view(E4M3).float()
    there = ~expected.isnan()
    assert there.sum() == 254
    assert_same_bits(found[there], expected[there])
    assert found[~there].isnan().all()


@on_each_executor
def test_largest(executor: str) -> None:
    x = torch.tensor([448.0, 448.1, 463.9, 464, 465, 1e30, 3.4e38])
    one, _, _, _ = codes(executor, torch.cat([x, -x]))
    assert one.tolist() == [126] * 7 + [-2] * 7


def spread(exponents: range) -> Tensor:
    """Numbers of every binade, with twice the bits that a pair has."""
    fractions = 1 + torch.arange(0, 2**11) / 2**11
    x = torch.cat([fractions * 2.0**e for e in exponents])
    return x[x <= 448]


def unscaled(x):
    """A mutant: the low number without its factor of 16."""
    hi = to_e4m3(x)
    low = from_e4m3(to_e4m3(rn(x - from_e4m3(hi))))
    return hi, hi, to_e4m3(rn(low * constant(bits(x), 0x41800000))), hi


def cut(x):
    """A mutant: the low number rounded towards zero."""
    hi = to_e4m3(x)
    rest = rn(rn(x - from_e4m3(hi)) * constant(bits(x), 0x41800000))
    return hi, hi, to_e4m3(from_bits(wand(bits(rest), -0x100000))), hi


def worst(function: object, executor: str = "torch") -> float:
    """The largest error of a pair as a share of its bound, max(2**-9 |x|, 2**-14)."""
    x = spread(range(-16, 9))
    spec = TO if function is both else kernel(function, (*NAMES, "exponent"), TO.fields[:1])
    one, hi, lo, _ = codes(executor, x, spec)
    found = values("torch", one, hi, lo)[1]
    bound = torch.maximum(x.double() * 2.0**-9, torch.tensor(2.0**-14, dtype=torch.float64))
    return ((found.double() - x.double()).abs() / bound).max().item()


@on_each_executor
def test_bound_of_a_pair(executor: str) -> None:
    assert 0.9 < worst(both, executor) <= 1


@pytest.mark.parametrize("mutant", [unscaled, cut])
def test_bound_catches(mutant: object) -> None:
    assert worst(mutant) > 1.5


def test_exponent() -> None:
    tops = torch.tensor([0.0, 2.0**-149, 2.0**-92, 448 * 2.0**-100])
    assert codes("torch", tops)[3].tolist() == [-100] * 4
    for k in range(-99, 121):
        x = torch.tensor([448 * 2.0**k, 448 * 2.0 ** (k - 1)])
        above = torch.nextafter(x[1:], torch.tensor(torch.inf))
        for executor in ("torch", "numba"):
            found = codes(executor, torch.cat([x, above]))[3].tolist()
            assert found == [k, max(k - 1, -100), k], k


@on_each_executor
def test_a_value_of_a_pair_is_kept(executor: str) -> None:
    """What was stored once is stored again as the same value, though perhaps by other codes."""
    x = spread(range(-13, 9))[:: 1 if executor != "triton" else 16]
    x = torch.cat([x, -x, torch.zeros(1), -torch.zeros(1)])
    once = values(executor, *codes(executor, x)[:3])
    again = values(executor, *codes(executor, once[1])[:3])
    assert_same_bits(again[1], once[1])
