"""Error bounds of derivatives, composed from those of the steps that compute them.

A derivative times a gradient is computed by the formulas of `mcf.expansions.ops`. These formulas
are repeated here on errors, relative to the exact derivative. A formula with a series, or with a
difference that cancels, has an observed bound, which the tests check.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mcf.elementary import declarations
from mcf.elementary.declarations import PROGRAMS, SlopeBound, composed, product_of, quotient_by
from mcf.kernels.bounds import Guarantee

# Largest error from underflow in the steps, in units of the smallest subnormal number.
UNDERFLOW = 4.0
# Observed bounds in units of u^n; `tests/mcf/test_derivative_sweep.py` checks all functions.
OBSERVED_UNITS = 64.0
REQUIRES = (
    "derivatives in the range of the format; arguments, and their distances from the ends of the "
    "domain, of at least u^-n smallest subnormal numbers, else that quotient stands for u^n "
    "(arguments of float16 may be smaller)"
)


DERIVED: dict[str, SlopeBound] = {
    # Copies of the gradient, and products of the gradient with operands.
    "add": lambda real: 0.0,
    "sub": lambda real: 0.0,
    "neg": lambda real: 0.0,
    "mul": lambda real: 0.0,
    "square": lambda real: 0.0,
    "fma": lambda real: 0.0,
    "div": product_of("div", "div"),
    "reciprocal": product_of("reciprocal", "reciprocal", "mul"),
    "sqrt": quotient_by("sqrt"),
    "rsqrt": lambda real: composed(*(real("rsqrt"),) * 3, real("pow"), real("mul")),
}
DERIVED |= {
    name: product_of(*program.slope) if isinstance(program.slope, tuple) else program.slope
    for name, program in sorted(PROGRAMS.items())
    if isinstance(program.slope, tuple) or callable(program.slope)
}


def _declared(kind: str) -> tuple[str, ...]:
    return tuple(name for name, program in PROGRAMS.items() if program.slope == kind)


# Formulas that contain series, differences or constants.
OBSERVED = (
    *_declared(declarations.OBSERVED), "cumprod", "elu", "entr", "exp2", "glu", "logaddexp",
    "logaddexp2", "logit", "logsigmoid", "mish", "prod", "selu", "silu", "softsign", "tanhshrink",
    "xlog1py", "xlogy",
)  # fmt: skip
# Differences whose zeros are in no table: the bound is relative to the sum of both magnitudes.
OSCILLATING = (*_declared(declarations.OSCILLATING), "sinc")
# The argument of an exponential is rounded (y - 1 or beta x). The result has that error times its
# logarithm, which is at most the logarithm of the largest number.
POWERS = (*_declared(declarations.POWER), "celu", "softplus")
# Products of an exponential and x, which is at most that logarithm: underflow costs as much more.
TAILS = ("mish", "silu")
NAMES = (*DERIVED, *OBSERVED, *OSCILLATING, *POWERS)


def terms_of(function: str) -> str | None:
    """Return the function to whose terms the error of a derivative is relative, too, or None."""
    program = PROGRAMS.get(function)
    slope = program.slope if program is not None else None
    return slope[0] if isinstance(slope, tuple) and len(slope) == 1 else None


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
