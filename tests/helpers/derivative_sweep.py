"""Derivatives and values at every scale: all functions, formats, sizes and ratios of sizes.

Two sweeps share one judgement. `elementwise` takes a function of one to three numbers, arguments
from the smallest normal number to a tenth of the largest in all ratios of sizes, and compares with
ball arithmetic. `sampled` takes any other function on torch's own samples, scaled by powers of two,
and compares with three float64 components of the same values.

A result counts as wrong if the exact one is in the format's range and it is infinite or NaN, or
farther away than the function's bound. `python -m tests.helpers.derivative_sweep` prints what is
wrong, by kind; `--help` has the options.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from flint import acb, arb, ctx
from torch import Tensor
from torch.utils._pytree import tree_map

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.formats import Format
from tests.helpers import elementary, special
from tests.mcf.expansions import every_function

FORMATS = {fmt.name: fmt for fmt in (BF16, FP16, FP32, FP64)}
# The smallest error that is allowed, in smallest subnormal numbers: of a few roundings there.
SUBNORMALS = 4
# Errors up to so many u^n are allowed where a function has no entry in UNITS.
USUAL = 64
Exact = Callable[..., arb]


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of numbers, element by element.

    Args:
        name: torch's in its list of functions with samples, or its own.
        of: computes it, of tensors.
        exact: computes it, of balls; NaN outside its domain.
        operands: how many there are.
        signs: the signs that an operand takes.
        largest: a size beyond which ball arithmetic has no numbers.
        smallest: a size below which the function has none.
        ends: numbers next to which there are arguments, too, on the inner side.
        size: of what is added up, to which errors of the value are relative; None for the value.
    """

    name: str
    of: Callable[..., Any]
    exact: Exact
    operands: int = 1
    signs: tuple[int, ...] = (1, -1)
    largest: float = math.inf
    smallest: float = 0.0
    ends: tuple[int, ...] = ()
    size: Exact | None = None


ELEMENTWISE: dict[str, Function] = {}


def _add(name: str, of: Any, exact: Any, operands: int = 1, **options: Any) -> None:
    assert name not in ELEMENTWISE, name
    ELEMENTWISE[name] = Function(name, of, exact, operands, **options)


def _where(condition: bool, x: arb, y: arb) -> arb:
    return x if condition else y


def _only(condition: bool, x: Callable[[], arb]) -> arb:
    return x() if condition else arb("nan")


_R, _S = elementary.REFERENCE, special.REFERENCE
_pi = arb.pi
_POSITIVE = {"signs": (1,)}


def _name(name: str) -> Any:
    return getattr(torch, name, None) or getattr(torch.special, name, None) or getattr(F, name)


def _softplus(x: arb) -> arb:
    return (-x).exp().log1p() + x if x > 0 else x.exp().log1p()


for _n in ("exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh",
           "sigmoid", "erf", "erfc"):  # fmt: skip
    _add(_n, _name(_n), _R[_n])
for _n in ("asin", "acos", "atanh"):
    _add(_n, _name(_n), _R[_n], ends=(1, -1))
_add("log1p", torch.log1p, _R["log1p"], ends=(-1,))
for _n in ("log", "log2", "log10"):
    _add(_n, _name(_n), _R[_n], **_POSITIVE)
_add("acosh", torch.acosh, _R["acosh"], **_POSITIVE)
_add("abs", torch.abs, lambda x: abs(x))
_add("neg", torch.neg, lambda x: -x)
_add("positive", torch.positive, lambda x: x)
_add("angle", torch.angle, lambda x: _where(x < 0, _pi(), arb(0)))
_add("sqrt", torch.sqrt, lambda x: x.sqrt(), **_POSITIVE)
_add("rsqrt", torch.rsqrt, lambda x: x.rsqrt(), **_POSITIVE)
_add("square", torch.square, lambda x: x * x)
_add("reciprocal", torch.reciprocal, lambda x: 1 / x)
_add("deg2rad", torch.deg2rad, lambda x: x * _pi() / 180)
_add("rad2deg", torch.rad2deg, lambda x: x / _pi() * 180)
_add("exp2", torch.exp2, lambda x: arb(2) ** x)
# The derivative is 1 between whole numbers, and large arguments are whole.
_add("frac", torch.frac, lambda x: x - _where(x > 0, x.floor(), x.ceil()), largest=64.0)
_add("sinc", torch.sinc, lambda x: (_pi() * x).sin() / (_pi() * x))
_add("logit", torch.logit, lambda x: (x / (1 - x)).log(), **_POSITIVE, ends=(1,))
_add("special.entr", torch.special.entr, lambda x: -x * x.log(), **_POSITIVE)
_add("special.ndtr", torch.special.ndtr, _R["normal_cdf"])
_add("special.ndtri", torch.special.ndtri, _S["ndtri"], **_POSITIVE, ends=(1,))
_add("special.log_ndtr", torch.special.log_ndtr, _S["log_ndtr"])
_add("special.erfcx", torch.special.erfcx, _S["erfcx"])
_add("erfinv", torch.erfinv, _S["erfinv"], ends=(1, -1))
_add("lgamma", torch.lgamma, lambda x: acb(x).lgamma().real, largest=1e60)
_add("digamma", torch.digamma, lambda x: x.digamma(), **_POSITIVE)
for _k in (0, 1, 2, 3, 4):
    _add(f"polygamma.polygamma_n_{_k}", functools.partial(torch.polygamma, _k),
         lambda x, k=_k: x.digamma() if k == 0 else (-1) ** (k + 1) * math.factorial(k)
         * acb(k + 1).zeta(acb(x)).real, signs=(1,), largest=1e60)  # fmt: skip
