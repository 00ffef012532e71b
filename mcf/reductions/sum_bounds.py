"""Error bounds of sums, dot products, norms, moments, matrix products and polynomials.

With t the exact result on the given components, a result r of `count` elements satisfies

    |r - t| <= relative * |t| + of_terms * T + absolute

T is the size of the summed terms (`Row.size`). No operation may overflow. Narrower formats than
float64 are multiplied in registers (`mcf.set_registers`). In float64 registers the error of no
product underflows; results below the format's normal range are rounded to a multiple of the
smallest subnormal number. In registers as wide as components each product that underflows adds an
error of half that number (`Row.lost`). For `polyval` there, and with more than one component, the
bound requires that no product's error underflows. `docs/numerics.md` shows the same table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.fold import LANES, state_for
from mcf.kernels.fold_bounds import FoldBound, fold_bound, register_bound, rounded
from mcf.kernels.formats import FP32, FP64, Format


def scaled_products(state: int, count: int) -> Fraction:
    """Return the underflow error of products in float32, relative to a sum of squares.

    The largest number is at least 1/2 and its square 1/4. Scaling loses half of eta from each
    component of a number, and 2 s eta from its square.
    """
    return 4 * (count * (state**2 + 2 * state)) * FP32.min_subnormal


def scaled_underflow(state: int, count: int) -> Fraction:
    """Return the underflow error of a standard deviation with scaled rows, relative to T.

    With the largest element at least 1/2, T >= 1 / (2 sqrt(count - correction)). Products give the
    sum of squares an error of at most count state**2 eta / 2, and the quotient gives its value v
    state eta. As
    |sqrt(v + d) - sqrt(v)| <= sqrt(|d|), the total is below 4 sqrt(count) state 2**-537 of T. The
    root's own part, 20 eta (1 + 1/t) with t >= 2**-537, is below 40 sqrt(count) 2**-537 of T.
    Elements scaled below the range, and the mean, have errors of multiples of eta.
    """
    return count * state * Fraction(1, 2**530)


# Underflow errors if components have the registers' format, by numbers of registers and elements.


def nothing(state: int, count: int, register: Format) -> Fraction:
    """Return 0: sums are exact below the normal range."""
    return Fraction(0)


def last_places(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a quotient or a scaling: half a unit per component, and as much again."""
    return state * register.min_subnormal


def products(state: int, count: int, register: Format) -> Fraction:
    """Return the error of at most state**2 products or their errors per term, half a unit each.

    The other half covers what follows: relative errors of these, and a variance's quotient.
    """
    return count * state**2 * register.min_subnormal


