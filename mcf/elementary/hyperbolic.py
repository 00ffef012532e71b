"""sinh, cosh, tanh, their inverses and the logistic function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.elementary import exponential, logarithm
from mcf.elementary import working as ex
from mcf.elementary.declarations import COMPOSED, Composed, composed, inverse, root_of
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import exp_error, expm1_error
from mcf.elementary.format import WORKING, working
from mcf.elementary.logarithm import log1p_error
from mcf.elementary.operator import function
from mcf.elementary.tables import Components
from mcf.kernels.formats import Format


def _magnitude(x: Components, limit: float) -> tuple[Components, Tensor, Tensor]:
    """Return |x| (1 where zero or above the limit), its sign, and where |x| is in range."""
    a, sign = ex.magnitude(x)
    good = (a[0] <= limit) & (a[0] > 0)
    return ex.sanitized(a, good), sign, good


def logistic(y: Components, working: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of 1 / (1 + exp(-y)) for |y| <= 1100."""
    down = y[0] < 0
    t, e = exponential.scaled_exp(ex.signed(y, -ex.sign_of(down)), working)
    one = torch.ones_like(y[0])
    below = ex.add(ex.scale_all(t, e), one)
    result = ex.div(ex.select(down, t, ex.head((one,), working)), below)
    return result, torch.where(down, e, 0)


