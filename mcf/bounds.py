"""`mcf.bound`: the error bound of an operation."""

from __future__ import annotations

import math

import torch

from mcf.complexes import complex_bounds as complexes
from mcf.elementary import declarations, polygamma
from mcf.elementary.declarations import PROGRAMS, SlopeBound, composed, product_of, quotient_by
from mcf.elementary.function_bounds import FUNCTIONS, SLOPES, SPECIAL, UNDERFLOW, derived
from mcf.elementary.operator import IN_FLOAT32
from mcf.expansions.components import check_terms
from mcf.fourier import transform_bounds as fourier
from mcf.fourier.functions import halved
from mcf.kernels import bounds
from mcf.kernels.bounds import Guarantee
from mcf.kernels.choices import meant
from mcf.kernels.formats import FP32, FP64, Format, format_of
from mcf.kernels.register_choice import get_registers
from mcf.reductions.sum_bounds import ROWS

# Largest error from underflow in the steps, in units of the smallest subnormal number.
SLOPE_UNDERFLOW = 4.0
# Observed bounds in units of u^n; `tests/mcf/test_derivative_sweep.py` checks all functions.
OBSERVED_UNITS = 64.0
SLOPE_REQUIRES = (
    "derivatives in the range of the format; arguments, and their distances from the ends of the "
    "domain, of at least u^-n smallest subnormal numbers, else that quotient stands for u^n "
    "(arguments of float16 may be smaller)"
)
DERIVATIVES: dict[str, SlopeBound] = {
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
DERIVATIVES |= {
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
SLOPE_NAMES = (*DERIVATIVES, *OBSERVED, *OSCILLATING, *POWERS)


def _slope_terms(function: str) -> str | None:
    """Return the function to whose terms the error of a derivative is relative, too, or None."""
    program = PROGRAMS.get(function)
    slope = program.slope if program is not None else None
    return slope[0] if isinstance(slope, tuple) and len(slope) == 1 else None


_COMPLEX = complexes.OPERATIONS | complexes.FUNCTIONS
_REAL = (*FUNCTIONS, *SPECIAL)
_OPERATIONS = (*bounds.OPERATIONS, *_REAL, *ROWS, *_COMPLEX, "fft", "rfft")


def bound(
    operation: str,
    terms: int = 2,
    dtype: torch.dtype = torch.float32,
    *,
    count: int | None = None,
    registers: str | None = None,
    derivative: bool = False,
) -> Guarantee:
    """Return the bound of the error of an operation on expansions.

    With t the exact result on the given components a result r satisfies

        |r - t| <= relative |t| + of_terms T + absolute

    T is the size of what is added up, without cancellation: sum |x| for "sum", sum |x y| for "dot",
    (|x| |y|) for "matmul", sum |x| / count for "mean", sum x**2 / (count - correction) for "var"
    (an integer correction), the root of that for "std", sum |c_k| |x|**k for "polyval", |x y| for
    "fma". For special functions with reflections or oscillations their docstrings define it: the
    magnitudes of the terms of a reflection, a modulus, or the effect of a relative change of x;
    below 0 it is for polygamma_m of even order m the sum of all m! / |x + k|^(m + 1), for zeta_s of
    odd s, which is zeta(s, x), that of 1 / |x + k|^s. Elsewhere T is 0. So of_terms times the
    condition number T / |t| is a relative error. For operations not named here, and for the
    2-norm, of_terms is 0.

    Args:
        operation: "add" (and "sub"), "mul", "div", "fma", "square", "sqrt", "reciprocal", "rsqrt",
            "renormalize"; "grow" and "scale", which are "add" and "mul" with a float as second
            argument; "two_sum", "fast_two_sum", "split", "two_prod", "neg", "abs", "ldexp", which
            are exact (`requires` has their preconditions); an elementary function such as "exp" or
            "atan2"; "complex_add", "complex_mul", "complex_div", "complex_abs" and functions such
            as "complex_exp", whose |r - t| and |t| are moduli; "fft" and "rfft" of `count` numbers,
            whose are 2-norms (of a whole spectrum); "sum", "dot", "norm", "mean", "var", "std",
            "matmul" or "polyval".
        terms: components of the result, 1 to 4; the arguments have as many or fewer.
        dtype: of the components.
        count: for the last group how many elements are added up: the inner dimension of a matrix
            product, the coefficients of a polynomial. With `reproducible=True` sums and dot
            products are rounded from the exact result, for which this bound holds too. For
            "renormalize", where it may be left out, the number of floats: no more than terms are
            exact.
        registers: "float64" or "float32", for which choice (`mcf.set_registers`); None for the one
            in force, "auto" being that of a device with float64. It matters to the last group and
            to elementary functions, of which not all have a form in float32 registers.
        derivative: whether t and r are the derivative by an operand, times a gradient that is
            exact. All functions of numbers have it: arithmetic, elementary functions and some,
            such as "silu" and "prod", that have a bound only here (`docs/numerics.md`). T is then
            that of the function which the derivative is; where the derivative is a difference of
            oscillating terms, the sum of their magnitudes.

    Raises:
        ValueError: for another operation, number of terms or choice of registers; for an elementary
            function in float32 registers; for a count that is missing, not
            wanted, below 1, or of more coefficients than the bound of "polyval" holds for.
        TypeError: for another dtype, or a count that is no int.
    """
    if derivative:
        return _of_derivative(operation, terms, dtype, count, registers)
    ordered = polygamma.created(operation) or operation in SLOPES
    if operation not in _OPERATIONS and not ordered:
        last = polygamma.LAST
        orders = f"polygamma_5 to polygamma_{last}, zeta_3 to zeta_{last + 1}"
        known = ", ".join((*_OPERATIONS, orders, *SLOPES))
        near = meant(operation, (*_OPERATIONS, *SLOPES))
        raise ValueError(f"no bound for operation {operation!r}{near}; known are {known}")
    check_terms(terms)
    register = _register(registers)
    if operation in ("fft", "rfft"):
        return _of_transform(operation, terms, dtype, count, registers)
    if operation in ROWS:
        return _reduction(operation, terms, dtype, count, register)
    if operation == "renormalize":
        return bounds.bound(operation, terms, dtype, count=count)
    if count is not None:
        raise ValueError(f"count is for {', '.join(ROWS)}; {operation!r} takes none, got {count!r}")
    if operation in _COMPLEX:
        return _of_complex(operation, terms, dtype)
    if operation not in _REAL and not ordered:
        return bounds.bound(operation, terms, dtype)
    fmt = format_of(dtype)
    if fmt is FP64:
        register = FP64
    if register is FP32 and operation not in IN_FLOAT32:
        raise ValueError(f"{operation!r} has no form in float32 registers, and so no bound there")
    coefficient, of_terms, proven = derived(operation, fmt, terms, register)
    lost = UNDERFLOW * float(FP32.min_subnormal) if register is FP32 else 0.0
    return Guarantee(
        relative=coefficient * float(fmt.u**terms),
        of_terms=of_terms * float(fmt.u**terms),
        absolute=(0.5 + 2.0**-6) * float(fmt.min_subnormal) + lost,
        proven=proven,
        formula=f"{coefficient:.4g} u^{terms}",
        algorithm=f"{str(register.dtype)[6:]} expansions, rounded once",
        source="the bounds of its steps" + ("" if proven else ", of which some are observed"),
    )


def _of_derivative(
    operation: str, terms: int, dtype: torch.dtype, count: int | None, registers: str | None
) -> Guarantee:
    """Return the bound of a derivative, composed from the steps that compute it where possible."""
    following = polygamma.following(operation)
    if operation not in SLOPE_NAMES and following is None:
        known = ", ".join(SLOPE_NAMES)
        near = meant(operation, SLOPE_NAMES)
        raise ValueError(f"no bound for the derivative of {operation!r}{near}; known are {known}")
    if count is not None:
        raise ValueError(f"count is for sums; the derivative of {operation!r} takes none")
    check_terms(terms)
    fmt = format_of(dtype)
    unit, eta = float(fmt.u**terms), float(fmt.min_subnormal)
    used: list[Guarantee] = []

    def real(name: str) -> float:
        used.append(bound(name, terms, dtype, registers=registers))
        return used[-1].relative

    absolute, of_terms = SLOPE_UNDERFLOW * eta, 0.0
    formula = DERIVATIVES.get(operation)
    if following is not None:
        formula = lambda real: composed(real(following), real("mul"))  # noqa: E731
    if formula is not None:
        relative = composed(formula(real), real("mul"))
        terms_of = following or _slope_terms(operation)
        if terms_of is not None:
            of_terms = bound(terms_of, terms, dtype, registers=registers).of_terms
        # float16 is computed with float32 components and rounded once.
        relative += unit * (dtype is torch.float16)
    else:
        relative = OBSERVED_UNITS * unit
        if operation in OSCILLATING:
            of_terms = relative
        logarithm = (fmt.emax + 1) * math.log(2)
        if operation in POWERS:
            relative += logarithm * unit
        if operation in (*POWERS, *TAILS):
            absolute += logarithm * eta
    proven = formula is not None and all(each.proven for each in used)
    return Guarantee(
        relative=relative,
        absolute=absolute,
        proven=proven,
        formula=f"{relative / unit:.4g} u^{terms}",
        algorithm="the formula of the derivative",
        source="the bounds of its steps" if formula is not None else "observed",
        of_terms=of_terms,
        requires=SLOPE_REQUIRES,
    )


def _of_complex(operation: str, terms: int, dtype: torch.dtype) -> Guarantee:
    """Return the bound of a complex operation. Narrow formats compute in float64 and round once."""
    fmt = format_of(dtype)
    wide = operation in complexes.FUNCTIONS and dtype is not torch.float64
    working = (max(2, terms), torch.float64) if wide else (terms, dtype)
    used: list[Guarantee] = []

    def real(name: str) -> float:
        used.append(bound(name, *working))
        return used[-1].relative

    eta = float(fmt.min_subnormal)
    relative = _COMPLEX[operation](real) + complexes.SCALED.get(operation, 0.0) * eta
    absolute = complexes.ABSOLUTE.get(operation, 64.0) * eta
    if wide:
        relative = composed(relative, 2.0 ** (1 - terms) * float(fmt.u**terms))
        absolute = eta
    return Guarantee(
        relative=relative,
        absolute=absolute,
        proven=all(guarantee.proven for guarantee in used),
        formula=f"{relative / float(fmt.u**terms):.4g} u^{terms}",
        algorithm="operations of the parts" + (", float64, rounded once" if wide else ""),
        source="the bounds of its steps",
        requires="no part of a product or quotient that overflows",
    )


def _register(name: str | None) -> Format:
    if name not in (None, "float64", "float32"):
        raise ValueError(f"registers must be 'float64', 'float32' or None, got {name!r}")
    return FP32 if (name or get_registers()) == "float32" else FP64


def _of_transform(
    operation: str, terms: int, dtype: torch.dtype, count: int | None, registers: str | None
) -> Guarantee:
    fmt = format_of(dtype)
    count = _checked_count(operation, count)
    used: list[Guarantee] = []

    def real(name: str, terms: int, dtype: torch.dtype, count: int | None) -> Guarantee:
        used.append(bound(name, terms, dtype, count=count, registers=registers))
        return used[-1]

    unit = float(fmt.u**terms)
    halves = operation == "rfft" and halved(count)
    relative = (fourier.halved if halves else fourier.transform)(count, terms, dtype, unit, real)
    return Guarantee(
        relative=relative,
        absolute=0.0,
        proven=all(guarantee.proven for guarantee in used),
        formula=f"{relative / unit:.4g} u^{terms}",
        algorithm="mixed radices, products with correctly rounded roots of unity",
        source="Higham 2002, theorem 24.2, with the bounds of its steps",
        requires="no underflow",
    )


def _checked_count(operation: str, count: int | None) -> int:
    if count is None:
        raise ValueError(f"the bound of {operation!r} needs count=, the number of elements")
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count must be an int, got {type(count).__name__}")
    if count < 1:
        raise ValueError(f"count must be 1 or more, got {count}")
    return count


def _reduction(
    operation: str, terms: int, dtype: torch.dtype, count: int | None, register: Format
) -> Guarantee:
    fmt = format_of(dtype)
    count = _checked_count(operation, count)
    row = ROWS[operation]
    found, proven = row.bound(fmt, terms, count, register), row.proven(fmt, terms, register)
    return Guarantee(
        relative=float(found.relative),
        absolute=float(row.underflow(fmt, terms, count, register)),
        proven=proven,
        formula=row.formula,
        algorithm=row.algorithm,
        source=row.source if proven else "observed",
        of_terms=float(found.absolute),
        requires=row.requires(fmt, terms, register),
    )
