"""Sum without any rounding, in wide integers: the order of the elements cannot matter.

A sum is kept as digits of 32 bits in int64, one for each 32 binary places from the smallest product
of float64 numbers to beyond the largest: Kulisch's long accumulator in the form of Neal's small
superaccumulator (2015, arXiv:1505.05571). Integer additions are exact in any order, on any device
and with any number of threads; only the result is rounded, once, to the nearest expansion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels import operations, registry
from mcf.kernels.components import Components as Components
from mcf.kernels.formats import Format, format_of, power_of_two
from mcf.kernels.register_choice import has_float64
from mcf.reductions.rows import one_each, operator

BITS = 32
MASK = (1 << BITS) - 1
# The lowest binary place is below a product of two subnormal numbers; the highest is 2**60 times
# the largest product.
BASE = -2208
DIGITS = (2048 + 64 - BASE) // BITS
# Elements added before digits are carried: each number adds less than 2**33 to a digit.
CHUNK = 1 << 18
_MOST = 1 << 28


@operator("exact_sums(Tensor[] x, int terms)", one_each)
def exact_sums(x: list[Tensor], terms: int) -> list[Tensor]:
    """Return the nearest expansions to the sums of the rows of [M, K] components; new tensors [M].

    Infinities and NaN add up as in IEEE arithmetic; a sum that is 0 is +0.
    """
    rows = _Rows(x[0])
    for start in range(0, x[0].shape[1], CHUNK):
        for k, component in enumerate(x):
            part = component[:, start : start + CHUNK].double()
            rows.add(part, torch.zeros_like(part, dtype=torch.int32))
            if k == 0:
                rows.special(part)
    return list(rows.rounded(format_of(x[0].dtype), terms))


@operator("exact_dots(Tensor[] x, Tensor[] y, int terms)", lambda x, y, terms: one_each(x, terms))
def exact_dots(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    """Return the nearest expansions to the dot products of the rows of [M, K] components."""
    rows = _Rows(x[0])
    for start in range(0, x[0].shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        rows.special(_special_products(x[0][:, part].double(), y[0][:, part].double()))
        for a in x:
            m, e = _split(a[:, part])
            for b in y:
                n, f = _split(b[:, part])
                # Factors in [1/2, 1) cannot underflow, whatever the exponents are.
                for product in operations.two_prod(m, n):
                    rows.add(product, e + f)
    return list(rows.rounded(format_of(x[0].dtype), terms))


def _split(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return fractions in [1/2, 1) and exponents; 0 for infinities and NaN."""
    wide = t.double()
    wide = torch.where(wide.isfinite(), wide, 0.0)
    fraction, exponent = torch.frexp(wide)
    return fraction, exponent


def _special_products(a: Tensor, b: Tensor) -> Tensor:
    """Return products that involve infinities or NaN; 0 elsewhere."""
    finite = a.isfinite() & b.isfinite()
    return torch.where(finite, 0.0, a * b)