for _p in (1, 3, 5):
    _add(f"mvlgamma.mvlgamma_p_{_p}", functools.partial(torch.mvlgamma, p=_p),
         lambda x, p=_p: sum((acb(x - arb(j) / 2).lgamma().real for j in range(p)),
                             arb(p * (p - 1)) / 4 * _pi().log()),
         signs=(1,), largest=1e60, smallest=(_p - 1) / 2)  # fmt: skip
for _s in (2, 3, 5):
    _add(f"special.zeta_{_s}", functools.partial(torch.special.zeta, float(_s)),
         lambda x, s=_s: acb(s).zeta(acb(x)).real, signs=(1,), largest=1e60)  # fmt: skip
for _n, _ours in (
    ("i0", "i0"), ("special.i0e", "i0e"), ("special.i1", "i1"), ("special.i1e", "i1e"),
    ("special.modified_bessel_i0", "i0"), ("special.modified_bessel_i1", "i1"),
):  # fmt: skip
    _add(_n, _name(_n.removeprefix("special.")), _S[_ours], largest=4000.0)
for _n, _ours in (
    ("special.modified_bessel_k0", "k0"), ("special.modified_bessel_k1", "k1"),
    ("special.scaled_modified_bessel_k0", "k0e"), ("special.scaled_modified_bessel_k1", "k1e"),
    ("special.bessel_y0", "y0"), ("special.bessel_y1", "y1"),
):  # fmt: skip
    _add(_n, _name(_n.removeprefix("special.")), _S[_ours], signs=(1,), largest=200.0)
for _n, _ours in (("special.bessel_j0", "j0"), ("special.bessel_j1", "j1")):
    _add(_n, _name(_n.removeprefix("special.")), _S[_ours], largest=200.0)
_add("special.spherical_bessel_j0", torch.special.spherical_bessel_j0, lambda x: x.sin() / x)
_add("special.airy_ai", torch.special.airy_ai, _S["airy_ai"], largest=60.0)

_add("nn.functional.gelu", F.gelu, _R["gelu"])
_add("nn.functional.gelu_tanh", functools.partial(F.gelu, approximate="tanh"), _R["gelu_tanh"])
_add("nn.functional.silu", F.silu, lambda x: x / (1 + (-x).exp()))
_add("nn.functional.mish", F.mish, lambda x: x * _softplus(x).tanh())
_add("nn.functional.softplus", F.softplus, _softplus)
_add("nn.functional.softplus_beta", functools.partial(F.softplus, beta=3.0),
     lambda x: _softplus(3 * x) / 3)  # fmt: skip
_add("nn.functional.logsigmoid", F.logsigmoid, lambda x: -_softplus(-x))
_add("nn.functional.softsign", F.softsign, lambda x: x / (1 + abs(x)))
_add("nn.functional.tanhshrink", F.tanhshrink, lambda x: x - x.tanh())
_add("nn.functional.elu", functools.partial(F.elu, alpha=0.5),
     lambda x: x if x > 0 else x.expm1() / 2)  # fmt: skip
_add("nn.functional.celu", functools.partial(F.celu, alpha=0.5),
     lambda x: x if x > 0 else (2 * x).expm1() / 2)  # fmt: skip
_add("nn.functional.relu", F.relu, lambda x: _where(x > 0, x, arb(0)))
_add("nn.functional.relu6", F.relu6, lambda x: x.max(0).min(6))
_add("nn.functional.hardtanh", F.hardtanh, lambda x: x.max(-1).min(1))
_add("nn.functional.hardsigmoid", F.hardsigmoid, lambda x: ((x + 3) / 6).max(0).min(1))
_add("nn.functional.hardswish", F.hardswish, lambda x: x * ((x + 3) / 6).max(0).min(1))
_add("nn.functional.hardshrink", F.hardshrink, lambda x: _where(abs(x) > 0.5, x, arb(0)))
_add("nn.functional.softshrink", F.softshrink,
     lambda x: (abs(x) - 0.5).max(0) * (1 if x > 0 else -1))  # fmt: skip