def log1p(z: Components, working: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of log(1 + z), z > 0, where 1 + z0 is the leading float."""
    one = torch.ones_like(z[0])
    lead = ex.add((one,), (z[0],))[0]
    return logarithm.scaled_log((one, *z), lead, working)


def _log_twice(x: Components, huge: Tensor, working: int) -> Components:
    """Return log(2 x) where `huge` holds."""
    x = ex.sanitized(x, huge)
    return logarithm.scaled_log(x, x[0], working, 0, huge.to(torch.int64))[0]


def _beyond(e: Steps) -> float:
    """Return exp(-2 x) at the point from which it is left out: 77, or 40 in float32."""
    return math.exp(-2 * WORKING[e.fmt].far)


def sigmoid_error(e: Steps, argument: float = 0.0) -> float:
    """Return the error of 1 / (1 + t) or t / (1 + t), t = exp(-|x|)."""
    return exp_error(e, argument) + e.add() + e.div()


def _asinh_error(e: Steps) -> float:
    """Return the error of log(1 + x + x^2 / (1 + sqrt(x^2 + 1))); the quotient is at most x."""
    below = e.add() + e.sqrt() + (e.add() + e.mul()) / 2
    return log1p_error(e, e.add() + (e.mul() + below + e.div()) / 2)


def _acosh_error(e: Steps) -> float:
    """Return the error of log(1 + t + sqrt(t (2 + t))), t = x - 1."""
    side = e.sqrt() + (2 * e.collect() + e.add() + e.mul()) / 2
    return log1p_error(e, max(side, e.collect()) + e.add())


COMPOSED["atanh_1"] = Composed(
    lambda x, of: 1 / ((1 - x) * (1 + x)), lambda x, of: 2 * (x * of.atanh_1(x).square())
)
COMPOSED["sigmoid_1"] = Composed(
    lambda x, of: torch.sigmoid(x) * torch.sigmoid(-x),
    lambda x, of: -(of.sigmoid_1(x) * torch.tanh(x / 2)),
)


@function(
    "x",
    torch=("sinh",),
    # The quotient is at most half of the sum.
    bound=lambda e: expm1_error(e) + (e.add() + e.div()) / 2 + e.add(),
    worst=1.11,
    slope=("cosh",),
)
def sinh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the hyperbolic sine.

    (exp(x) - exp(-x)) / 2 = (E + E/(E + 1)) / 2 with E = exp(|x|) - 1.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign, good = _magnitude(y, working().exp_limit)
    value, e = exponential.scaled_expm1(a, w)
    near = a[0] <= working().sinh_far
    v = ex.scale_all(ex.sanitized(value, near), torch.where(near, e, 0))
    both = ex.add(v, ex.div(v, ex.add(v, torch.ones_like(v[0]))))
    result = ex.select(near, both, value)
    tiny = a[0] < working().tiny
    result = ex.select(tiny, ex.head(a, w), result)
    k = torch.where(tiny, 0, torch.where(near, -1, e - 1))
    out = ex.signed(ex.leave(result, fmt, terms, k), sign.to(fmt.dtype))
    return ex.special(~good, torch.where(x[0] == 0, x[0], x[0] * math.inf), out)


@function(
    "x",
    torch=("cosh",),
    bound=lambda e: exp_error(e) + e.div() / 2 + e.add() + _beyond(e),
    worst=0.46,
    slope=("sinh",),
)
def cosh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the hyperbolic cosine, (exp(x) + exp(-x)) / 2."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, _, good = _magnitude(y, working().exp_limit)
    value, e = exponential.scaled_exp(a, w)
    near = a[0] <= working().far
    v = ex.scale_all(value, torch.where(near, e, 0))
    both = ex.add(v, ex.div(ex.head((torch.ones_like(v[0]),), w), v))
    out = ex.leave(ex.select(near, both, value), fmt, terms, torch.where(near, -1, e - 1))
    beyond = torch.where(x[0] == 0, 1.0, x[0].abs() * math.inf)
    return ex.special(~good, beyond.to(fmt.dtype), out)


@function(
    "x",
    torch=("tanh",),
    bound=lambda e: expm1_error(e) + e.add() + e.div() + 2 * _beyond(e),
    worst=1.31,
    derivative=lambda x, of: x.cosh() ** -2,
    slope=lambda real: composed(*2 * (inverse(real("cosh")),), real("pow")),
)
def tanh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the hyperbolic tangent, E/(E + 2) with E = exp(2|x|) - 1."""
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign, good = _magnitude(y, working().far)
    value, e = exponential.scaled_expm1(
        ex.scale_all(a, torch.ones_like(a[0], dtype=torch.int64)), w
    )
    v = ex.scale_all(value, e)
    result = ex.div(v, ex.add(v, torch.full_like(v[0], 2.0)))
    result = ex.select(a[0] < working().tiny, ex.head(a, w), result)
    out = ex.signed(ex.leave(result, fmt, terms), sign.to(fmt.dtype))
    beyond = torch.where((x[0] == 0) | x[0].isnan(), x[0], x[0].sign())
    return ex.special(~good, beyond, out)


@function(
    "x",
    torch=("sigmoid", "expit"),
    bound=sigmoid_error,
    worst=1.72,
    derivative=lambda x, of: of.sigmoid_1(x),
    slope=("sigmoid", "sigmoid", "mul"),
)
def sigmoid(x: Components, fmt: Format, terms: int) -> Components:
    """Return 1 / (1 + exp(-x)), accurate in both tails.

    For x < 0 it is computed as exp(x) / (1 + exp(x)).
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    good = y[0].abs() <= working().exp_limit
    y = ex.sanitized(y, good, 0.0)
    result, k = logistic(y, w)
    out = ex.leave(result, fmt, terms, k)
    beyond = torch.where(x[0].isnan(), x[0], (x[0] > 0).to(fmt.dtype))
    return ex.special(~good, beyond, out)


@function(
    "x",
    torch=("asinh", "arcsinh"),
    bound=_asinh_error,
    worst=1.71,
    derivative=lambda x, of: 1 / torch.hypot(x, torch.ones_like(x)),
    slope=lambda real: composed(inverse(real("hypot")), real("reciprocal")),
)
def asinh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the inverse hyperbolic sine.

    log(|x| + sqrt(x^2 + 1)) = log(1 + |x| + x^2/(1 + sqrt(x^2 + 1))).
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign, good = _magnitude(y, float(working().format.max))
    huge, tiny = a[0] > working().huge, a[0] < working().tiny
    v = ex.sanitized(ex.head(a, w), ~(huge | tiny))
    one = torch.ones_like(v[0])
    square = ex.mul(v, v)
    below = ex.add(ex.sqrt(ex.add(square, one)), one)
    near, k = log1p(ex.add(v, ex.div(square, below)), w)
    far = _log_twice(a, huge, w)
    result = ex.select(tiny, ex.head(a, w), ex.select(huge, far, near))
    k = torch.where(tiny | huge, 0, k)
    out = ex.signed(ex.leave(result, fmt, terms, k), sign.to(fmt.dtype))
    return ex.special(~good, x[0], out)


@function(
    "x",
    torch=("acosh", "arccosh"),
    bound=_acosh_error,
    worst=2.75,
    derivative=lambda x, of: 1 / ((x - 1).sqrt() * (x + 1).sqrt()),
    slope=lambda real: composed(
        inverse(composed(*2 * (composed(root_of(real("add")), real("sqrt")),), real("mul"))),
        real("reciprocal"),
    ),
)
def acosh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the inverse hyperbolic cosine; NaN for x < 1.

    log(1 + t + sqrt(t (2 + t))) with t = x - 1.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    one = torch.ones_like(y[0])
    finite = y[0].isfinite()
    t = ex.collected((*ex.sanitized(y, finite), -one), w)
    good = finite & (t[0] > 0)
    huge = good & (y[0] > working().huge)
    t = ex.sanitized(t, good & ~huge)
    # The product is about 2 t where t is so small that it has to be scaled for the root.
    lift = torch.where(t[0] < working().small, working().raised, 0)
    product = ex.mul(ex.scale_all(t, lift), ex.add(t, torch.full_like(one, 2.0)))
    side = ex.scale_all(ex.root(product), -(lift >> 1))
    near, k = log1p(ex.add(t, side), w)
    far = _log_twice(y, huge, w)
    out = ex.leave(ex.select(huge, far, near), fmt, terms, torch.where(huge, 0, k))
    exactly = finite & (ex.collected((*ex.sanitized(y, finite), -one), 1)[0] == 0)
    beyond = torch.where(exactly, 0.0, torch.where(x[0] == math.inf, x[0], math.nan))
    return ex.special(~good, beyond.to(fmt.dtype), out)


@function(
    "x",
    torch=("atanh", "arctanh"),
    bound=lambda e: log1p_error(e, e.collect() + e.div()),
    worst=1.87,
    derivative=lambda x, of: of.atanh_1(x),
    slope=lambda real: composed(
        inverse(composed(real("add"), real("add"), real("mul"))), real("reciprocal")
    ),
)
def atanh(x: Components, fmt: Format, terms: int) -> Components:
    """Return the inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond.

    log(1 + 2x/(1 - x)) / 2.
    """
    y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
    a, sign, good = _magnitude(y, 1.0)
    one = torch.ones_like(a[0])
    rest = ex.collected((one, *ex.minus(a)), w)
    inside, edge = good & (rest[0] > 0), rest[0] == 0
    tiny = a[0] < working().tiny
    safe = inside & ~tiny
    a, rest = ex.sanitized(a, safe, 0.5), ex.sanitized(rest, safe, 0.5)
    below, e = ex.mantissa(rest)
    quotient = ex.div(ex.head(a, w), below)
    # 2 a / below * 2**-e; next to it 1 vanishes for large -e.
    far = e < -working().apart
    z = ex.scale_all(quotient, torch.where(far, 1, 1 - e))
    unit = (~far).to(a[0].dtype)
    lead = ex.add((unit,), (z[0],))[0]
    result, k = logarithm.scaled_log((unit, *z), lead, w, 0, torch.where(far, -e, 0))
    result = ex.select(tiny, ex.head(ex.enter(x, fmt), w), ex.signed(result, sign))
    out = ex.leave(result, fmt, terms, torch.where(tiny, 0, k - 1))
    beyond = torch.where(good & edge, sign * math.inf, math.nan)
    out = ex.special(~inside, beyond.to(fmt.dtype), out)
    return ex.special((x[0] == 0) | x[0].isnan(), x[0], out)
