"""Error bounds of the elementary functions: `docs/numerics.md` has the same table.

A bound is composed of those of the steps (`mcf.elementary.error_bounds`); the last step is the
rounding to components. The table also lists the worst error found by search, which is not a bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mcf.elementary import error_bounds as errors
from mcf.elementary import error_function_bounds as error_functions
from mcf.elementary.error_steps import SLACK, Steps
from mcf.elementary.few_products import serves
from mcf.elementary.format import computing_in
from mcf.elementary.working import working_terms
from mcf.kernels.formats import FP32, FP64, Format

DERIVED: dict[str, Callable[[Steps], float]] = {
    "exp": errors.exp, "expm1": errors.expm1, "log": errors.log, "log1p": errors.log,
    "log2": lambda e: errors.log(e, 2), "log10": lambda e: errors.log(e, 10),
    "sin": lambda e: max(errors.sin_cos(e)), "cos": lambda e: max(errors.sin_cos(e)),
    "tan": errors.tan, "asin": lambda e: errors.atan2(e, errors.cofactor(e)),
    "acos": lambda e: errors.atan2(e, errors.cofactor(e)), "atan": errors.atan2,
    "atan2": errors.atan2, "sinh": errors.sinh, "cosh": errors.cosh, "tanh": errors.tanh,
    "asinh": errors.asinh, "acosh": errors.acosh, "atanh": errors.atanh,
    "sigmoid": errors.sigmoid, "erf": error_functions.erf, "erfc": error_functions.erfc,
    "normal_cdf": error_functions.normal_cdf, "normal_pdf": error_functions.normal_pdf,
    "gelu": error_functions.gelu, "gelu_tanh": error_functions.gelu_tanh,
    "pow": errors.pow, "hypot": errors.hypot,
}  # fmt: skip
FUNCTIONS = tuple(DERIVED)

# The worst errors found by hill climbing (`python -m tests.helpers.search`), in units of u^4, for
# four components of float64.
WORST_OF_FOUR: dict[str, float] = {
    "exp": 0.5,
    "expm1": 0.98,
    "log": 2.81,
    "log1p": 1.56,
    "log2": 3.03,
    "log10": 1.75,
    "sin": 1.03,
    "cos": 0.88,
    "tan": 1.19,
    "asin": 1.07,
    "acos": 1.36,
    "atan": 0.88,
    "atan2": 4.12,
    "sinh": 1.11,
    "cosh": 0.46,
    "tanh": 1.31,
    "asinh": 1.71,
    "acosh": 2.75,
    "atanh": 1.87,
    "sigmoid": 1.72,
    "erf": 2.87,
    "erfc": 2.21,
    "normal_cdf": 2.13,
    "normal_pdf": 1.21,
    "gelu": 2.41,
    "gelu_tanh": 5.36,
    "pow": 0.5,
    "hypot": 4.63,
}


@functools.cache
def working(function: str, terms: int, fmt: Format = FP64) -> tuple[float, bool]:
    """Return the error of the computation in `terms` components, and whether it is proved."""
    steps = Steps(terms, fmt)
    return {**DERIVED, "few_products": errors.few_products}[function](steps) * slack(
        fmt
    ), steps.proven


def slack(fmt: Format) -> float:
    """Return the factor for second-order errors: about u of the computation's format."""
    return SLACK if fmt is FP64 else 1 + 2.0**-16


@functools.cache
def derived(function: str, fmt: Format, terms: int, register: Format = FP64) -> tuple[float, bool]:
    """Return the bound in units of u**terms relative to the exact result, and whether it is proved.

    It is the error of the computation plus that of the rounding to components. For float64, and for
    float32 in float32 registers, `renormalize` rounds; other formats round each component to
    nearest, 2**(1 - terms) u**terms in all. The bound is proved if those of all steps are. If the
    smallest subnormal number is not negligible, half of it is added, with a margin of 2**-6, and in
    float32 registers `UNDERFLOW`.

    Raises:
        KeyError: for a function without a bound.
    """
    width = FP64 if fmt is FP64 else register
    with computing_in(width):
        w = working_terms(fmt, terms)
        found, proven = working(function, w, width)
        if function == "pow" and width is FP64 and serves(terms):
            found = max(found, working("few_products", w, width)[0])
    unit = float(fmt.u**terms)
    if fmt is not width:
        return 2.0 ** (1 - terms) * slack(width) + found / unit, proven
    last = Steps(terms, width)
    return (last.collect() + found) / unit * slack(width), last.proven and proven


def bound(function: str, fmt: Format, terms: int, register: Format = FP64) -> float:
    """Return the bound of `derived`."""
    return derived(function, fmt, terms, register)[0]


# Underflow error in float32 components, in units of the smallest subnormal number: a product of
# four components loses 12, a quotient by a number of at least 1 loses 40, and no function has more
# than about six that matter.
UNDERFLOW = 128


def markdown() -> str:
    """Return the table in Markdown, as shown in `docs/numerics.md`."""
    lines = ["| function | fp64 x 3, u^3 | fp64 x 4, u^4 | worst found, u^4 | fp32 x 4, u^4 |"]
    lines.append("|---" * 5 + "|")
    for name, worst in WORST_OF_FOUR.items():
        three, four = (bound(name, FP64, n) for n in (3, 4))
        cells = (f"{three:.6f}", f"{four:.1f}", f"{worst:.2f}", f"{bound(name, FP32, 4):.3f}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