_add("nn.functional.leaky_relu", functools.partial(F.leaky_relu, negative_slope=0.125),
     lambda x: _where(x > 0, x, x / 8))  # fmt: skip
_add("nn.functional.threshold", lambda x: F.threshold(x, 1.0, 2.0),
     lambda x: _where(x > 1, x, arb(2)))  # fmt: skip
_add("nn.functional.prelu", F.prelu, lambda x, w: _where(x > 0, x, x * w), 2)
_add("nn.functional.glu", lambda x, y: F.glu(torch.stack((x, y)), 0),
     lambda x, y: x / (1 + (-y).exp()), 2)  # fmt: skip

_add("add", torch.add, lambda x, y: x + y, 2, size=lambda x, y: abs(x) + abs(y))
_add("sub", torch.sub, lambda x, y: x - y, 2, size=lambda x, y: abs(x) + abs(y))
_add("mul", torch.mul, lambda x, y: x * y, 2)
_add("div.no_rounding_mode", torch.div, lambda x, y: x / y, 2)
_add("maximum", torch.maximum, lambda x, y: x.max(y), 2)
_add("hypot", torch.hypot, _R["hypot"], 2)
_add("atan2", torch.atan2, _R["atan2"], 2)
_add("copysign", torch.copysign, lambda x, y: abs(x) * (1 if y > 0 else -1), 2)
_add("logaddexp", torch.logaddexp, lambda x, y: x.max(y) + (-abs(x - y)).exp().log1p(), 2)
_add("logaddexp2", torch.logaddexp2,
     lambda x, y: x.max(y) + (arb(2) ** -abs(x - y)).log1p() / arb(2).log(), 2)  # fmt: skip
_add("xlogy", torch.xlogy, lambda x, y: x * y.log(), 2, **_POSITIVE)
_add("special.xlog1py", torch.special.xlog1py, lambda x, y: x * y.log1p(), 2)
_add("pow", torch.pow, lambda x, y: _only(x > 0, lambda: x**y), 2, signs=(1,))
for _e in (-3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.5, 2.0, 2.5, 3.0, 4.0, 0.171875, 7.3125):
    _add(f"pow_{_e}", lambda x, e=_e: torch.pow(x, e), lambda x, e=_e: x ** arb(e), **_POSITIVE)
_add("pow_of_3", lambda x: torch.pow(3.0, x), lambda x: arb(3) ** x)
_add("ldexp", lambda x: torch.ldexp(x, torch.tensor(-3)), lambda x: x / 8)
_add("addcmul", torch.addcmul, lambda x, a, b: x + a * b, 3,
     size=lambda x, a, b: abs(x) + abs(a * b))  # fmt: skip
_add("addcdiv", lambda x, a, b: torch.addcdiv(x, a, b, value=0.5),
     lambda x, a, b: x + a / b / 2, 3, size=lambda x, a, b: abs(x) + abs(a / b))  # fmt: skip
_add("lerp", torch.lerp, lambda x, y, w: x + w * (y - x), 3,
     size=lambda x, y, w: abs(x) + abs(w * (y - x)))  # fmt: skip
_add("prod", lambda *x: torch.prod(torch.stack(x), 0), lambda x, y, z: x * y * z, 3)
_add("cumprod", lambda *x: torch.cumprod(torch.stack(x), 0)[-1], lambda x, y, z: x * y * z, 3)


