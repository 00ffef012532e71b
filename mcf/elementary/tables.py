"""Constants and tables of constants as expansions, computed once and cached per device.

Every number is rounded from an exact one (`mcf.elementary.fixed`): component by component to
nearest, so that the first m components of a row are the row of m components.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.elementary import fixed
from mcf.elementary.format import left_out, working
from mcf.elementary.kept import kept
from mcf.kernels.components import Components as Components
from mcf.kernels.formats import FP32, FP64, Format

# The largest number of components in any computation.
TERMS = 4

# exp: arguments are reduced to |r| <= log(2) / (2 * EXP_STEPS).
EXP_STEPS = 256
# exp: bits of the parts of log(2) / EXP_STEPS, whose products with an integer are exact.
EXP_CHUNK = 32
EXP_CHUNKS = 8
# expm1: the table has 2**(k / EXP_STEPS) - 1 for |k| up to this.
EXPM1_LIMIT = 512
# log: mantissas are compared with multiples of 1 / LOG_STEPS between sqrt(1/2) and sqrt(2).
LOG_STEPS = 256
LOG_FIRST, LOG_LAST = 181, 363
# log: exponents of the argument; that of atanh, 2/(1 - x), may be the inverse of a subnormal
# number.
LOG_EXPONENTS = range(-1080, 1080)
# log10: powers of ten that four components may hold.
TENS = 96


# Components kept in tables; pow needs more of some than it computes with.
_KEPT = TERMS + 1


def rows(values: Sequence[Fraction], terms: int = _KEPT) -> Tensor:
    """Return the components of each value, [terms, len(values)]."""
    return _rows([(v.numerator, v.denominator) for v in values], terms)


def _rows(quotients: Sequence[tuple[int, int]], terms: int = _KEPT) -> Tensor:
    """Return the components of quotients, which need not be in lowest terms."""
    numbers = [fixed.parts(*q, terms) for q in quotients]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu").T


Maker = Callable[[], Tensor]
_makers: dict[str, Maker] = {}


def _table(maker: Maker) -> Maker:
    _makers[maker.__name__] = maker
    return maker


# The names of tables on the CPU, by their addresses; see `mcf.elementary.formula_recording`.
named: dict[int, str] = {}


def table(name: str, device: torch.device) -> Tensor:
    """Return the table of a maker's name, in the working format."""
    return _table_in(name, device, working().format)


@functools.cache
def _table_in(name: str, device: torch.device, fmt: Format) -> Tensor:
    made = kept(name, _makers[name])
    if fmt is FP32 and made.dtype is torch.float64:
        # Five float64 components have more bits than those of float32, so this rounds once.
        narrow = torch.ops.mcf.convert(list(made.unbind()), torch.float32, len(made))
        made = torch.stack(narrow)
    found = made.to(device)
    if found.device.type == "cpu":
        named[found.untyped_storage().data_ptr()] = name
    return found


def lookup(name: str, index: Tensor, terms: int) -> Components:
    """Return rows of a table: `terms` components of the entries at an int64 index."""
    t = table(name, index.device)
    return tuple(entries(t[k], index) for k in range(terms))


def entries(t: Tensor, index: Tensor) -> Tensor:
    """Return entries at an int64 index, clamped, since components need not be normalised.

    While a formula is recorded, its statement clamps the index (`Writer.entry`).
    """
    return t[index if left_out.get() is not None else index.clamp(0, len(t) - 1)]


def constant(value: Fraction, terms: int, device: torch.device) -> Components:
    """Return a number as `terms` zero-dimensional tensors, in the working format."""
    return _constant_in(value, terms, device, working().format)


@functools.cache
def _constant_in(value: Fraction, terms: int, device: torch.device, fmt: Format) -> Components:
    numbers = fixed.components(value, terms) if fmt is FP64 else components_of(value, fmt, terms)
    return tuple(torch.tensor(c, dtype=fmt.dtype, device=device) for c in numbers)


