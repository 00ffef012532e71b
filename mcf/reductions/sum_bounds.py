"""What sums, dot products, norms, moments, matrix products and polynomials guarantee.

With t the exact result on the given components, a result r of `count` elements satisfies

    |r - t| <= relative * |t| + of_terms * T + absolute

T is the size of what is added up (`Row.size`). Nothing may overflow. Narrower formats than float64
multiply in float64, where no product is below the range of its error, and round what is below their
own range to a multiple of the smallest subnormal number; in float64 each such product costs half of
that number (`Row.lost`). `polyval` has no absolute part in float64 and with more than one
component: there no product may be below the range of its error. `docs/numerics.md` shows the same
table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

from mcf.kernels.expansion_bounds import expansion_bound
from mcf.kernels.fold import LANES, state_for
from mcf.kernels.fold_bounds import FoldBound, fold_bound, register_bound, rounded
from mcf.kernels.formats import FP64, Format

_ORO = "Ogita, Rump, Oishi 2005, doi:10.1137/030601818, counted in docs/numerics.md"
_GLL = "Graillat, Langlois, Louvet 2009, doi:10.1007/BF03186531"


def _wide(operation: str, state: int, float_second: bool = False) -> Fraction:
    """The bound of an operation on float64 expansions of `state` components."""
    assert FP64.dtype is not None
    return expansion_bound(operation, state, float_second=float_second).relative(FP64.dtype)


def _matmul(fmt: Format, terms: int, count: int) -> FoldBound:
    return fold_bound(fmt, terms, count, lanes=1)


def _mean_registers(fmt: Format, terms: int, count: int) -> FoldBound:
    total = register_bound(fmt, terms, count, LANES)
    quotient = _wide("div", state_for(fmt, terms), float_second=True)
    return FoldBound(quotient, total.absolute * (1 + quotient))


def _mean(fmt: Format, terms: int, count: int) -> FoldBound:
    return rounded(_mean_registers(fmt, terms, count), fmt, terms)


def _rooted(x: Fraction) -> Fraction:
    """At least |sqrt(1 + d) - 1| for all |d| <= x <= 1."""
    return x / 2 + x * x / 2


def _norm(fmt: Format, terms: int, count: int) -> FoldBound:
    # All terms are positive: T is the sum itself.
    squares = register_bound(fmt, terms, count, LANES)
    root = _wide("sqrt", state_for(fmt, terms))
    relative = (1 + _rooted(squares.absolute)) * (1 + root) - 1
    return rounded(FoldBound(relative, Fraction(0)), fmt, terms)


def _var_registers(fmt: Format, terms: int, count: int) -> FoldBound:
    """Of V = sum (x - m)**2 / (count - correction), with T = sum x**2 / (count - correction).

    The computed mean is off by d <= e sum |x| / count, which adds count d**2 <= e**2 sum x**2 to
    the sum of squares, and nothing of first order: sum (x - m) = 0. With an error of w |x| in the
    conversion from narrower formats (x - m + w x)**2 <= (1 + k) (x - m)**2 + (1 + 1/k) (w x)**2.
    """
    state, w = state_for(fmt, terms), _conversion(fmt, terms)
    e, factor = _mean_error(fmt, terms, count), _gap_factor(fmt, terms, count)
    k = fmt.u**terms / 64 if w else Fraction(0)
    rest = w * w * (1 + 1 / k) if w else Fraction(0)
    factor *= 1 + _wide("div", state, float_second=True)
    return FoldBound((1 + k) * factor - 1, (e * e * (1 + k) + rest) * factor)


def _conversion(fmt: Format, terms: int) -> Fraction:
    """The error of conversion into registers: where there are gaps between narrow components."""
    return Fraction(0) if fmt == FP64 else FP64.u ** state_for(fmt, terms)


def _mean_error(fmt: Format, terms: int, count: int) -> Fraction:
    mean = _mean_registers(fmt, terms, count)
    return mean.relative + mean.absolute


def _gap_factor(fmt: Format, terms: int, count: int) -> Fraction:
    """One and the relative error of the sum of squared gaps."""
    state = state_for(fmt, terms)
    return (1 + _wide("add", state)) ** 2 * (1 + register_bound(FP64, state, count, LANES).absolute)


def _var(fmt: Format, terms: int, count: int) -> FoldBound:
    return rounded(_var_registers(fmt, terms, count), fmt, terms)


def _std(fmt: Format, terms: int, count: int) -> FoldBound:
    """With T the root of that of the variance: errors of mean and elements add up as lengths do."""
    state = state_for(fmt, terms)
    factor = _gap_factor(fmt, terms, count) * (1 + _wide("div", state, float_second=True))
    factor *= 1 + _wide("sqrt", state)
    own = _mean_error(fmt, terms, count) + _conversion(fmt, terms)
    if fmt == FP64:
        own += _scaled_underflow(state, count)
    return rounded(FoldBound(factor - 1, own * factor), fmt, terms)


def _scaled_underflow(state: int, count: int) -> Fraction:
    """What underflow costs a standard deviation whose rows are scaled, relative to T.

    With the largest element at least 1/2, T >= 1 / (2 sqrt(count - correction)). Products leave
    the sum of squares off by count state**2 eta / 2 at most, the quotient its value v by
    state eta, and |sqrt(v + d) - sqrt(v)| <= sqrt(|d|): in all below 4 sqrt(count) state 2**-537
    of T. The root's own part, 20 eta (1 + 1/t) with t >= 2**-537, is below 40 sqrt(count) 2**-537
    of T; elements that scaling takes below the range and the mean err by multiples of eta.
    """
    return count * state * Fraction(1, 2**530)


def _polyval(fmt: Format, terms: int, count: int) -> FoldBound:
    degree = count - 1
    if terms == 1:
        steps = 2 * degree * FP64.u
        if steps >= 1:
            raise ValueError(
                f"polyval: count must be below 1 + 1/(2v) = {1 + int(1 / (2 * FP64.u))}, "
                f"v = 2**-53, got {count}"
            )
        return rounded(FoldBound(Fraction(0), (steps / (1 - steps)) ** 2), fmt, 1)
    assert fmt.dtype is not None
    step = 1 + expansion_bound("mul", terms).relative(fmt.dtype)
    step *= 1 + expansion_bound("add", terms).relative(fmt.dtype)
    return FoldBound(Fraction(0), step**degree - 1)


def _nothing(state: int, count: int) -> Fraction:
    """Sums are exact below the normal range."""
    return Fraction(0)


def _last_places(state: int, count: int) -> Fraction:
    """A quotient, or a product with a power of two: half a unit for each component, and as much."""
    return state * FP64.min_subnormal


def _products(state: int, count: int) -> Fraction:
    """At most state**2 products or their errors a term, each off by half a unit.

    The other half is for what follows: relative errors of these, and a variance's quotient.
    """
    return count * state**2 * FP64.min_subnormal


@dataclasses.dataclass(frozen=True)
class Row:
    """One row.

    Args:
        operation: its name.
        size: what T is.
        formula: the bound to first order, with the letters of `docs/numerics.md`.
        algorithm: its name.
        source: where it is proved, for results whose steps are proved.
        bound: the bound for a format, a number of components and a number of elements.
        lost: what underflow costs in float64 with a number of registers and of elements.
        wide: up to how many components it is computed in float64.
    """

    operation: str
    size: str
    formula: str
    algorithm: str
    source: str
    bound: Callable[[Format, int, int], FoldBound]
    lost: Callable[[int, int], Fraction]
    wide: int = 4

    def proven(self, fmt: Format, terms: int) -> bool:
        """Whether every step has a proof: those on two float64 registers, and Horner's rule."""
        if terms <= self.wide:
            return state_for(fmt, terms) <= 2
        return all(expansion_bound(name, terms).proven for name in ("mul", "add"))

    def requires(self, fmt: Format, terms: int) -> str:
        """What `underflow` leaves out, in words."""
        if terms <= self.wide and (fmt != FP64 or self.lost is not _nothing):
            return ""
        if self.operation == "sum":
            return ""
        return "no product is below the range of its error: each is 0 or at least 2**(emin + p - 1)"

    def underflow(self, fmt: Format, terms: int, count: int) -> Fraction:
        """What the end of the range costs besides: the absolute part of the bound."""
        if terms > self.wide:
            return Fraction(0)
        if fmt != FP64:
            return fmt.min_subnormal
        return self.lost(state_for(fmt, terms), count)