def exponents(fmt: Format, operands: int) -> list[int]:
    """The exponents of the arguments of a function of one, two or three operands."""
    low, high = fmt.emin, fmt.emax - 4
    if operands == 1:
        near = [-8, -4, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        wide = [low, 3 * low // 4, low // 2, low // 4, high // 4, high // 2, 3 * high // 4, high]
        return sorted({*near, *wide} & set(range(low, high + 1)))
    if operands == 2:
        return [low, low // 2, low // 4, -2, 0, 3, high // 4, high // 2, high]
    return [low, low // 2, 0, 3, high // 2, high]


def mantissa(fmt: Format, terms: int, draw: random.Random) -> Fraction:
    """A number from 1 to 2 of as many bits as an expansion has."""
    bits = fmt.p * terms
    return Fraction(draw.getrandbits(bits - 1) | (1 << (bits - 1)), 1 << (bits - 1))


def arguments(function: Function, fmt: Format, terms: int, seed: int = 0) -> list[list[Fraction]]:
    """One list for each operand: all sizes in all ratios, with random digits and signs."""
    draw = random.Random(seed)
    repeats = {1: 2, 2: 1, 3: 1}[function.operands]
    sizes = [
        e
        for e in exponents(fmt, function.operands)
        if 2.0 ** min(e, 1000) <= function.largest / 2
        and (2.0 ** max(e, -1000) > function.smallest)
    ]
    rows = [
        [
            draw.choice(function.signs) * mantissa(fmt, terms, draw) * Fraction(2) ** e
            for e in chosen
        ]
        for chosen in itertools.product(sizes, repeat=function.operands)
        for _ in range(repeats)
    ]
    for end in function.ends:
        for k in (2, fmt.p - 1, fmt.p * terms // 2, fmt.p * terms - 2):
            rows.append([end - end * mantissa(fmt, 1, draw) / 2**k])
    return [list(column) for column in zip(*rows, strict=True)]


def ball(x: Fraction) -> arb:
    """The number itself: the denominator is a power of two."""
    e = x.denominator.bit_length() - 1
    return arb(x.numerator) * arb(2) ** -e


@dataclasses.dataclass(frozen=True)
class Reference:
    """The exact value and derivatives at one point, NaN where unknown."""

    value: arb
    slopes: tuple[arb, ...]
    size: arb


def _sharp(x: arb, bits: int, floor: arb) -> bool:
    return bool(x.is_finite()) and bool(
        x.rad() <= abs(x.mid()) * arb(2) ** -bits or x.rad() < floor
    )


def reference(function: Function, point: Sequence[Fraction], fmt: Format, terms: int) -> Reference:
    """By ball arithmetic; derivatives by central differences of 2^-400 of the argument."""
    bits, before = fmt.p * terms + 20, ctx.prec
    floor = arb(2) ** (fmt.emin - fmt.p - 10)
    found: list[arb] = []
    try:
        for order in range(function.operands + 1):
            for prec in (1000, 2000, 4500, 9000):
                ctx.prec = prec
                x = [ball(v) for v in point]
                try:
                    if order == 0:
                        exact = function.exact(*x)
                    else:
                        # A step in whole turns of a sine would be none.
                        h = abs(x[order - 1]).min(1) * arb(2) ** -400
                        up, down = list(x), list(x)
                        up[order - 1], down[order - 1] = x[order - 1] + h, x[order - 1] - h
                        exact = (function.exact(*up) - function.exact(*down)) / (2 * h)
                except (OverflowError, ValueError):
                    exact = arb("nan")
                exact = exact if isinstance(exact, arb) else arb(exact)
                if _sharp(exact, bits, floor):
                    break
            else:
                exact = arb("nan")
            found.append(exact)
            if not exact.is_finite() and order == 0:
                # At a pole or outside the domain there is no derivative.
                found += [arb("nan")] * function.operands
                break
    finally:
        ctx.prec = before
    size = found[0] if function.size is None else function.size(*map(ball, point))
    return Reference(found[0], tuple(found[1:]), abs(size).mid())


@dataclasses.dataclass(frozen=True)
class Failure:
    """A result that is wrong.

    Args:
        function: its name.
        result: "value", or "derivative k" by operand k.
        fmt: the format's name.
        terms: the number of components.
        kind: "nan", "infinite", "zero" or "inexact".
        units: the error in u^n relative to the exact result.
        point: the arguments.
        got: the result.
        exact: the right one.
    """

    function: str
    result: str
    fmt: str
    terms: int
    kind: str
    units: float
    point: str
    got: str
    exact: str

    def __str__(self) -> str:
        return (
            f"{self.function:32} {self.result:13} {self.fmt:5} {self.terms} {self.kind:9} "
            f"{self.units:9.3g} u^n  at {self.point}: {self.got}, right {self.exact}"
        )


@dataclasses.dataclass
class Tally:
    """Counts of results tried and wrong, and each function's largest error within its bound."""

    tried: int = 0
    unknown: int = 0
    failures: list[Failure] = dataclasses.field(default_factory=list)
    worst: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)

    def take(self, other: Tally) -> None:
        self.tried += other.tried
        self.unknown += other.unknown
        self.failures += other.failures
        for key, units in other.worst.items():
            self.worst[key] = max(units, self.worst.get(key, 0.0))


# Functions whose names in torch and in `mcf.bound` differ.
_BOUND_NAMES = {
    "div.no_rounding_mode": "div",
    "special.ndtr": "normal_cdf",
    "polygamma.polygamma_n_0": "digamma",
    "polygamma.polygamma_n_1": "trigamma",
    **{f"polygamma.polygamma_n_{k}": f"polygamma_{k}" for k in (2, 3, 4)},
    **{f"special.modified_bessel_{n}": n for n in ("i0", "i1", "k0", "k1")},
    **{f"special.scaled_modified_bessel_{n}": f"{n}e" for n in ("k0", "k1")},
    **{f"special.bessel_{n}": n for n in ("j0", "j1", "y0", "y1")},
    "special.zeta_2": "",
    "nn.functional.softplus_beta": "",
    "pow_of_3": "pow",
}
# Functions made of pieces that are linear: their derivatives are operands and constants.
LINEAR = (
    "abs", "positive", "angle", "deg2rad", "rad2deg", "frac", "relu", "relu6", "hardtanh",
    "hardsigmoid", "hardswish", "hardshrink", "softshrink", "leaky_relu", "threshold", "prelu",
    "maximum", "copysign", "ldexp", "addcmul", "addcdiv", "lerp", "mvlgamma.mvlgamma_p",
)  # fmt: skip
# An argument that is rounded, 3 x: its error times the logarithm of the result, which is at most
# that of the largest number.
_ROUNDED_ARGUMENTS = ("nn.functional.softplus_beta",)


def bound_name(name: str) -> str:
    """Return the name that `mcf.bound` has for a function of the sweep, "" for none."""
    if name in _BOUND_NAMES:
        return _BOUND_NAMES[name]
    short = name.removeprefix("nn.functional.").removeprefix("special.")
    stem, _, number = short.rpartition("_")
    short = stem if stem == "pow" or (stem in LINEAR and number) else short
    return "" if short in LINEAR else short


def allowed(name: str, result: str, fmt: Format, terms: int) -> tuple[float, float]:
    """Return the error in u^n and the one in smallest subnormal numbers that a result may have."""
    logarithm = (fmt.emax + 1) * math.log(2) * (name in _ROUNDED_ARGUMENTS)
    usual = USUAL + logarithm, float(SUBNORMALS)
    known = bound_name(name) if name in ELEMENTWISE else ""
    if result == "value" or not known:
        return usual
    bound = mcf.bound(known, terms, fmt.dtype, derivative=True)
    if bound.of_terms:
        # Relative to what is added up, which has no reference here.
        return usual
    return bound.relative / float(fmt.u**terms), bound.absolute / float(fmt.min_subnormal)


def judge(
    got: Fraction | float,
    exact: arb,
    fmt: Format,
    terms: int,
    units: tuple[float, float],
    least: Fraction | None = None,
    relative_to: arb | None = None,
) -> tuple[str, float]:
    """Return the kind of a failure, "" for none, "unknown" or "outside", and the error in u^n.

    Args:
        got: the result.
        exact: the right one.
        fmt: the format of both.
        terms: the number of components.
        units: the error that is allowed, in u^n, and in smallest subnormal numbers.
        least: the size of the smallest argument, which steps of a formula may know to the
            smallest subnormal number only; None where they have a wider range.
        relative_to: the size to which the error is relative; None for that of the exact result.
    """
    if not exact.is_finite():
        return "unknown", 0.0
    size = abs(exact.mid())
    if size > arb(float(fmt.max)) * (1 - arb(2) ** -4):
        return "outside", 0.0
    if isinstance(got, float):
        return ("nan" if math.isnan(got) else "infinite"), math.inf
    ctx.prec = 4000
    error = abs(ball(got) - exact).mid()
    eta = arb(float(fmt.min_subnormal))
    unit = arb(1) / arb(fmt.u.denominator) ** terms
    if least:
        unit += eta / ball(least)
    beyond = error - units[1] * eta
    if beyond <= 0:
        return "", 0.0
    found = float(beyond / (size if relative_to is None else relative_to) / unit)
    if found <= units[0]:
        return "", found
    return ("zero" if got == 0 else "inexact"), found


def numbers(x: Any) -> list[Fraction | float]:
    """The elements, as exact fractions, infinities and NaN as floats."""
    columns = [c.detach().double().flatten().tolist() for c in x.components]
    return [
        sum(map(Fraction, row))
        if all(map(math.isfinite, row))
        else float(row[0])
        if not math.isfinite(row[0])
        else math.nan
        for row in zip(*columns, strict=True)
    ]


# Arguments of second derivatives: one of them is in the domain of each function.
_MIDDLE = ("0.31", "0.82", "-0.64", "1.27", "-1.9", "3.7", "11.3")


def second_derivatives(function: Function, fmt: Format, terms: int) -> Tally:
    """Return which second derivatives of a function of one number are wrong.

    They are compared with differences of ball arithmetic, at sizes near 1. The error may be 4 times
    that of a first derivative, of 1 + |f''|: their formulas add up terms of that size.
    """
    digits = "123456789123456789123456789123456789"
    x: Any = mcf.tensor([v + digits for v in _MIDDLE], terms, fmt.dtype).requires_grad_()
    points, name = numbers(x), function.name
    (slope,) = torch.autograd.grad(function.of(x).sum(), x, create_graph=True)
    found: list[Any] = [Fraction(0)] * len(points)
    if slope.requires_grad:
        found = numbers(torch.autograd.grad(slope.sum(), x)[0])
    tally, before = Tally(), ctx.prec
    ctx.prec = 2000
    try:
        for point, got in zip(points, found, strict=True):
            if abs(point) <= function.smallest or (1 if point > 0 else -1) not in function.signs:
                continue
            at = ball(Fraction(point))
            h = arb(2) ** -300
            try:
                ends = function.exact(at + h), function.exact(at), function.exact(at - h)
                exact = arb((ends[0] - 2 * ends[1] + ends[2]) / h**2)
            except (OverflowError, ValueError):
                continue
            if not _sharp(exact, fmt.p * terms + 20, arb(2) ** -fmt.p * terms):
                tally.unknown += 1
                continue
            tally.tried += 1
            limit = (4.0 * USUAL, float(SUBNORMALS))
            kind, units = judge(got, exact, fmt, terms, limit, None, 1 + abs(exact))
            ctx.prec = 2000
            if kind:
                tally.failures.append(
                    Failure(name, "second derivative", fmt.name, terms, kind, units,
                            f"{float(point):.4g}", f"{float(got):.6g}", exact.str(6, radius=False))
                )  # fmt: skip
    finally:
        ctx.prec = before
    return tally


def elementwise(
    function: Function,
    fmt: Format,
    terms: int,
    of: Callable[..., Any] | None = None,
    every: int = 1,
) -> Tally:
    """Return what is wrong with value and derivatives of a function at all sizes.

    Args:
        function: the function.
        fmt: of the components.
        terms: their number.
        of: computes it in the place of `function.of`.
        every: tries each `every`-th point.
    """
    columns = [column[::every] for column in arguments(function, fmt, terms)]
    x: list[Any] = [mcf.tensor(c, terms, fmt.dtype).requires_grad_() for c in columns]
    points = list(zip(*(numbers(v) for v in x), strict=True))
    value = (of or function.of)(*x)
    slopes = torch.autograd.grad(value.sum(), x, allow_unused=True)
    results = [("value", numbers(value))]
    for k, slope in enumerate(slopes):
        zero: list[Any] = [Fraction(0)] * len(points)
        results.append((f"derivative {k}", zero if slope is None else numbers(slope)))
    tally = Tally()
    limits = {result: allowed(function.name, result, fmt, terms) for result, _ in results}
    for i, point in enumerate(points):
        right = reference(function, point, fmt, terms)
        for (result, got), exact in zip(results, (right.value, *right.slopes), strict=True):
            limit = limits[result]
            roomy = fmt is FP16 and result != "value"
            near = [abs(point[0] - end) for end in function.ends if point[0] != end]
            least = None if roomy else min([*map(abs, point), *near])
            size = right.size if result == "value" else None
            kind, units = judge(got[i], exact, fmt, terms, limit, least, size)
            if kind == "outside":
                continue
            if kind == "unknown":
                tally.unknown += 1
                continue
            tally.tried += 1
            if kind:
                at = ", ".join(f"{float(v):.4g}" for v in point)
                one = got[i]
                tally.failures.append(
                    Failure(function.name, result, fmt.name, terms, kind, units, at,
                            f"{float(one):.6g}", exact.str(6, radius=False))
                )  # fmt: skip
            else:
                key = function.name, result
                tally.worst[key] = max(units, tally.worst.get(key, 0.0))
    return tally


# Functions of torch's list with derivatives that the second sweep leaves out, and why.
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(every_function.RANDOM, "random"),
    "linalg.eig": "complex, of a phase that no two algorithms share",
    "linalg.eigvals": "complex, in no order",
    "to_sparse": "refused",
    **dict.fromkeys(("bfloat16", "half", "float"), "conversions, of other results in float64"),
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """The arguments of a function, as torch's samples have them."""

    input: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


def _drawn(*shape: int) -> Tensor:
    numbers = random.Random(len(shape) + sum(shape))
    count = math.prod(shape)
    flat = [numbers.randrange(-(1 << 40), 1 << 40) / (1 << 38) for _ in range(count)]
    return torch.tensor(flat, dtype=torch.float64).reshape(shape)


# Functions with derivatives that are not in torch's list: what computes them, and the arguments.
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2.0, 2), (_drawn(1, 2, 6),)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 3.0, 2), (_drawn(1, 2, 4, 4),)),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 2.0, 2), (_drawn(1, 1, 2, 2, 4),)),
    "_weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), (_drawn(3, 4), _drawn(3, 1))),
    "conv_tbc": (torch.conv_tbc, (_drawn(5, 2, 3), _drawn(3, 3, 2), _drawn(2))),
    "affine_grid": (lambda x: F.affine_grid(x, [1, 1, 2, 3], align_corners=False),
                    (_drawn(1, 2, 3),)),
    "pad_sequence": (lambda x, y: torch.nn.utils.rnn.pad_sequence([x, y]),
                     (_drawn(3), _drawn(2))),
    "fold": (lambda x: F.fold(x, (3, 3), (2, 2)), (_drawn(1, 4, 4),)),
    "max_pool1d_with_indices": (lambda x: F.max_pool1d_with_indices(x, 2)[0], (_drawn(1, 2, 6),)),
    "celu_": (lambda x: torch.celu_(x.clone(), 0.5), (_drawn(6),)),
    "selu_": (lambda x: torch.selu_(x.clone()), (_drawn(6),)),
}  # fmt: skip