@_table
def exp_powers() -> Tensor:
    """Return 2**(j / EXP_STEPS) for 0 <= j < EXP_STEPS."""
    return rows(_powers(range(EXP_STEPS)))


@_table
def exp_powers_minus_one() -> Tensor:
    """Return 2**(k / EXP_STEPS) - 1 at index k + EXPM1_LIMIT."""
    steps = range(-EXPM1_LIMIT, EXPM1_LIMIT + 1)
    return rows([p - 1 for p in _powers(steps)])


def _powers(steps: range) -> list[Fraction]:
    factor, value, values = fixed.exp(fixed.ln2() // EXP_STEPS), fixed.ONE, []
    for _ in range(EXP_STEPS):
        values.append(value)
        value = value * factor >> fixed.BITS
    return [
        fixed.to_fraction(values[k % EXP_STEPS]) * Fraction(2) ** (k // EXP_STEPS) for k in steps
    ]


@_table
def exp_chunks() -> Tensor:
    """Return parts of log(2) / EXP_STEPS, EXP_CHUNK bits each, largest first."""
    return _chunks(fixed.to_fraction(fixed.ln2()) / EXP_STEPS, 8, EXP_CHUNK, EXP_CHUNKS)


def _chunks(value: Fraction, shift: int, bits: int, count: int) -> Tensor:
    """Split a number below 2**-shift into `count` parts of `bits` bits."""
    parts, scale = [], Fraction(2) ** (bits + shift)
    for _ in range(count):
        part = round(value * scale) / scale
        parts.append(float(part))
        value -= part
        scale *= 2**bits
    return torch.tensor(parts, dtype=torch.float64, device="cpu")


def _log_nodes() -> list[Fraction]:
    nodes = [Fraction(j, LOG_STEPS) for j in range(LOG_FIRST, LOG_LAST)]
    return [fixed.to_fraction(fixed.log(f)) for f in nodes]


@functools.cache
def log_base(base: int) -> Fraction:
    """Return log(base) for base 2 and 10, 1 for base 0 (e)."""
    return {
        0: Fraction(1),
        2: fixed.to_fraction(fixed.ln2()),
        10: fixed.to_fraction(fixed.ln10()),
    }[base]


@_table
def log_nodes_0() -> Tensor:
    """Return log(j / LOG_STEPS) at index j - LOG_FIRST."""
    return rows(_log_nodes())


@_table
def log_nodes_2() -> Tensor:
    """Return log2(j / LOG_STEPS) at index j - LOG_FIRST."""
    return rows([v / log_base(2) for v in _log_nodes()])


@_table
def log_nodes_10() -> Tensor:
    """Return log10(j / LOG_STEPS) at index j - LOG_FIRST."""
    return rows([v / log_base(10) for v in _log_nodes()])


def _log_exponents(base: int) -> Tensor:
    step = log_base(2) / log_base(base)
    return _rows([(k * step.numerator, step.denominator) for k in LOG_EXPONENTS])


@_table
def log_exponents_0() -> Tensor:
    """Return k log(2) at index k - LOG_EXPONENTS[0]."""
    return _log_exponents(0)


@_table
def log_exponents_2() -> Tensor:
    """Return k log2(2) = k at index k - LOG_EXPONENTS[0]."""
    return _log_exponents(2)


@_table
def log_exponents_10() -> Tensor:
    """Return k log10(2) at index k - LOG_EXPONENTS[0]."""
    return _log_exponents(10)


@_table
def tens() -> Tensor:
    """Return 10**k for 0 <= k < TENS."""
    return rows([Fraction(10**k) for k in range(TENS)])


# sin, cos: nodes are multiples of 1 / ANGLE_STEPS; atan: of 1 / ATAN_STEPS.
ANGLE_STEPS, ATAN_STEPS = 256, 64
SIN_LAST, ATAN_LAST = 202, 64
# Cody and Waite: bits of the parts of pi/2, whose products with k < 2**11 are exact.
HALF_PI_CHUNK = 42
HALF_PI_CHUNKS = 12
# Payne and Hanek: bits of a limb of 1/(2 pi); the first limb has weight 2**-LIMB.
LIMB = 24
LIMBS_BEFORE, LIMBS_AFTER = 64, 68


@_table
def sines() -> Tensor:
    """Return sin(j / ANGLE_STEPS)."""
    return rows([fixed.to_fraction(_sin_cos(j)[0]) for j in range(SIN_LAST + 1)])


@_table
def cosines() -> Tensor:
    """Return cos(j / ANGLE_STEPS)."""
    return rows([fixed.to_fraction(_sin_cos(j)[1]) for j in range(SIN_LAST + 1)])


def _sin_cos(j: int) -> tuple[int, int]:
    return fixed.sin_cos(Fraction(j, ANGLE_STEPS))


@_table
def arctangents() -> Tensor:
    """Return atan(j / ATAN_STEPS)."""
    angles = [fixed.atan(Fraction(j, ATAN_STEPS)) for j in range(ATAN_LAST + 1)]
    return rows([fixed.to_fraction(a) for a in angles])


@_table
def half_pi_chunks() -> Tensor:
    """Return parts of pi/2, HALF_PI_CHUNK bits each, largest first."""
    return _chunks(fixed.to_fraction(fixed.pi()) / 2, -1, HALF_PI_CHUNK, HALF_PI_CHUNKS)


@_table
def turn_limbs() -> Tensor:
    """Return 1/(2 pi) as LIMB-bit digits; digit m (weight 2**(-LIMB m)) at LIMBS_BEFORE - 1 + m."""
    limbs = turn_digits(LIMB, LIMBS_BEFORE, LIMBS_AFTER)
    return torch.tensor(limbs, dtype=torch.int64, device="cpu")


def turn_digits(limb: int, before: int, after: int) -> list[int]:
    """Return digits of 1/(2 pi) after `before` zeros."""
    value = fixed.quotient(fixed.ONE, 2 * fixed.pi())
    mask = (1 << limb) - 1
    digits = [value >> (fixed.BITS - limb * m) & mask for m in range(1, after + 1)]
    return [0] * before + digits


# erfcx: 32 nodes in each of [0, 1), [1, 2), [2, 4), ..., [16, 32).
ERFCX_STEPS = 32
ERFCX_OCTAVES = 6
# Degrees kept, enough for |v|^k <= 1 and coefficients that fall by 6 bits per degree.
ERFCX_DEGREES = 38


def erfcx_nodes() -> list[tuple[Fraction, Fraction]]:
    """Return (node, width of its interval), ascending."""
    nodes = []
    for octave in range(ERFCX_OCTAVES):
        start, length = (2 ** (octave - 1), 2 ** (octave - 1)) if octave else (0, 1)
        width = Fraction(length, ERFCX_STEPS)
        nodes += [(start + width * (j + Fraction(1, 2)), width) for j in range(ERFCX_STEPS)]
    return nodes


@functools.cache
def erfcx_at_nodes(count: int) -> list[tuple[list[int], Fraction]]:
    """Return Taylor coefficients of erfcx at each node, as `fixed`, and its half-width.

    They are continued from node to node downwards, a direction in which errors shrink.
    """
    at, value = Fraction(32), fixed.erfcx_by_fraction(32)
    found = []
    for node, width in reversed(erfcx_nodes()):
        while at > node:
            following = max(node, at - width)
            series = fixed.erfcx_series(at, value, 160)
            value, at = fixed.evaluate(series, following - at), following
        found.append((fixed.erfcx_series(at, value, count), width / 2))
    return found[::-1]


@_table
def erfcx_series() -> Tensor:
    """Return Taylor coefficients at the nodes, [_KEPT, nodes * ERFCX_DEGREES], contiguous per node.

    The argument is v = 2 (z - node) / width.
    """
    coefficients = []
    for series, half in erfcx_at_nodes(ERFCX_DEGREES):
        p, q = half.as_integer_ratio()
        coefficients += [(c * p**k, fixed.ONE * q**k) for k, c in enumerate(series)]
    return _rows(coefficients)
