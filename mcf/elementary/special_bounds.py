"""Error bounds of the special functions, derived step by step.

They work as in `mcf.elementary.error_bounds`, with two numbers: the error relative to the result,
and below zero, where that is a difference of two terms, the error relative to the sum of their
magnitudes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from mcf.elementary import (
    airy_bounds,
    bessel_bounds,
    bessel_jy_bounds,
    bessel_slopes,
    error_function_bounds,
    error_slopes,
    function_bounds,
    gamma,
    gamma_arguments,
    gamma_tables,
    polygamma,
    tables,
)
from mcf.elementary.error_bounds import log, sin_cos
from mcf.elementary.error_steps import Steps
from mcf.elementary.format import computing_in
from mcf.elementary.working import working_terms
from mcf.kernels.formats import FP64, Format

# (relative to the result, relative to the terms of a reflection)
Errors = tuple[float, float]


def underflow(e: Steps, least: float = 2.0**-52) -> float:
    """Return the error of the sine of a small angle in float32, scaled below `least`.

    Bits below 2**-149 are lost up to 16 times, which is 2**-93 of 2**-52.
    """
    return 0.0 if e.fmt is FP64 else 2.0**-145 / least


def _taylor(
    e: Steps,
    name: str,
    degrees: int = gamma_tables.DEGREES,
    spare: float = 0.0,
    *,
    falling: bool = False,
    steep: int = 0,
) -> float:
    """Return the error of a series of `gamma_tables`; its argument may be a rounded sum.

    For a falling function the coefficients alternate in sign.
    """
    table = tables.table(name, torch.device("cpu"))[0].reshape(-1, degrees)
    degree = gamma.degree_needed(e.terms, spare, degrees)
    needed = [gamma.components_needed(e.terms, k, spare) for k in range(degree)]
    steps = e.at_node([*needed, 1], steep)
    worst = 0.0
    for row in table.abs().tolist():
        rows = [*zip(row, needed, strict=False), (row[degree], 1)]
        found, size = e.horner(rows, 1.0, e.beside(), steps)
        # The argument is below 128 half-widths of its interval. Coefficients fall by at least five
        # bits.
        found += 128 * 2 * row[1] * e.collect() + 2 * row[degree + 1]
        least = 2 * row[0] - size
        if falling:
            # The value at the far end: all signs alternate.
            end = math.fsum((-1) ** k * c for k, c in enumerate(row[: degree + 1]))
            least = max(least, end - 2 * row[degree + 1])
        worst = max(worst, found / least)
    return worst


def _stirling(e: Steps, k: int) -> float:
    """Return the error of the series divided by its first term, from 1 / z^2."""
    coefficient = functools.partial(gamma.stirling, k)
    return e.polynomial(2.0**-gamma._BITS, gamma._BITS, coefficient, 8.0, 2 * e.div() + e.mul())


def _angle(e: Steps, least: float = 2.0**-52) -> float:
    """Return the error of pi times the distance of x from a whole number, from `least` on."""
    return 2 * e.collect() + e.mul() + e.constant() + underflow(e, least)


def lgamma(e: Steps) -> Errors:
    """Return the errors of lgamma: (x - 1) (x - 2) g(x), Stirling's, log|x|, reflection."""
    near = _taylor(e, "lgamma_series") + 2 * e.mul() + 2 * e.collect()
    # log x - 1 and (x - 1/2) (log x - 1) from 64 on; the rest is at most a 400th of them.
    least = math.log(gamma_arguments.FAR)
    rest = e.add() + e.constant() + _stirling(e, 0) + 3 * e.mul() + e.div()
    far = log(e) * least / (least - 1) + e.add() + e.collect() + e.mul() + rest / 400 + e.add()
    # 0 < x < 1/2: -log x is at least 0.69, log Gamma(1 + x) at least -0.1215.
    half = math.log(2)
    low = (0.1215 * near + half * log(e)) / (half - 0.1215) + e.add()
    chord = max(sin_cos(e)) + _angle(e) + e.mul() + e.constant()
    parts = max(log(e) + chord / math.log(math.pi), near, far)
    return max(near, far, low), parts + 2 * e.add()