def sampled_names() -> dict[str, Any]:
    """Return the functions that have derivatives and samples, and are not left out."""
    found = {
        every_function.name_of(op): op
        for op in every_function.functions()
        if op.supports_autograd and every_function.name_of(op) not in LEFT_OUT
    }
    return found | {name: function for name, (function, _) in OTHERS.items()}


def _samples(name: str, op: Any, count: int) -> Iterable[Any]:
    if name in OTHERS:
        first, *rest = OTHERS[name][1]
        return [Sample(first, tuple(rest))]
    return every_function.samples(op, count)


def _scales(fmt: Format, terms: int, count: int) -> list[tuple[int, ...]]:
    """Exponents of the operands: all alike, and one of them far from the others."""
    low, high = fmt.emin + 4, fmt.emax - 8
    sizes = [low, low // 2, low // 4, high // 4, high // 2, high]
    found = [(e,) * count for e in (0, *sizes)]
    if count > 1:
        for k in range(min(count, 3)):
            for e in (low // 2, low // 4, high // 4, high // 2):
                found.append(tuple(e if i == k else 0 for i in range(count)))
    return found


def _scaled(x: Tensor, e: int, fmt: Format, terms: int) -> Any:
    """The numbers of a sample times 2^e, at most a tenth of the largest, with random low digits."""
    limit = float(fmt.max) / 10
    first = torch.ldexp(x.detach().double().clamp(-128, 128), torch.tensor(e)).clamp(-limit, limit)
    whole: Any = mcf.tensor(first, terms, fmt.dtype)
    return whole


def _run(op: Any, given: Any, leaves: list[Any], weights: list[Tensor] | None) -> Any:
    """The results that have derivatives, their weights, and the derivatives by the leaves."""
    for x in leaves:
        x.requires_grad_()
    found = every_function.attempt(lambda: op(given[0], *given[1], **given[2]))
    if isinstance(found, str):
        return None
    results = [y for y in every_function.floats(found) if y.requires_grad]
    if not results:
        return None
    if weights is None:
        # From 1/2 to 1, in every format.
        weights = [
            0.5 + torch.randint(0, 128, y.shape, dtype=torch.float64, device="cpu") / 256
            for y in results
        ]
    up: list[Any] = [
        mcf.tensor(w, y.terms, y.dtype) if isinstance(y, mcf.MCFTensor) else w.to(y.dtype)
        for w, y in zip(weights, results, strict=True)
    ]
    slopes = torch.autograd.grad(results, leaves, up, allow_unused=True)
    return results, weights, slopes


def sampled(name: str, op: Any, fmt: Format, terms: int, few: bool = False) -> Tally:
    """Return the failures of a function on torch's first sample that has any numbers, scaled.

    Args:
        name: of the function.
        op: computes it.
        fmt: of the components.
        terms: their number.
        few: tries three scales only: as they are, and the smallest and the largest one.
    """
    tally = Tally()
    for sample in _samples(name, op, 1000):
        given = (sample.input, list(sample.args), dict(sample.kwargs))
        floats = [x for x in every_function.floats(given) if x.numel()]
        if not floats:
            continue
        scales = _scales(fmt, terms, len(floats))
        for scale in (scales[0], scales[1], scales[6]) if few else scales:
            exponents_of = dict(zip(map(id, floats), scale, strict=True))
            made: dict[int, Any] = {}

            def ours(
                x: Any, wide: bool, made: dict[int, Any] = made, of: dict[int, int] = exponents_of
            ) -> Any:
                if not every_function._is_float(x):
                    return x
                if id(x) not in made:
                    made[id(x)] = _scaled(x, of.get(id(x), 0), fmt, terms)
                y = made[id(x)]
                return y.detach().to(torch.float64, terms=3) if wide else y

            narrow = tree_map(lambda x: ours(x, False), given)
            wide = tree_map(lambda x: ours(x, True), given)
            tally.take(_compared(name, op, narrow, wide, fmt, terms, scale))
        if tally.tried:
            break
    return tally


def _compared(
    name: str, op: Any, narrow: Any, wide: Any, fmt: Format, terms: int, scale: tuple[int, ...]
) -> Tally:
    tally = Tally()
    ends = [every_function.floats(x) for x in (narrow, wide)]
    at = "2^" + ",".join(map(str, scale))

    def failed(result: str, kind: str, units: float, got: float, exact: float) -> None:
        tally.failures.append(
            Failure(name, result, fmt.name, terms, kind, units, at, f"{got:.6g}", f"{exact:.6g}")
        )

    try:
        right = _run(op, wide, ends[1], None)
        if right is None:
            return tally
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        # torch refuses some samples, such as a matrix that is singular at this scale.
        tally.unknown += 1
        return tally
    try:
        found = _run(op, narrow, ends[0], right[1])
    except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
        failed("value", "error", math.inf, math.nan, math.nan)
        tally.failures[-1] = dataclasses.replace(
            tally.failures[-1], exact=f"{type(error).__name__}: {str(error)[:80]}"
        )
        return tally
    if found is None or len(found[0]) != len(right[0]):
        failed("value", "none", math.inf, math.nan, math.nan)
        return tally
    given = torch.cat([x.detach().to_plain(torch.float64).abs().flatten() for x in ends[0]])
    least = given[given > 0].min().item() if (given > 0).any() else 1.0
    results = [("value", x, y) for x, y in zip(found[0], right[0], strict=True)]
    results += [
        (f"derivative {k}", x, y)
        for k, (x, y) in enumerate(zip(found[2], right[2], strict=True))
        if isinstance(y, mcf.MCFTensor)
    ]
    value_size = 0.0
    for result, x, y in results:
        exact = y.detach().to_plain(torch.float64)
        if x is None:
            tally.tried += 1
            if (exact != 0).any():
                failed(result, "none", math.inf, math.nan, exact.abs().max().item())
            continue
        if not isinstance(x, mcf.MCFTensor):
            continue
        off = (x.detach().to(torch.float64, terms=3) - y.detach()).to_plain(torch.float64).abs()
        got = x.detach().to_plain(torch.float64)
        # A derivative times a weight of 1/2 may be in the range where it is not itself.
        most = float(fmt.max) * (1 - 2.0**-4) * (1.0 if result == "value" else 0.5)
        inside = exact.isfinite() & (exact.abs() <= most)
        if not inside.any():
            continue
        tally.tried += 1
        size = exact[inside].abs().max().item()
        if result == "value":
            value_size = max(value_size, size)
        else:
            # A derivative that vanishes is a difference of terms as large as value / argument.
            operand = ends[1][int(result.split()[1])].detach().to_plain(torch.float64).abs().max()
            size = max(size, value_size / operand.item()) if operand else size
        roomy = fmt is FP16 and result != "value"
        unit = float(fmt.u**terms) + (0.0 if roomy else float(fmt.min_subnormal) / least)
        lost = SUBNORMALS * float(fmt.min_subnormal) * max(1, given.numel())
        bad = inside & ~got.isfinite()
        if bad.any():
            kind = "nan" if got[bad].isnan().any() else "infinite"
            failed(result, kind, math.inf, got[bad][0].item(), exact[bad][0].item())
            continue
        error = (torch.where(inside, off, 0) - lost).clamp_min(0)
        worst = int(error.flatten().argmax())
        units = error.flatten()[worst].item() / size / unit if size else 0.0
        one = got.flatten()[worst].item(), exact.flatten()[worst].item()
        if units > allowed(name, result, fmt, terms)[0] * 16:
            failed(result, "zero" if one[0] == 0 else "inexact", units, *one)
        else:
            tally.worst[name, result] = max(units, tally.worst.get((name, result), 0.0))
    return tally


def table(failures: Iterable[Failure]) -> Iterator[str]:
    """Yield the number of the failures of a kind, function, result and format, and the first."""
    order = ("nan", "infinite", "zero", "none", "error", "inexact")
    grouped = collections.defaultdict(list)
    for each in failures:
        grouped[order.index(each.kind), each.function, each.result, each.fmt].append(each)
    for (kind, *_), group in sorted(grouped.items()):
        yield f"{order[kind]:9} x {len(group):<5}{group[0]}"


def main() -> None:
    """Print the table of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions; by default all")
    parser.add_argument("--formats", default="fp16,bf16,fp32,fp64")
    parser.add_argument("--terms", default="1,2")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    forms = [*itertools.product(options.formats.split(","), map(int, options.terms.split(",")))]
    total = Tally()
    with mcf.executor("torch"):
        for name, function in ELEMENTWISE.items():
            for fmt, terms in forms if not options.names or name in options.names else ():
                total.take(elementwise(function, FORMATS[fmt], terms))
        for name, op in sampled_names().items():
            for fmt, terms in forms if not options.names or name in options.names else ():
                # Three components of float64 have no wider range to compare with.
                if fmt != "fp64":
                    total.take(sampled(name, op, FORMATS[fmt], terms))
    print("\n".join(table(total.failures)))
    near = sorted(total.worst.items(), key=lambda item: -item[1])
    print("largest errors within the bound:", [(*k, round(v, 1)) for k, v in near[:40]])
    print(f"{total.tried} results, {len(total.failures)} wrong, {total.unknown} unknown")


if __name__ == "__main__":
    main()