def variances(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a variance; deviations are scaled in float32 registers only."""
    if register == FP64:
        return products(state, count, register)
    return 4 * state * register.min_subnormal


def deviations(state: int, count: int, register: Format) -> Fraction:
    """Return the error of a standard deviation; deviations are scaled in float32 registers.

    There the mean's quotient counts: it has an error of state eta, and a deviation as much as the
    mean.
    """
    if register == FP64:
        return last_places(state, count, register)
    return 4 * state * register.min_subnormal


def _wide(operation: str, state: int, register: Format, float_second: bool = False) -> Fraction:
    """Return the bound of an operation on expansions of `state` components in registers."""
    assert register.dtype is not None
    return expansion_bound(operation, state, float_second=float_second).relative(register.dtype)


def _quotient(fmt: Format, terms: int, register: Format) -> Fraction:
    """Return the bound of a division by a number, which may have three float32 components."""
    state = state_for(fmt, terms, register)
    own = _wide("div", state, register, float_second=True)
    if register == FP64:
        return own
    # The last component of three is dropped if two are wanted.
    dropped = 2 * register.u**state if state < 3 else Fraction(0)
    longest = _wide("div", max(3, state), register) + dropped
    return max(own, _wide("div", state, register), longest)


def _matmul(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    return fold_bound(fmt, terms, count, 1, register)


def _sum(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    return fold_bound(fmt, terms, count, LANES, register)


def _mean_registers(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    total = register_bound(fmt, terms, count, LANES, register)
    quotient = _quotient(fmt, terms, register)
    return FoldBound(quotient, total.absolute * (1 + quotient))


def _mean(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    return rounded(_mean_registers(fmt, terms, count, register), fmt, terms, register)


def _rooted(x: Fraction) -> Fraction:
    """Return a bound of |sqrt(1 + d) - 1| for all |d| <= x <= 1."""
    return x / 2 + x * x / 2


def _norm(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    # All terms are positive: T is the sum itself.
    squares = register_bound(fmt, terms, count, LANES, register)
    state = state_for(fmt, terms, register)
    root = _wide("sqrt", state, register)
    size = squares.absolute
    if register == FP32:
        size += scaled_products(state, count)
    relative = (1 + _rooted(size)) * (1 + root) - 1
    return rounded(FoldBound(relative, Fraction(0)), fmt, terms, register)


def _var_registers(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    """Return the bound of V = sum (x - m)**2 / (count - correction), in registers.

    T = sum x**2 / (count - correction). The computed mean has an error d <= e sum |x| / count. This
    adds count d**2 <= e**2 sum x**2 to the sum of squares, and nothing of first order: sum (x - m)
    = 0. With an error of w |x| in the conversion from narrower formats, (x - m + w x)**2 <= (1 + k)
    (x - m)**2 + (1 + 1/k) (w x)**2.
    """
    w = _conversion(fmt, terms, register)
    e, factor = _mean_error(fmt, terms, count, register), _gap_factor(fmt, terms, count, register)
    k = fmt.u**terms / 64 if w else Fraction(0)
    rest = w * w * (1 + 1 / k) if w else Fraction(0)
    factor *= 1 + _quotient(fmt, terms, register)
    return FoldBound((1 + k) * factor - 1, (e * e * (1 + k) + rest) * factor)


def _conversion(fmt: Format, terms: int, register: Format) -> Fraction:
    """Return the error of conversion into registers, which gaps between narrow components cause."""
    return Fraction(0) if fmt == register else register.u ** state_for(fmt, terms, register)


def _mean_error(fmt: Format, terms: int, count: int, register: Format) -> Fraction:
    mean = _mean_registers(fmt, terms, count, register)
    return mean.relative + mean.absolute


def _gap_factor(fmt: Format, terms: int, count: int, register: Format) -> Fraction:
    """Return one plus the relative error of the sum of squared deviations."""
    state = state_for(fmt, terms, register)
    squares = register_bound(register, state, count, LANES, register).absolute
    if register == FP32:
        squares += scaled_products(state, count)
    return (1 + _wide("add", state, register)) ** 2 * (1 + squares)


def _var(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    return rounded(_var_registers(fmt, terms, count, register), fmt, terms, register)


def _std(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    """Return the bound of the deviation, T the root of the variance's; errors add as norms do."""
    state = state_for(fmt, terms, register)
    factor = _gap_factor(fmt, terms, count, register) * (1 + _quotient(fmt, terms, register))
    factor *= 1 + _wide("sqrt", state, register)
    own = _mean_error(fmt, terms, count, register) + _conversion(fmt, terms, register)
    if fmt == FP64:
        own += scaled_underflow(state, count)
    return rounded(FoldBound(factor - 1, own * factor), fmt, terms, register)


def _polyval(fmt: Format, terms: int, count: int, register: Format) -> FoldBound:
    degree = count - 1
    if terms == 1:
        steps = 2 * degree * register.u
        if steps >= 1:
            raise ValueError(
                f"polyval: count must be below 1 + 1/(2v) = {1 + int(1 / (2 * register.u))}, "
                f"v = 2**-{register.p}, got {count}"
            )
        absolute = (steps / (1 - steps)) ** 2
        return rounded(FoldBound(Fraction(0), absolute), fmt, 1, register)
    assert fmt.dtype is not None
    step = 1 + expansion_bound("mul", terms).relative(fmt.dtype)
    step *= 1 + expansion_bound("add", terms).relative(fmt.dtype)
    return FoldBound(Fraction(0), step**degree - 1)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        operation: the name of the operation.
        size: the definition of T.
        formula: the bound to first order, in the notation of `docs/numerics.md`.
        algorithm: the name of the algorithm.
        of: (format, components, elements, format of registers) -> bound.
        lost: the error from underflow if components are as wide as registers.
        source: the publication with the proof, for results whose steps are proved.
        wide: the largest number of components that is computed in registers.
    """

    operation: str
    size: str
    formula: str
    algorithm: str
    of: Callable[[Format, int, int, Format], FoldBound]
    lost: Callable[[int, int, Format], Fraction]
    source: str = "Ogita, Rump, Oishi 2005, doi:10.1137/030601818, counted in docs/numerics.md"
    wide: int = 4

    def bound(self, fmt: Format, terms: int, count: int, register: Format = FP64) -> FoldBound:
        """Return the bound; float64 components always have float64 registers."""
        return self.of(fmt, terms, count, FP64 if fmt == FP64 else register)

    def proven(self, fmt: Format, terms: int, register: Format = FP64) -> bool:
        """Return whether every step has a proof: those on two registers, and Horner's rule."""
        register = FP64 if fmt == FP64 else register
        if terms <= self.wide:
            return state_for(fmt, terms, register) <= 2
        return all(expansion_bound(name, terms).proven for name in ("mul", "add"))

    def requires(self, fmt: Format, terms: int, register: Format = FP64) -> str:
        """Return the preconditions that `underflow` does not cover, in words."""
        register = FP64 if fmt == FP64 else register
        within = 2 * (fmt.emax + fmt.p) <= register.emax
        if terms <= self.wide and (within or self.lost is not nothing):
            return ""
        if self.operation == "sum":
            return ""
        return "no product is below the range of its error: each is 0 or at least 2**(emin + p - 1)"

    def underflow(self, fmt: Format, terms: int, count: int, register: Format = FP64) -> Fraction:
        """Return the absolute part of the bound, due to underflow."""
        register = FP64 if fmt == FP64 else register
        if terms > self.wide:
            return Fraction(0)
        state = state_for(fmt, terms, register)
        if fmt == register:
            return self.lost(state, count, register)
        if 2 * (fmt.emax + fmt.p) <= register.emax:
            return fmt.min_subnormal
        # bf16 in float32 registers: its products have the range of float32's.
        return fmt.min_subnormal + self.lost(max(state, terms), count, register)


ROWS = {
    row.operation: row
    for row in (
        Row("sum", "sum |x|", "r |t| + F T", "Sum2, SumK", _sum, nothing),
        Row("dot", "sum |x y|", "r |t| + F T", "Dot2, DotK", _sum, products),
        Row("matmul", "|x| |y|", "r |t| + F T", "Dot2, DotK", _matmul, products),
        Row("mean", "sum |x| / N", "(r + d) |t| + F T", "sum, then div", _mean, last_places),
        Row("norm", "", "(r + F/2 + q) |t|", "dot, then sqrt", _norm, last_places),
        Row(
            "var",
            "sum x^2 / (N - c)",
            "(r + F + 2a + d) |t| + (F + d)^2 T",
            "two passes: mean, then squares",
            _var,
            variances,
        ),
        Row(
            "std",
            "sqrt(sum x^2 / (N - c))",
            "(r + F + 2a + d + q) |t| + (F + d) T",
            "var, then sqrt",
            _std,
            deviations,
        ),
        Row(
            "polyval",
            "sum |c_k| |x|^k",
            "n = 1: u |t| + (2 (N - 1) v)^2 T; n > 1: (N - 1) (m + a) T",
            "compensated Horner; Horner on expansions",
            _polyval,
            nothing,
            source="Graillat, Langlois, Louvet 2009, doi:10.1007/BF03186531",
            wide=1,
        ),
    )
}


def markdown() -> str:
    """Return the table in Markdown, as shown in `docs/numerics.md`."""
    lines = ["| operation | T | error at most, to first order | algorithm |", "|---|---|---|---|"]
    for row in ROWS.values():
        size, formula = (s.replace("|", "\\|") for s in (row.size, row.formula))
        lines.append(f"| `{row.operation}` | {size} | {formula} | {row.algorithm} |")
    return "\n".join(lines)