def digamma(e: Steps) -> Errors:
    """Return the errors of digamma: (x - x0) h(x), Stirling's, 1/x below 1/2, cotangent below 0."""
    near = _taylor(e, "digamma_series") + e.mul() + e.collect()
    rest = e.add() + _stirling(e, 1) + 3 * e.mul() + e.div()
    far = 1.01 * log(e) + e.add() + rest / 400
    # 1/x is at least 2, digamma(1 + x) from -0.578 to 0.037.
    low = 0.3 * near + 1.02 * e.div() + e.add()
    # x / (sin x cos x) is at most pi/2 up to pi/4.
    cotangent = sum(sin_cos(e)) + math.pi / 2 * _angle(e) + e.mul() + e.constant() + e.div()
    return max(near, far, low), max(near, far, cotangent) + e.add()


def trigamma(e: Steps) -> Errors:
    """Return the errors of trigamma: series, Stirling's, 1/x^2 below 1/2, sine below 0."""
    near = _taylor(e, "trigamma_series")
    rest = e.add() + e.div() + _stirling(e, 2) + 3 * e.mul() + e.constant()
    far = e.add() + e.div() + rest / 100
    low = max(near, 2 * e.div() + e.mul()) + e.add() + underflow(e)
    # (pi / sin)^2 is at least pi^2, trigamma(1 - x) at most 1.645.
    square = 2 * (max(sin_cos(e)) + _angle(e) + e.constant() + e.div()) + e.mul()
    down = 1.21 * square + 0.21 * max(near, far) + e.add()
    return max(near, far, low, down), 0.0


def _polygamma(e: Steps, m: int, *, zeta: bool = False) -> Errors:
    """Return the errors of polygamma: series, Stirling's, m! / x^(m+1) below 1/2, sine below 0."""
    name, degrees = f"polygamma_{m}_series", polygamma.degrees(m)
    near = _taylor(e, name, degrees, polygamma.spare(m), falling=m > 4, steep=polygamma.steep(m))
    coefficient = functools.partial(polygamma.stirling, m)
    tail = e.polynomial(2.0**-gamma._BITS, gamma._BITS, coefficient, 8.0, 2 * e.div() + e.mul())
    # Whole numbers with more bits than a float are rounded constants.
    whole = e.constant() * (m > 4)
    # The terms after 1 are at most m/(2 z) + m (m + 1)/(12 z^2); the former is up to 1/32 for m =
    # 4.
    share = max(1 / 32, m / 128 + m * (m + 1) / 49152)
    rest = (e.add() + e.div() + tail + 4 * e.mul() + e.constant() + whole) * share
    far = rest + e.add() + e.div() + m * (e.mul() + e.collect()) + whole
    step = (m + 1) * e.div() + (m + 1) * e.mul() + whole
    # Below `least` all but the largest term is left out: at most 2 zeta(m + 1) of its inverse.
    least = polygamma.tiny_below(m)
    step += 2.5 * least ** (m + 1)
    low = max(near, step) + e.add()
    sine = max(sin_cos(e)) + _angle(e, least)
    down = step + (m + 1) * (sine + e.constant()) + _weight(e, m, sine, whole)
    last = zeta * (e.mul() + e.constant())
    if m % 2:
        # The power is at least 2 pi^4 for m = 3, and the subtracted term at most 6.5; less for
        # larger m.
        found = max(near, far, low, 1.04 * down + 0.04 * max(near, far) + 1.04 * e.add())
        return found + last, 0.0
    # Relative to the sum of all m! / |x + k|^(m + 1), which is at least either term. The error of r
    # contributes at most (m + 1) times itself, also where the cosine is small; `down` includes
    # twice as much.
    return max(near, far, low) + last, max(down, near, far) + e.add() + last


