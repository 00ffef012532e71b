"""Elementary functions on tuples of components.

Every function takes expansions as tuples of 1 to 4 tensors (bfloat16, float16, float32, float64),
largest component first and normalised, of one dtype and device, which broadcast; it returns as many
components as the longest argument, normalised. Special values are those of C99 (Annex F).

The result is computed with some 10 bits more than it has and rounded once, so that its error is
little above that of the rounding itself: `mcf.bound` and `mcf.elementary.bounds` have the bounds.
Four components of float64 are computed with no more than themselves. Results below the smallest
normal number times u**(1 - n) lose the bits that have no place above the smallest subnormal one;
results beyond the largest number are infinite. All executors give the same bits.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices; `ValueError` for shapes
that do not broadcast or a wrong number of components; `RuntimeError` for tensors that require grad
while grad mode is on: derivatives belong to `mcf.MCFTensor`.
"""

from __future__ import annotations

from mcf.elementary import error as _error
from mcf.elementary import hyperbolic as _hyperbolic
from mcf.elementary import power as _power
from mcf.elementary import rounding as _rounding
from mcf.elementary import softmax as _softmax
from mcf.elementary import transcendental as _transcendental
from mcf.elementary import trigonometric as _trigonometric
from mcf.elementary.operator import apply
from mcf.elementary.tables import Components

# Importing them registers what they compute.
_MODULES = (_error, _hyperbolic, _power, _rounding, _transcendental, _trigonometric)


def exp(x: Components) -> Components:
    """e**x; 0 at -inf."""
    return apply("exp", x)


def expm1(x: Components) -> Components:
    """e**x - 1, accurate for small x too."""
    return apply("expm1", x)


def log(x: Components) -> Components:
    """Natural logarithm; -inf at 0, nan below."""
    return apply("log", x)


def log1p(x: Components) -> Components:
    """log(1 + x), accurate for small x too. -inf at -1, nan below."""
    return apply("log1p", x)


def log2(x: Components) -> Components:
    """Logarithm to base 2; exact for powers of two."""
    return apply("log2", x)


def log10(x: Components) -> Components:
    """Logarithm to base 10; exact for powers of ten."""
    return apply("log10", x)


def sin(x: Components) -> Components:
    """Sine of an angle in radians, reduced exactly whatever its size; nan for infinities."""
    return apply("sin", x)


def cos(x: Components) -> Components:
    """Cosine of an angle in radians, reduced exactly whatever its size; nan for infinities."""
    return apply("cos", x)


def tan(x: Components) -> Components:
    """Tangent of an angle in radians, reduced exactly whatever its size; nan for infinities."""
    return apply("tan", x)


def asin(x: Components) -> Components:
    """Arc sine, in [-pi/2, pi/2]; nan for |x| > 1."""
    return apply("asin", x)


def acos(x: Components) -> Components:
    """Arc cosine, in [0, pi]; nan for |x| > 1."""
    return apply("acos", x)


def atan(x: Components) -> Components:
    """Arc tangent, in [-pi/2, pi/2]."""
    return apply("atan", x)


def sinh(x: Components) -> Components:
    """Hyperbolic sine."""
    return apply("sinh", x)


def cosh(x: Components) -> Components:
    """Hyperbolic cosine."""
    return apply("cosh", x)


def tanh(x: Components) -> Components:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def asinh(x: Components) -> Components:
    """Inverse hyperbolic sine."""
    return apply("asinh", x)


def acosh(x: Components) -> Components:
    """Inverse hyperbolic cosine; nan for x < 1."""
    return apply("acosh", x)


def atanh(x: Components) -> Components:
    """Inverse hyperbolic tangent; infinite at 1 and -1, nan beyond."""
    return apply("atanh", x)


def sigmoid(x: Components) -> Components:
    """1 / (1 + e**-x), accurate in both tails."""
    return apply("sigmoid", x)


def erf(x: Components) -> Components:
    """Error function, 2/sqrt(pi) times the integral of e**(-t^2) from 0 to x."""
    return apply("erf", x)


def erfc(x: Components) -> Components:
    """1 - erf(x), accurate in the upper tail too."""
    return apply("erfc", x)


def normal_cdf(x: Components) -> Components:
    """The normal distribution function, accurate in the lower tail too."""
    return apply("normal_cdf", x)


def normal_pdf(x: Components) -> Components:
    """The normal density, exp(-x^2 / 2) / sqrt(2 pi)."""
    return apply("normal_pdf", x)


def gelu(x: Components) -> Components:
    """x times the normal distribution function, accurate in the lower tail too."""
    return apply("gelu", x)


def gelu_tanh(x: Components) -> Components:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the constants as written, not rounded."""
    return apply("gelu_tanh", x)


def atan2(y: Components, x: Components) -> Components:
    """Angle of the point (x, y), in [-pi, pi]; quadrants and signed zeros as in C99."""
    return apply("atan2", y, x)


def pow(x: Components, y: Components) -> Components:
    """x**y with the special values of C99; nan for x < 0 unless y is an integer.

    Whole powers, powers of two and odd halves of squares are exact where they have that many
    components (and at most 252 bits, but for squares and cubes).
    """
    return apply("pow", x, y)


def hypot(x: Components, y: Components) -> Components:
    """sqrt(x^2 + y^2) without overflow on the way; inf if either is infinite."""
    return apply("hypot", x, y)


def floor(x: Components) -> Components:
    """Largest integer at most x. Exact."""
    return apply("floor", x)


def ceil(x: Components) -> Components:
    """Smallest integer at least x. Exact."""
    return apply("ceil", x)


def round(x: Components) -> Components:
    """Integer nearest to x, the even one of two that are as near. Exact."""
    return apply("round", x)


def trunc(x: Components) -> Components:
    """Integer nearest to x among those not beyond it. Exact."""
    return apply("trunc", x)


def fmod(x: Components, y: Components) -> Components:
    """x - y trunc(x/y), with the sign of x; nan for infinite x or y = 0.

    A zero has the sign of x. Exact but for the rounding of the result to its components; by
    rational arithmetic on the host, some microseconds an element.
    """
    return apply("fmod", x, y)


def remainder(x: Components, y: Components) -> Components:
    """x - y floor(x/y), with the sign of y; nan for infinite x or y = 0.

    A zero has the sign of x. Exact but for the rounding of the result to its components; by
    rational arithmetic on the host, some microseconds an element.
    """
    return apply("remainder", x, y)


def softmax(x: Components, dim: int) -> Components:
    """exp(x_i) / sum_j exp(x_j) along a dimension."""
    return _softmax.softmax(x, dim)


def log_softmax(x: Components, dim: int) -> Components:
    """x_i - logsumexp(x) along a dimension."""
    return _softmax.log_softmax(x, dim)


def logsumexp(x: Components, dim: int) -> Components:
    """log(sum_j exp(x_j)) along a dimension, which the result lacks."""
    return _softmax.logsumexp(x, dim)