class _Rows:
    """A long accumulator for each row."""

    def __init__(self, like: Tensor) -> None:
        count, self.device = like.shape[0], like.device
        if not has_float64(self.device):
            raise NotImplementedError(
                f"exact sums take numbers apart in float64, which {self.device} lacks; move them "
                "to the CPU or leave out reproducible=True"
            )
        self.digits = torch.zeros(count, DIGITS + 2, dtype=torch.int64, device=self.device)
        self.added = 0
        self.plus = torch.zeros(count, dtype=torch.bool, device=self.device)
        self.minus, self.nan = self.plus.clone(), self.plus.clone()

    def special(self, x: Tensor) -> None:
        """Record infinities and NaN among the terms."""
        self.plus |= (x == torch.inf).any(1)
        self.minus |= (x == -torch.inf).any(1)
        self.nan |= x.isnan().any(1)

    def add(self, x: Tensor, exponent: Tensor) -> None:
        """Add x * 2**exponent, [M, k]; infinities and NaN count as 0."""
        if self.added + x.shape[1] > _MOST:
            self.carry()
        self.added += x.shape[1]
        finite = torch.where(x.isfinite(), x, 0.0)
        registry.on(self.device).add_digits(finite, exponent, self.digits, BASE)

    def carry(self) -> None:
        """Normalise every digit but the last to 0 .. 2**32 - 1."""
        self.digits = torch.stack(_carried(self.digits), 1)
        self.added = 0

    def rounded(self, fmt: Format, terms: int) -> Components:
        """Return the sums as expansions x0 = RN(sum), x1 = RN(sum - x0), ..."""
        assert fmt.dtype is not None
        out = []
        for _ in range(terms):
            x = self._leading(fmt)
            out.append(x.to(fmt.dtype))
            self.add(
                -torch.where(x.isfinite(), x, 0.0)[:, None], torch.zeros_like(x)[:, None].int()
            )
        first = torch.where(self.plus, torch.inf, out[0].double())
        first = torch.where(self.minus, -torch.inf, first)
        first = torch.where(self.nan | (self.plus & self.minus), torch.nan, first)
        finite = first.isfinite() & out[0].isfinite()
        low = [torch.where(finite, x, torch.zeros_like(x)) for x in out[1:]]
        return first.to(fmt.dtype), *low

    def _leading(self, fmt: Format) -> Tensor:
        """Return the sums rounded to nearest even in a format, as float64."""
        self.carry()
        negative = self.digits[:, -1] < 0
        value = _nearest(torch.where(negative[:, None], -self.digits, self.digits), fmt)
        return torch.where(negative, -value, value)


def _carried(digits: Tensor) -> list[Tensor]:
    """Return digits [M, k] by columns, every one but the last normalised to 0 .. 2**32 - 1."""
    columns = list(digits.unbind(1))
    for k in range(len(columns) - 1):
        columns[k + 1] = columns[k + 1] + (columns[k] >> BITS)
        columns[k] = columns[k] & MASK
    return columns


def _nearest(size: Tensor, fmt: Format) -> Tensor:
    """Return the nearest numbers of a format to magnitudes, ties to even, as float64."""
    columns = _carried(size)
    digits = torch.stack([torch.zeros_like(columns[0])] * 2 + columns, 1)
    place = torch.arange(digits.shape[1], device=digits.device)
    top = torch.where(digits != 0, place, 2).amax(1)
    d2, d1, d0 = (digits.gather(1, (top - k)[:, None])[:, 0] for k in range(3))
    below = ((digits != 0) & (place < (top - 2)[:, None])).any(1)
    _, bits = torch.frexp(d2.double())
    bits = bits.long()
    # Extract the 62 leading bits, and whether any lower bit is set.
    over = (bits - 30).clamp(min=0)
    window = d2 << (62 - bits)
    window += (d1 << (30 - bits).clamp(min=0)) >> over
    window += torch.where(over > 0, 0, d0 >> (bits + 2))
    below |= (d1 & ((1 << over) - 1)) != 0
    below |= torch.where(over > 0, d0, d0 & ((1 << (bits + 2).clamp(max=32)) - 1)) != 0
    exponent = (top - 2) * BITS + BASE + bits - 1
    # Find the lowest bit that the format keeps, and how many of the window's bits are below it.
    last = exponent.clamp(min=fmt.emin) - fmt.p + 1
    drop = last - (exponent - 61)
    vanishes = drop > 62
    drop = drop.clamp(max=62)
    kept = window >> drop
    rest = window - (kept << drop)
    half = 1 << (drop - 1)
    up = (rest > half) | ((rest == half) & (below | (kept & 1 == 1)))
    kept = torch.where(vanishes, 0, kept + up)
    return _scaled(kept.double(), last)


def _scaled(x: Tensor, exponent: Tensor) -> Tensor:
    """Return x * 2**exponent, exact or infinite, for integers x up to 2**53."""
    first = exponent.clamp(-1000, 900)
    second = exponent.clamp(min=-1100, max=1100) - first
    return x * power_of_two(first) * power_of_two(second)