def _weight(e: Steps, m: int, cosine: float, whole: float) -> float:
    """Return the error of g_m(c), of degree m - 1: Horner's rule in c^2, all terms of one sign."""
    steps = (m - 1) // 2
    found = (m - 1) * cosine + steps * (e.mul() + e.add() + whole)
    return found + max(steps - 1, 0) * e.mul() + (m % 2 == 0 and steps > 0) * e.mul()


DERIVED: dict[str, Callable[[Steps], Errors]] = {
    "lgamma": lgamma, "digamma": digamma, "trigamma": trigamma,
    **{f"polygamma_{m}": functools.partial(_polygamma, m=m) for m in (2, 3, 4)},
    "erfinv": error_function_bounds.erfinv, "ndtri": error_function_bounds.ndtri,
    "erfcx": error_function_bounds.erfcx, "log_ndtr": error_function_bounds.log_ndtr,
    "spherical_bessel_j0": lambda e: (max(sin_cos(e)) + e.div() + underflow(e), 0.0),
    **{
        f"{letter}{order}{end}": functools.partial(kind, order=order, scaled=end == "e")
        for letter, kind in (("i", bessel_bounds.first), ("k", bessel_bounds.second))
        for order in (0, 1)
        for end in ("", "e")
    },
    **{
        f"{letter}{order}": functools.partial(kind, order=order)
        for letter, kind in (("j", bessel_jy_bounds.first), ("y", bessel_jy_bounds.second))
        for order in (0, 1)
    },
    "airy_ai": functools.partial(airy_bounds.airy_ai, m=0),
}  # fmt: skip
FUNCTIONS = tuple(DERIVED)
# These bounds rest on an observed accuracy of the start (`start_bits` of `mcf.elementary.format`),
# which was at least two bits better in all trials.
OBSERVED = ("erfinv", "ndtri")


# Derivatives that autograd needs.
SLOPES: dict[str, Callable[[Steps], Errors]] = {
    "erf_1": error_function_bounds.erf_1,
    "gelu_1": error_function_bounds.gelu_1,
    **{
        f"erfcx_{m}": functools.partial(error_function_bounds.erfcx_slope, m=m)
        for m in range(1, error_slopes.LAST + 1)
    },
    **{
        f"{name}_{m}": functools.partial(bessel_bounds.slope, name=name, m=m)
        for name in ("i0e", "i1e", "k0e")
        for m in range(1, bessel_slopes.LAST + 1)
    },
    "airy_ai_1": functools.partial(airy_bounds.airy_ai, m=1),
}


def of_order(function: str) -> int | None:
    """Return the order of a polygamma or zeta function that is created on request, or None."""
    kind, _, digits = function.rpartition("_")
    if kind not in ("polygamma", "zeta") or not digits.isdecimal():
        return None
    order = int(digits) - (kind == "zeta")
    return order if 2 <= order <= polygamma.LAST and str(int(digits)) == digits else None


def _errors_of(function: str) -> Callable[[Steps], Errors]:
    order = of_order(function)
    if order is None:
        return (DERIVED | SLOPES)[function]
    zeta = function.startswith("zeta")
    # This creates the table.
    (polygamma.zeta(order + 1) if zeta else polygamma.polygamma(order))
    return functools.partial(_polygamma, m=order, zeta=zeta)


@functools.cache
def derived(
    function: str, fmt: Format, terms: int, register: Format = FP64
) -> tuple[float, float, bool]:
    """Return the bounds in units of u**terms, of the result and the terms; whether they are proved.

    For the rounding to components see `mcf.elementary.function_bounds.derived`.
    """
    width = FP64 if fmt is FP64 else register
    with computing_in(width):
        steps = Steps(working_terms(fmt, terms), width)
        found, parts = _errors_of(function)(steps)
    proven = steps.proven and function not in OBSERVED
    unit, slack = float(fmt.u**terms), function_bounds.slack(width)
    if fmt is width:
        last = Steps(terms, width)
        found += last.collect()
        return found / unit * slack, parts / unit * slack, last.proven and proven
    rounding = 2.0 ** (1 - terms)
    return (rounding + found / unit) * slack, parts / unit * slack, proven
