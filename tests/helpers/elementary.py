"""Elementary functions: exact references by ball arithmetic, and inputs that make them hard."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor

from mcf.elementary import fixed
from mcf.kernels.formats import FP64, Format
from tests.helpers.adversarial import Array, Draw

Components = tuple[Tensor, ...]

REFERENCE: dict[str, Callable[..., arb]] = {
    "exp": lambda x: x.exp(),
    "expm1": lambda x: x.expm1(),
    "log": lambda x: x.log(),
    "log1p": lambda x: x.log1p(),
    "log2": lambda x: x.log() / arb(2).log(),
    "log10": lambda x: x.log() / arb(10).log(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tan": lambda x: x.tan(),
    "asin": lambda x: x.asin(),
    "acos": lambda x: x.acos(),
    "atan": lambda x: x.atan(),
    "atan2": lambda y, x: arb.atan2(y, x),
    "sinh": lambda x: x.sinh(),
    "cosh": lambda x: x.cosh(),
    "tanh": lambda x: x.tanh(),
    "asinh": lambda x: x.asinh(),
    "acosh": lambda x: x.acosh(),
    "atanh": lambda x: x.atanh(),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "erf": lambda x: x.erf(),
    "erfc": lambda x: x.erfc(),
    "normal_cdf": lambda x: (-x / arb(2).sqrt()).erfc() / 2,
    "normal_pdf": lambda x: (-x * x / 2).exp() / (2 * arb.pi()).sqrt(),
    "gelu": lambda x: x / 2 * (-x / arb(2).sqrt()).erfc(),
    "gelu_tanh": lambda x: (
        x / (1 + (-2 * (2 / arb.pi()).sqrt() * (x + arb(44715) / 1000000 * x**3)).exp())
    ),
    "pow": lambda x, y: x**y,
    "hypot": lambda x, y: (x * x + y * y).sqrt(),
}

# Bits for the oracle: the sum of the components must be exact, angles up to 2**1024 are reduced by
# pi, and what cancels must leave four times the result's precision.
_PRECISION = 3400

# The error in smallest subnormal numbers that any result may have, with a margin for working
# precision: their rounding.
HALF = 0.5 + 2**-7


class Inputs(Draw):
    """Expansions of a format: full, with gaps, with zeros, and near given numbers."""

    def __init__(self, fmt: Format, terms: int, seed: int) -> None:
        super().__init__(fmt, seed)
        self.terms = terms

    def expansion(self, leading: Array) -> Components:
        """Expansions with these leading components."""
        out = [leading]
        for _ in range(self.terms - 1):
            out.append(self.low(out[-1]))
        return tuple(self.tensor(c) for c in out)

    def between(self, low: int, high: int, n: int, positive: bool = False) -> Components:
        """Leading exponents from low to high."""
        x = self.numbers(self.exponents(n, low, high))
        return self.expansion(np.abs(x) if positive else x)

    def near(self, values: Array, n: int) -> Components:
        """At some of the values, or a few bits away."""
        x = self.rng.choice(values, n)
        step = np.ldexp(self.rng.random(n), -self.rng.integers(1, self.fmt.p + 1, n))
        x = x * (1 + self.rng.choice([-1, 0, 1], n) * step)
        return self.expansion(self.rounded(x))

    def angles(self, n: int) -> Components:
        """Expansions nearest to multiples of pi/2."""
        unit = 600
        half = round(fixed.to_fraction(fixed.pi()) / 2 * 2**unit)
        bits = self.rng.integers(1, min(self.fmt.emax - 2, 40), n)
        multiples = [half * k for k in self.rng.integers(1, 1 << bits).tolist()]
        out = []
        for _ in range(self.terms):
            c = self.rounded(np.ldexp(np.array([float(v) for v in multiples]), -unit))
            out.append(self.tensor(c))
            multiples = [
                v - int(x) for v, x in zip(multiples, np.ldexp(c, unit).tolist(), strict=True)
            ]
        return tuple(out)


def inputs(name: str, fmt: Format, terms: int, n: int, seed: int) -> list[tuple[Components, ...]]:
    """Some batches of about n arguments each."""
    d = Inputs(fmt, terms, seed)
    # Exponent of the largest finite result's logarithm.
    end = round(math.log2(fmt.emax * 0.69))
    if name in ("exp", "expm1", "sinh", "cosh", "tanh", "sigmoid"):
        return [
            (d.between(-fmt.p * terms, end - 2, n),),
            (d.between(-3, end - 1, n),),
            (d.between(end - 1, end, n // 2),),
            (d.between(-5000, 5000, n // 2),),
        ]
    if name in ("log", "log2", "log10"):
        return [
            (d.between(-5000, 5000, n, positive=True),),
            (d.between(-2, 1, n, positive=True),),
            (d.near(np.array([1.0, 0.5, 2.0, 1.5]), n),),
        ]
    if name == "log1p":
        batches = [d.between(-5000, 5000, n, positive=True), d.between(-20, -2, n)]
        return [(b,) for b in (*batches, d.between(-2, 3, n, positive=True))]
    if name in ("sin", "cos", "tan", "spherical_bessel_j0"):
        return [(d.between(-5000, 5000, n),), (d.between(-6, 6, n),), (d.angles(n),)]
    if name in ("asin", "acos", "atanh"):
        ones = np.array([-1.0, -0.5, 0.5, 1.0])
        return [(d.between(-5000, -2, n),), (d.between(-9, -2, n),), (inside(d.near(ones, n)),)]
    if name in ("atan", "asinh"):
        return [(d.between(-5000, 5000, n),), (d.between(-9, 9, n),)]
    if name == "acosh":
        x = d.near(np.array([1.0, 1.5, 2.0]), n)
        return [(d.between(1, 5000, n, positive=True),), (positive_above_one(x),)]
    if name in ("erf", "erfc", "normal_cdf", "normal_pdf", "gelu", "gelu_tanh"):
        return [(d.between(-5000, 5, n),), (d.between(-4, 2, n),), (d.between(2, 5, n),)]
    if name in ("i0", "i0e", "i1", "i1e"):
        edges = np.array([0.0, 1.0, 32.0, 256.0, -1.0])
        return [(d.between(-5000, -2, n),), (d.between(-6, 9, n),), (d.near(edges, n),)]
    if name in ("k0", "k0e", "k1", "k1e"):
        edges = np.array([1.0, 2.0, 32.0, 256.0, 80.0, 700.0])
        wide = d.between(-5000, -1, n, positive=True)
        return [(wide,), (d.between(-4, 9, n, positive=True),), (d.near(edges, n),)]
    if name in ("j0", "j1", "y0", "y1"):
        zeros = {
            "j0": (2.404825557695773, 124.87930891323295, 252.11380),
            "j1": (0.0, 3.8317059702),
        }
        zeros |= {"y0": (0.8935769662791675, 3.957678419), "y1": (2.197141326031017, 5.4296810)}
        near = d.near(np.array([*zeros[name], 256.0, 30.5, math.pi, 200.0]), n)
        up = name[0] == "y"
        if up:
            near = tuple(torch.where(near[0] > 0, c, 0.5 * (k == 0)) for k, c in enumerate(near))
        wide = d.between(-5000, 5000, n, positive=up)
        return [(wide,), (d.between(-4, 8, n, positive=up),), (near,)]
    if name in ("airy_ai", "airy_ai_1"):
        edges = np.array(
            [-2.338107410459767, -1.018792971647471, -63.84287671608434, -64.0, 1.0, -0.5, 32.0]
        )
        near = d.near(np.append(edges, 100.0 if fmt.emax > 127 else 26.0), n)
        return [(d.between(-5000, 160, n),), (d.between(-4, 6, n),), (near,)]
    if name == "erfinv":
        ends = np.array([1.0, -1.0, 0.5, 0.25, 0.75])
        return [(d.between(-5000, -2, n),), (d.between(-6, -2, n),), (inside(d.near(ends, n)),)]
    if name in ("erfcx", "log_ndtr"):
        edges = np.array([32.0, 45.25, 40.0, 1.0, 25.0, 18.3, -26.0, -45.25])
        return [(d.between(-5000, 9, n),), (d.between(-4, 5, n),), (d.near(edges, n),)]
    if name == "ndtri":
        ends = np.array([1.0, 0.5, 0.25, 0.75, 2.0**-30])
        wide = d.between(-5000, -2, n, positive=True)
        return [(wide,), (d.between(-6, -2, n, positive=True),), (inside(d.near(ends, n)),)]
    if name in ("lgamma", "digamma", "trigamma") or name.startswith(("polygamma", "zeta")):
        zeros = np.array([1.0, 2.0, 1.4616321449683623, 0.5, 16.0, 64.0])
        below = np.array([-0.5, -0.5040830082644554, -1.0, -1.5, -2.457024738220801, -3.0, -70.5])
        wide = (d.between(-5000, 5000, n, positive=True),)
        return [wide, (d.between(-4, 7, n),), (d.near(zeros, n),), (d.near(below, n),)]
    if name in ("atan2", "hypot"):
        wide = (d.between(-5000, fmt.emax - 1, n), d.between(-5000, fmt.emax - 1, n))
        return [wide, (d.between(-6, 6, n), d.between(-6, 6, n))]
    assert name == "pow"
    base = d.near(np.array([1.0]), n)
    distance = np.abs(base[0].double().numpy() - 1)
    reach = d.rng.uniform(-1, 1, n) * fmt.emax * 0.69 / np.maximum(distance, float(fmt.u))
    return [
        (d.between(-3, 3, n, positive=True), d.between(-5, end - 3, n)),
        (d.between(-5000, 5000, n, positive=True), d.between(-8, 0, n)),
        (base, d.expansion(d.rounded(reach))),
    ]


def inside(x: Components) -> Components:
    """The arguments with |x| <= 1, 1/2 in place of the others."""
    over = x[0].abs() > 1
    if len(x) > 1:
        over |= (x[0].abs() == 1) & (x[1] * x[0] > 0)
    return tuple(torch.where(over, 0.5 if k == 0 else 0.0, c) for k, c in enumerate(x))


def positive_above_one(x: Components) -> Components:
    """The arguments with x >= 1, 3 in place of the others."""
    under = x[0] < 1
    if len(x) > 1:
        under |= (x[0] == 1) & (x[1] < 0)
    return tuple(torch.where(under, 3.0 if k == 0 else 0.0, c) for k, c in enumerate(x))


def balls(x: Components) -> list[arb]:
    """The elements as exact balls."""
    columns = [c.double().flatten().tolist() for c in x]
    return [
        functools.reduce(lambda s, c: s + arb(c), row, arb(0)) for row in zip(*columns, strict=True)
    ]


def worst(
    name: str,
    fmt: Format,
    arguments: tuple[Components, ...],
    result: Components,
    ordered: bool = True,
) -> tuple[float, float]:
    """The largest error less HALF a subnormal, relative to the result in u^terms; that below HALF.

    Fails where a result is not finite although the exact one is well inside the range, is not
    normalised (if `ordered`), or where the oracle's own error would count.
    """
    terms = len(result)
    unit = fmt.u**terms
    limit = float(fmt.max)
    smallest = arb(float(fmt.min_subnormal))
    scale = arb(unit.denominator)
    before, ctx.prec = ctx.prec, _PRECISION if fmt is FP64 else 1200
    relative, absolute = 0.0, 0.0
    try:
        heads = result[0].double().flatten().tolist()
        given = zip(*(balls(a) for a in arguments), strict=True)
        for head, row, value in zip(heads, given, balls(result), strict=True):
            reference = REFERENCE[name](*row)
            size = float(abs(reference.mid())) if abs(reference) < limit else math.inf
            if not math.isfinite(head):
                assert size >= limit * (1 - float(fmt.u)), (name, row, head)
                continue
            assert size < math.inf, (name, row, head)
            error = abs(value - reference)
            assert error.rad() <= abs(reference.mid()) / scale / 1000, (name, row, "oracle")
            off = float((error / abs(reference) * scale).mid()) if size else float(head != 0)
            units = float((error / smallest).mid())
            # What the smallest subnormal number cannot hold is no relative error.
            if units <= HALF:
                absolute = max(absolute, units)
            else:
                relative = max(relative, off * (1 - HALF / units))
    finally:
        ctx.prec = before
    assert not ordered or not disordered(fmt, result), (name, "not normalised")
    return relative, absolute


def disordered(fmt: Format, x: Components) -> list[int]:
    """Elements with a component over half an ulp of the one before, or not 0 behind infinity."""
    draw = Draw(fmt, 0)
    wrong = np.zeros(x[0].shape, bool)
    for high, low in itertools.pairwise(c.double().numpy() for c in x):
        finite = np.isfinite(high)
        half = draw.ulp(np.where(finite, high, 0.0)) / 2
        wrong |= ~np.where(finite, np.abs(low) <= half, low == 0)
    return np.flatnonzero(wrong).tolist()