ROWS = {
    row.operation: row
    for row in (
        Row("sum", "sum |x|", "r |t| + F T", "Sum2, SumK", _ORO, fold_bound, _nothing),
        Row("dot", "sum |x y|", "r |t| + F T", "Dot2, DotK", _ORO, fold_bound, _products),
        Row("matmul", "|x| |y|", "r |t| + F T", "Dot2, DotK", _ORO, _matmul, _products),
        Row("mean", "sum |x| / N", "(r + d) |t| + F T", "sum, then div", _ORO, _mean, _last_places),
        Row("norm", "", "(r + F/2 + q) |t|", "dot, then sqrt", _ORO, _norm, _last_places),
        Row(
            "var",
            "sum x^2 / (N - c)",
            "(r + F + 2a + d) |t| + (F + d)^2 T",
            "two passes: mean, then squares",
            _ORO,
            _var,
            _products,
        ),
        Row(
            "std",
            "sqrt(sum x^2 / (N - c))",
            "(r + F + 2a + d + q) |t| + (F + d) T",
            "var, then sqrt",
            _ORO,
            _std,
            _last_places,
        ),
        Row(
            "polyval",
            "sum |c_k| |x|^k",
            "n = 1: u |t| + (2 (N - 1) v)^2 T; n > 1: (N - 1) (m + a) T",
            "compensated Horner; Horner on expansions",
            _GLL,
            _polyval,
            _nothing,
            wide=1,
        ),
    )
}


def markdown() -> str:
    """The table as `docs/numerics.md` shows it."""
    lines = ["| operation | T | error at most, to first order | algorithm |", "|---|---|---|---|"]
    for row in ROWS.values():
        size, formula = (s.replace("|", "\\|") for s in (row.size, row.formula))
        lines.append(f"| `{row.operation}` | {size} | {formula} | {row.algorithm} |")
    return "\n".join(lines)
