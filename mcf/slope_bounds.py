"""Error bounds of derivatives, composed from those of the steps that compute them.

A derivative times a gradient is computed by the formulas of `mcf.expansions.ops`. These formulas
are repeated here on errors, relative to the exact derivative. A formula with a series, or with a
difference that cancels, has an observed bound, which the tests check.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mcf.complexes.complex_bounds import Real, composed, inverse
from mcf.elementary import polygamma
from mcf.kernels.bounds import Guarantee

# A function from the errors of steps to that of a derivative; the product with the gradient adds
# its own.
Formula = Callable[[Real], float]

# Largest error from underflow in the steps, in units of the smallest subnormal number.
UNDERFLOW = 4.0
# Observed bounds in units of u^n; `tests/mcf/test_derivative_sweep.py` checks all functions.
OBSERVED_UNITS = 64.0
REQUIRES = (
    "derivatives in the range of the format; arguments, and their distances from the ends of the "
    "domain, of at least u^-n smallest subnormal numbers, else that quotient stands for u^n "
    "(arguments of float16 may be smaller)"
)


def _of(*names: str) -> Formula:
    """Return the errors of a product of functions."""
    return lambda real: composed(*map(real, names))


def _quotient(*divisors: str) -> Formula:
    """Return the errors of a quotient by several results in turn."""
    return lambda real: composed(*(v for d in divisors for v in (real("div"), inverse(real(d)))))


def _root(error: float) -> float:
    return -math.expm1(0.5 * math.log1p(-error))


def _inside(real: Real) -> float:
    """Return the error of (1 - x) (1 + x)."""
    return composed(real("add"), real("add"), real("mul"))


def _asin(real: Real) -> float:
    return composed(inverse(composed(_root(_inside(real)), real("sqrt"))), real("reciprocal"))


def _atanh(real: Real) -> float:
    return composed(inverse(_inside(real)), real("reciprocal"))


def _acosh(real: Real) -> float:
    side = composed(_root(real("add")), real("sqrt"))
    return composed(inverse(composed(side, side, real("mul"))), real("reciprocal"))


def _one_plus_square(error: float, real: Real) -> float:
    """Return the error of 1 + y^2 for a relative error of y."""
    return composed(error, error, real("mul"), real("add"))


def _scaled_log(real: Real) -> float:
    """Return the error of 1 / (x c) for a constant c, which `mul` of exact numbers covers."""
    constant = real("mul")
    return composed(inverse(composed(constant, real("mul"))), real("reciprocal"))


def _k1(real: Real) -> float:
    """Return the error of -(K_0 + K_1 / x), terms of one sign."""
    return composed(max(real("k0"), composed(real("k1"), real("div"))), real("add"))


def _k1e(real: Real) -> float:
    """Return the error of a difference of numbers of different signs."""
    return composed(max(real("k0e_1"), real("k0e_2")), real("add"))


DERIVED: dict[str, Formula] = {
    # Copies of the gradient, and products of the gradient with operands.
    "add": lambda real: 0.0,
    "sub": lambda real: 0.0,
    "neg": lambda real: 0.0,
    "mul": lambda real: 0.0,
    "square": lambda real: 0.0,
    "fma": lambda real: 0.0,
    "div": _of("div", "div"),
    "reciprocal": _of("reciprocal", "reciprocal", "mul"),
    "sqrt": _quotient("sqrt"),
    "rsqrt": lambda real: composed(*(real("rsqrt"),) * 3, real("pow"), real("mul")),
    "exp": _of("exp"),
    "expm1": _of("exp"),
    "log": _of("div"),
    "log1p": _quotient("add"),
    "log2": _scaled_log,
    "log10": _scaled_log,
    "sin": _of("cos"),
    "cos": _of("sin"),
    "tan": lambda real: _one_plus_square(real("tan"), real),
    "asin": _asin,
    "acos": _asin,
    "atan": lambda real: composed(inverse(_one_plus_square(0.0, real)), real("div")),
    "atan2": lambda real: composed(inverse(composed(real("mul"), real("add"))), real("div")),
    "hypot": _quotient("hypot"),
    "sinh": _of("cosh"),
    "cosh": _of("sinh"),
    "tanh": lambda real: composed(*2 * (inverse(real("cosh")),), real("pow")),
    "asinh": lambda real: composed(inverse(real("hypot")), real("reciprocal")),
    "acosh": _acosh,
    "atanh": _atanh,
    "sigmoid": _of("sigmoid", "sigmoid", "mul"),
    "erf": _of("erf_1"),
    "erfc": _of("erf_1"),
    "erfcx": _of("erfcx_1"),
    "normal_cdf": _of("normal_pdf"),
    "normal_pdf": _of("normal_pdf", "mul"),
    "gelu": _of("gelu_1"),
    "lgamma": _of("digamma"),
    "digamma": _of("trigamma"),
    "trigamma": _of("polygamma_2"),
    "i0": _of("i1"),
    "i0e": _of("i0e_1"),
    "i1e": _of("i1e_1"),
    "k0": _of("k1"),
    "k0e": _of("k0e_1"),
    "k1": _k1,
    "k1e": _k1e,
    "j0": _of("j1"),
    "y0": _of("y1"),
    "airy_ai": _of("airy_ai_1"),
}
# The error of a derivative is also relative to the terms of this function.
TERMS = {
    "lgamma": "digamma", "digamma": "trigamma", "trigamma": "polygamma_2", "j0": "j1", "y0": "y1",
    "airy_ai": "airy_ai_1",
}  # fmt: skip
# Formulas that contain series, differences or constants.
OBSERVED = (
    "cumprod", "elu", "entr", "erfinv", "exp2", "gelu_tanh", "glu", "i1", "log_ndtr", "logaddexp",
    "logaddexp2", "logit", "logsigmoid", "mish", "ndtri", "prod", "selu", "silu", "softsign",
    "tanhshrink", "xlog1py", "xlogy",
)  # fmt: skip
# Differences whose zeros are in no table: the bound is relative to the sum of both magnitudes.
OSCILLATING = ("j1", "sinc", "spherical_bessel_j0", "y1")
# The argument of an exponential is rounded (y - 1 or beta x). The result has that error times its
# logarithm, which is at most the logarithm of the largest number.
POWERS = ("celu", "pow", "softplus")
# Products of an exponential and x, which is at most that logarithm: underflow costs as much more.
TAILS = ("mish", "silu")
NAMES = (*DERIVED, *OBSERVED, *OSCILLATING, *POWERS)


def following(function: str) -> str | None:
    """Return the polygamma or zeta function of the derivative of one of these, or None."""
    kind, _, digits = function.rpartition("_")
    if kind not in ("polygamma", "zeta") or not digits.isdecimal():
        return None
    order = int(digits) + 1
    last = polygamma.LAST + (kind == "zeta")
    return f"{kind}_{order}" if order <= last else None


def markdown(bound: Callable[..., Guarantee]) -> str:
    """Return the table as `docs/numerics.md` shows it; `bound` is `mcf.bound`."""
    columns = ((1, torch.float64), (2, torch.float64), (3, torch.float64), (4, torch.float64))
    named: dict[str, list[str]] = {}
    for name in DERIVED:
        found = [
            bound(name, n, dtype, derivative=True).relative * 2.0 ** (53 * n)
            for n, dtype in columns
        ]
        named.setdefault(" | ".join(f"{v:.4g}" for v in found), []).append(f"`{name}`")
    lines = ["| derivative of | n = 1 | 2 | 3 | 4 |", "|---" * 5 + "|"]
    lines += [f"| {', '.join(names)} | {cells} |" for cells, names in named.items()]
    return "\n".join(lines)
