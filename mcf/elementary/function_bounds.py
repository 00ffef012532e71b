"""Error bounds of the declared functions: `docs/numerics.md` has the same table.

A bound is composed of those of the steps (`mcf.elementary.error_steps`); the last step is the
rounding to components. The table also lists the worst error found by search, which is not a bound.
"""

from __future__ import annotations

import functools

from mcf.elementary.declarations import PROGRAMS
from mcf.elementary.error_steps import SLACK, Steps
from mcf.elementary.format import computing_in
from mcf.elementary.working import working_terms
from mcf.kernels.formats import FP32, FP64, Format

_BOUNDED = sorted(name for name, program in PROGRAMS.items() if program.bound is not None)
# Elementary functions, those with a search for their worst error; special functions; and their
# derivatives that autograd needs.
FUNCTIONS = tuple(name for name in _BOUNDED if PROGRAMS[name].worst is not None)
SPECIAL = tuple(name for name in _BOUNDED if name not in FUNCTIONS and not PROGRAMS[name].auxiliary)
SLOPES = tuple(name for name in _BOUNDED if PROGRAMS[name].auxiliary)

# Underflow error in float32 components, in units of the smallest subnormal number: a product of
# four components loses 12, a quotient by a number of at least 1 loses 40, and no function has more
# than about six that matter.
UNDERFLOW = 128


@functools.cache
def derived(
    function: str, fmt: Format, terms: int, register: Format = FP64
) -> tuple[float, float, bool]:
    """Return the bounds in units of u**terms, of the result and the terms; whether they are proved.

    It is the error of the computation plus that of the rounding to components. For float64, and for
    float32 in float32 registers, `renormalize` rounds; other formats round each component to
    nearest, 2**(1 - terms) u**terms in all. The bound is proved if those of all steps are. If the
    smallest subnormal number is not negligible, half of it is added, with a margin of 2**-6, and in
    float32 registers `UNDERFLOW`.

    Raises:
        KeyError: for a function without a bound.
    """
    width, program = FP64 if fmt is FP64 else register, PROGRAMS[function]
    if program.bound is None:
        raise KeyError(function)
    with computing_in(width):
        steps = Steps(working_terms(fmt, terms), width, terms)
        found = program.bound(steps)
    # The factor covers second-order errors: about u of the computation's format.
    proven, unit, factor = (
        steps.proven and program.proven,
        float(fmt.u**terms),
        SLACK if width is FP64 else 1 + 2.0**-16,
    )
    last = Steps(terms, width)
    rounding = last.collect() if fmt is width else 2.0 ** (1 - terms)
    proven = proven and last.proven
    if isinstance(found, float):
        # Without terms that cancel. The factor covers the computation before it is rounded, too.
        if fmt is width:
            return (rounding + found * factor) / unit * factor, 0.0, proven
        return rounding * factor + found * factor / unit, 0.0, proven
    error, parts = found
    total = (error + rounding) / unit if fmt is width else rounding + error / unit
    return total * factor, parts / unit * factor, proven


def bound(function: str, fmt: Format, terms: int, register: Format = FP64) -> float:
    """Return the bound of `derived` relative to the result."""
    return derived(function, fmt, terms, register)[0]


def markdown() -> str:
    """Return the table in Markdown, as shown in `docs/numerics.md`."""
    lines = ["| function | fp64 x 3, u^3 | fp64 x 4, u^4 | worst found, u^4 | fp32 x 4, u^4 |"]
    lines.append("|---" * 5 + "|")
    for name in FUNCTIONS:
        three, four = (bound(name, FP64, n) for n in (3, 4))
        worst = PROGRAMS[name].worst
        cells = (f"{three:.6f}", f"{four:.1f}", f"{worst:.2f}", f"{bound(name, FP32, 4):.3f}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
