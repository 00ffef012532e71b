"""Special functions: references by ball arithmetic, and errors in parts of their bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from flint import acb, arb, ctx

import mcf
import mcf.elementary
from mcf.elementary.tables import Components
from mcf.kernels.formats import Format
from tests.helpers.elementary import Inputs, balls, inputs

PI = arb.pi

# Functions that are another's program of another order, or times an exponential, and whose tables
# take long, or that have a file of their own: their cases are slow.
ALIKE = (
    "k0e", "k1", "k1e", "j1", "y1", "polygamma_2", "polygamma_3", "polygamma_4",
    "log_ndtr", "ndtri", "airy_ai",
)  # fmt: skip


def often(name: str) -> bool:
    """Whether a function is not like another one: for `everyday`."""
    return name not in ALIKE


def _log_gamma(x: arb) -> arb:
    return acb(x).lgamma().real


def _polygamma(m: int, x: arb) -> arb:
    """Far below zero the sums in both directions, of which the finite one is a difference."""
    zeta = lambda v: acb(m + 1).zeta(acb(v)).real  # noqa: E731
    if x > -64 or x.is_integer():
        found = zeta(x)
    else:
        size = -x
        left = size - size.floor()
        found = (-1) ** (m + 1) * (zeta(left) - zeta(size + 1)) + zeta(1 - left)
    return (-1) ** (m + 1) * math.factorial(m) * found


def _erfcx(x: arb) -> arb:
    """Beyond 30 by a confluent function: balls of its factors are beyond all numbers."""
    if x < 30:
        return (x * x).exp() * x.erfc()
    half = acb(0.5)
    return acb(x * x).hypgeom_u(half, half).real / PI().sqrt()


def _log_ndtr(x: arb) -> arb:
    """For x above 1e4 nothing."""
    z = abs(x) / arb(2).sqrt()
    if x < 0:
        return (_erfcx(z) / 2).log() - z * z
    return (-z.erfc() / 2).log1p() if x < 1e4 else arb(0)


def _ndtri(p: arb) -> arb:
    return arb(2).sqrt() * (2 * p - 1).erfinv()


REFERENCE: dict[str, Callable[[arb], arb]] = {
    "lgamma": _log_gamma,
    "digamma": lambda x: x.digamma(),
    "trigamma": lambda x: acb(2).zeta(acb(x)).real,
    **{f"polygamma_{m}": functools.partial(_polygamma, m) for m in (2, 3, 4)},
    "spherical_bessel_j0": lambda x: x.sin() / x,
    "erfinv": lambda x: x.erfinv(),
    "erfcx": _erfcx,
    "log_ndtr": _log_ndtr,
    "ndtri": _ndtri,
    "airy_ai": lambda x: x.airy_ai(),
    "airy_ai_1": lambda x: x.airy_ai(derivative=1),
    "i0": lambda x: acb(x).bessel_i(acb(0)).real,
    "i0e": lambda x: acb(x).bessel_i(acb(0)).real * (-abs(x)).exp(),
    "i1": lambda x: acb(x).bessel_i(acb(1)).real,
    "i1e": lambda x: acb(x).bessel_i(acb(1)).real * (-abs(x)).exp(),
    "j0": lambda x: acb(x).bessel_j(acb(0)).real,
    "j1": lambda x: acb(x).bessel_j(acb(1)).real,
    "y0": lambda x: acb(x).bessel_y(acb(0)).real,
    "y1": lambda x: acb(x).bessel_y(acb(1)).real,
    "k0": lambda x: acb(x).bessel_k(acb(0)).real,
    "k0e": lambda x: acb(x).bessel_k(acb(0)).real * x.exp(),
    "k1": lambda x: acb(x).bessel_k(acb(1)).real,
    "k1e": lambda x: acb(x).bessel_k(acb(1)).real * x.exp(),
}


for _m in (5, 12, 32):
    REFERENCE[f"polygamma_{_m}"] = functools.partial(_polygamma, _m)
for _s in (3, 4, 5, 6, 33):
    REFERENCE[f"zeta_{_s}"] = lambda x, s=_s: acb(s).zeta(acb(x)).real  # type: ignore[misc]


def _slope(m: int, x: arb) -> arb:
    """Of erfcx; its recurrence cancels, of which there are bits to spare."""
    before, f = arb(0), _erfcx(x)
    for k in range(m):
        before, f = f, 2 * x * f + (2 * k * before if k else -2 / PI().sqrt())
    return f


def bessel_slope(kind: str, order: int, m: int, x: arb) -> arb:
    """Of exp(-|x|) I_n(x) and exp(x) K_n(x), by orders beside n; its sum cancels, too."""
    letter, size = kind[0], abs(x)
    of = acb(size).bessel_i if letter == "i" else acb(size).bessel_k
    total, step = arb(0), -1 if letter == "i" else 1
    for j in range(m + 1):
        # The derivative of order j of I_n or K_n.
        part = sum(
            (math.comb(j, i) * of(acb(order + j - 2 * i)).real for i in range(j + 1)), arb(0)
        )
        total += math.comb(m, j) * step ** (m - j) * (-step) ** (j * (letter == "k")) * part / 2**j
    sign = (-1) ** (order + m) if x < 0 else 1
    return sign * total * (step * size).exp()


REFERENCE |= {
    f"{kind}_{m}": functools.partial(bessel_slope, kind, int(kind[1]), m)
    for kind in ("i0e", "i1e", "k0e", "k1e")
    for m in (1, 2, 3, 4)
}
REFERENCE |= {f"erfcx_{m}": functools.partial(_slope, m) for m in (1, 2, 3, 4)}
REFERENCE["erf_1"] = lambda x: 2 / PI().sqrt() * (-x * x).exp()


def _cancels(name: str) -> bool:
    """Whether what a reflection adds up has different signs: of even orders, zeta_3 being 2."""
    kind, _, order = name.partition("_")
    return kind in ("polygamma", "zeta") and (int(order) - (kind == "zeta")) % 2 == 0


def _terms(name: str, x: arb) -> arb:
    """The sum of the magnitudes that a reflection adds up."""
    if name == "lgamma" and x < arb(-0.5):
        sine = abs((PI() * x).sin()) / PI()
        return abs(sine.log()) + abs(abs(x).log()) + abs(_log_gamma(abs(x)))
    if name == "digamma" and x < 0:
        return abs((1 - x).digamma()) + abs(PI() * (PI() * x).cos() / (PI() * x).sin())
    if _cancels(name) and x < 0:
        # All m! / |x + k|^(m+1): those with x + k below zero, of which there are few, and above.
        size = abs(x)
        left = size - size.floor()
        return sum((abs(REFERENCE[name](v)) for v in (left, 1 - left)), arb(0)) - abs(
            REFERENCE[name](1 + size)
        )
    if name in ("j0", "j1", "y0", "y1") and abs(x) >= 256:
        j, y = REFERENCE["j" + name[1]](abs(x)), REFERENCE["y" + name[1]](abs(x))
        return (j * j + y * y).sqrt()
    if name in ("airy_ai", "airy_ai_1") and x <= -64:
        m = int(name.endswith("1"))
        ai, bi = x.airy_ai(derivative=m), x.airy_bi(derivative=m)
        return abs(x) * abs(x).sqrt() * (ai * ai + bi * bi).sqrt()
    return arb(0)


def _exactly(name: str, x: arb, bits: int) -> tuple[arb, arb]:
    """The reference and its terms, to more bits than wanted."""
    for ctx.prec in (bits + 300, 3400):
        exact, terms = REFERENCE[name](x), _terms(name, x)
        if exact.is_finite() and exact.rad() <= (abs(exact) + terms) * arb(2) ** -(bits + 40):
            return exact, terms
    return exact, terms


def part(name: str, fmt: Format, x: Components, result: Components) -> list[float]:
    """Errors in parts of the bound, 0 beyond the range.

    Raises:
        LookupError: where ball arithmetic finds no reference and the result is a number.
    """
    terms, before = len(result), ctx.prec
    bound = mcf.bound(name, terms, fmt.dtype)
    found = []
    try:
        ctx.prec = 3400
        for given, ours in zip(balls(x), balls(result), strict=True):
            exact, sizes = _exactly(name, given, fmt.p * terms)
            if not exact.is_finite() and ours.is_finite():
                raise LookupError(f"{name}: no reference at {given.str(30, radius=False)}")
            if not exact.is_finite() or abs(exact) > arb(float(fmt.max)) * (1 - 2.0**-8):
                found.append(0.0)
                continue
            allowed = arb(bound.relative) * abs(exact) + arb(bound.of_terms) * sizes
            value = float(abs(ours - exact) / (allowed + arb(bound.absolute)))
            found.append(value if value == value else math.inf)
            ctx.prec = 3400
        return found
    finally:
        ctx.prec = before


def check(name: str, fmt: Format, terms: int, count: int, seed: int) -> float:
    worst = 0.0
    for (x,) in inputs(name, fmt, terms, count, seed):
        result = getattr(mcf.elementary, name)(x)
        worst = max([worst, *part(name, fmt, x, result)])
    return worst


def climbed(
    name: str, function: Callable[[Components], Components], fmt: Format, terms: int
) -> float:
    """The worst part of the bound, of the worst arguments changed in one component or some bits."""
    draw = Inputs(fmt, terms, seed=3)
    batches = [x for (x,) in inputs(name, fmt, terms, 40, seed=5)]
    parents: Components = tuple(map(torch.cat, zip(*batches, strict=True)))
    best = 0.0
    for _ in range(12):
        scores = part(name, fmt, parents, function(parents))
        order = np.argsort(scores)[::-1][:12].copy()
        best = max(best, max(scores))
        kept = [c[torch.from_numpy(order)].repeat(10) for c in parents]
        leading = kept[0].double().numpy()
        steps = np.ldexp(draw.rng.random(len(leading)), -draw.rng.integers(3, fmt.p, len(leading)))
        moved = draw.rounded(leading * (1 + draw.rng.choice([-1, 0, 0, 1], len(leading)) * steps))
        parents = draw.expansion(moved)
        parents = tuple(
            torch.cat([torch.where(torch.from_numpy(moved == leading), b, a), b])
            for a, b in zip(parents, kept, strict=True)
        )
    return best


def full(points: Sequence[float], fmt: Format, terms: int) -> Components:
    """Expansions next to some points, all bits of which count."""
    x, u = torch.tensor(points, dtype=fmt.dtype), float(fmt.u)
    x = x * (1 - 5 * 2.0 ** -(fmt.p - 2))
    return tuple((x * f) * u**k for k, f in enumerate((1.0, 0.8125, -0.71875, 0.5625)[:terms]))
