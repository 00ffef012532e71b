"""Strict arithmetic as documented, on rational numbers, independent of the package's algorithms.

One number at a time: RN(x) rounds the exact x in the float32 register and then to the component
format. Transforms are what their theorems say (TwoSum's error is a + b - s), not operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from mcf.kernels.exact import rounding, square_root
from mcf.kernels.formats import FP32, Format
from tests.optim.formulas import Formulas, State


class Strict(Formulas):
    """The update rules with the rounding points of strict arithmetic, for one number.

    Args:
        fmt: the component format, bf16 or fp16.
        precision: "plain", "kahan", "light" or "plus".
        skip: the name of one rounding point to leave out, for mutants.
    """

    def __init__(self, fmt: Format, precision: str, skip: str | None = None) -> None:
        self.fmt, self.precision, self.skip = fmt, precision, skip
        self._component, self._register = rounding(fmt), rounding(FP32)
        # The rounding points that were reached, for the test that leaves each out.
        self.points: set[str] = set()

    def rn(self, point: str, x: Fraction) -> Fraction:
        self.points.add(point)
        rounded = self._component(self._register(x))
        assert isinstance(rounded, Fraction), f"{point} overflows: choose smaller inputs"
        return self._register(x) if point == self.skip else rounded  # type: ignore[return-value]

    def f(self, scalar: float) -> Fraction:
        """A scalar as it reaches the kernel: the host's float64 rounded to float32."""
        return self._register(Fraction(scalar))  # type: ignore[return-value]

    def root(self, x: Fraction) -> Fraction:
        return self.rn("sqrt", square_root(x, FP32))  # type: ignore[arg-type]

    # -- expansions --------------------------------------------------------------------------

    def grow(self, hi: Fraction, lo: Fraction, a: Fraction, what: str) -> tuple[Fraction, Fraction]:
        s = self.rn(f"{what} + a", hi + a)
        # TwoSum's theorem: the error is exact for any order of magnitude.
        e = hi + a - s
        return self.fast_two_sum(s, self.rn(f"d{what} + e", lo + e), what)

    def fast_two_sum(self, a: Fraction, b: Fraction, what: str) -> tuple[Fraction, Fraction]:
        # By its operations: Kahan's update calls it outside of its theorem.
        s = self.rn(f"Fast2Sum {what}", a + b)
        return s, self.rn(f"d{what}", b - self.rn(f"{what} s - a", s - a))

    def product(
        self, b: Fraction, db: Fraction, hi: Fraction, lo: Fraction
    ) -> tuple[Fraction, Fraction]:
        p = self.rn("b2 v", b * hi)
        # TwoProd's theorem: the rounded error, exact where it is a number of the format.
        e = self._component(b * hi - p)
        cross = self.rn("cross", self.rn("b2 dv", b * lo) + self.rn("db2 v", db * hi))
        return self.fast_two_sum(p, self.rn("e + cross", e + cross), "v")  # type: ignore[operator]

    # -- rules -------------------------------------------------------------------------------

    def accumulate(self, s: State, u: Fraction) -> State:
        """The parameter after the update u."""
        if self.precision == "plain":
            return {"param": self.rn("p + u", s["param"] + u)}
        if self.precision == "kahan":
            y = self.rn("dp + u", s["param_lo"] + u)
            p, dp = self.fast_two_sum(s["param"], y, "p")
        else:
            p, dp = self.grow(s["param"], s["param_lo"], u, "p")
        return {"param": p, "param_lo": dp}

    def mean(
        self, a: float, x: Fraction, b: float, y: Fraction, names: tuple[str, str, str]
    ) -> Fraction:
        """Both products rounded, then their sum."""
        one, other = (
            self.rn(n, self.f(c) * z) for n, c, z in zip(names[1:], (a, b), (x, y), strict=True)
        )
        return self.rn(names[0], one + other)

    def divided(self, point: str, x: Fraction, correction: float) -> Fraction:
        """Divide by a bias correction."""
        return self.rn(point, x / self.f(correction))

    def moment(self, m: Fraction) -> Fraction:
        """A first moment as stored."""
        return m

    def sign(self, x: Fraction) -> int:
        """The sign, 0 of 0."""
        return (x > 0) - (x < 0)

    def decayed(self, hi: Fraction, lo: Fraction, beta2: float) -> tuple[Fraction, Fraction]:
        """A pair times beta2, which is a pair too."""
        b = self._component(Fraction(beta2))
        db = self._component(Fraction(beta2) - b)  # type: ignore[operator]
        return self.product(b, db, hi, lo)  # type: ignore[arg-type]

    def second(self, s: State, g: Fraction, beta2: float) -> tuple[Fraction, State]:
        """The second moment after the gradient g, and what is stored."""
        rn, f = self.rn, self.f
        increment = rn("(1-b2) gg", f(1 - beta2) * rn("g g", g * g))
        if self.precision == "plus":
            v, dv = self.decayed(s["exp_avg_sq"], s["exp_avg_sq_lo"], beta2)
            v, dv = self.grow(v, dv, increment, "v")
        else:
            v, dv = rn("v", rn("b2 v", f(beta2) * s["exp_avg_sq"]) + increment), Fraction(0)
        return v, self.pair("exp_avg_sq", v, dv)

    def larger(self, s: State, v: Fraction, kept: State) -> tuple[Fraction, State]:
        """AMSGrad's maximum, and what is stored of it."""
        before = s["max_exp_avg_sq"], s["max_exp_avg_sq_lo"]
        v, dv = max((v, kept.get("exp_avg_sq_lo", Fraction(0))), before, key=sum)
        return v, self.pair("max_exp_avg_sq", v, dv)

    def norm(self, s: State, g: Fraction, beta2: float) -> tuple[Fraction, State]:
        """Adamax's norm of a gradient's magnitude and what was, and what is stored."""
        if self.precision == "plus":
            before = self.decayed(s["exp_inf"], s["exp_inf_lo"], beta2)
        else:
            before = self.rn("b2 n", self.f(beta2) * s["exp_inf"]), Fraction(0)
        n, dn = max((g, Fraction(0)), before, key=sum)
        return n, self.pair("exp_inf", n, dn)

    def pair(self, name: str, hi: Fraction, lo: Fraction) -> State:
        """A second moment as stored."""
        return {name: hi, f"{name}_lo": lo} if self.precision == "plus" else {name: hi}

    def penalty(self, s: State, weight_decay: float) -> Fraction:
        return self.rn("wd p", self.f(weight_decay) * s["param"])


def history(
    step: Callable[..., State], start: State, gradients: list[Fraction], **options: object
) -> list[State]:
    """The states of one number after each step; what `start` does not name starts as 0."""
    states: list[State] = []
    now = defaultdict(Fraction, start)
    for t, g in enumerate(gradients, 1):
        states.append(step(now, g, t=t, **options))
        now = defaultdict(Fraction, states[-1])
    return states
