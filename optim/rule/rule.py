"""What an update rule is: a formula, what it keeps, and where its scalars come from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import parameters
from mcf.kernels.formats import Format
from mcf.optim.storage.base import Storage
from mcf.optim.storage.codes import RATIO8
from mcf.optim.storage.stochastic import STOCHASTIC
from mcf.optim.storage.strategy_arithmetic import Arithmetic

# How a state is kept: as the strategy's first moments are, or as its second ones; as second ones,
# but never in a code (SLOW: an average that forgets more slowly than the second moment, which
# bounds it by nothing); as first ones, but never in 4 bits, which would cut what is no average
# (PREVIOUS).
FIRST, SECOND, SLOW, PREVIOUS = "first", "second", "slow", "previous"

# What a formula reads that is neither a state nor a scalar of the rule.
_GIVEN = ("param", "param_lo", "grad", "grad_lo", "grad_limit")


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """Scalars of a rule that follow from hyperparameters and the number of the step.

    Args:
        function: the formula, an algorithm in float64. Its parameters are hyperparameters by name;
            `step`, the number of the step from 1; `power_x` and `power_x_lo`, the pair x**step; and
            the rule's numbers as they were before the step.
        results: the names of the scalars that it returns; `new_x` for a number x of the rule.
    """

    function: Algorithm
    results: tuple[str, ...]

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """What the formula reads."""
        return parameters(self.function)


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule: its formula, and what the formula reads and returns by name.

    The formula's parameters are `param`, `grad` and `grad_limit` (`param_lo`, `grad_lo`: their
    further components), the states and their further components (`exp_avg_sq_lo`), and scalars.

    Args:
        name: for kernel names.
        function: the formula, an algorithm over those names with slots left open.
        results: the names of its results.
        metrics: the terms summed when metrics are tracked.
        metric_count: the number of terms.
        states: what it keeps for each element, `(name, kind)` pairs, where the kind is FIRST,
            SECOND, SLOW or PREVIOUS: any number of each. Those of kinds FIRST and PREVIOUS can be
            codes relative to the root of the first one of kind SECOND.
        numbers: what it keeps for each parameter, one number, and what that starts from; they are
            float64, where the count of steps is, and only scalars depend on them.
        absent: states that the formula names but this variant does not keep (momentum of 0).
        slots: what fills slots that the strategy leaves to the rule.
        decoupled: whether the weight decay is decoupled from the gradient, where no slot says it.
        feed_back: the first of its states with the parameter's rounding error in it, for strategies
            that feed it back; None for a rule without.
        unused: states that other variants keep; one that is there is left as it is.
        shaped: whether its scalars depend on the parameter's shape.
        counted: whether it makes a step of a parameter, or a part of one that another finishes.
        coefficients: those of its scalars that are computed from hyperparameters and the number of
            the step, and its numbers after the step.
        feedback: the same for the scalar `feedback`, where rounding errors are fed back.
        launcher: what makes the launches of a step that is more than one fused kernel; see
            `mcf.optim.step.launch`.
    """

    name: str
    function: Algorithm
    results: tuple[str, ...]
    metrics: Algorithm
    metric_count: int
    states: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    absent: tuple[str, ...] = ()
    slots: tuple[tuple[str, Algorithm], ...] = ()
    unused: tuple[str, ...] = ()
    decoupled: bool = False
    shaped: bool = False
    counted: bool = True
    feed_back: Algorithm | None = None
    coefficients: tuple[Coefficients, ...] = ()
    feedback: Coefficients | None = None
    launcher: Callable[..., Any] | None = None

    def computed(self, arithmetic: Arithmetic) -> tuple[Coefficients, ...]:
        """What is computed for each step under an arithmetic."""
        if arithmetic.strategy.feedback and self.feedback is not None:
            return (*self.coefficients, self.feedback)
        return self.coefficients

    @functools.cached_property
    def scalars(self) -> tuple[str, ...]:
        """The parameters of the formula that are one number for all elements."""
        tensors = {*_GIVEN, *self.absent}
        for name, _ in self.states:
            tensors |= {name, f"{name}_lo"}
        return tuple(p for p in parameters(self.function) if p not in tensors)

    @functools.cached_property
    def first(self) -> str | None:
        """The state that rounding errors are fed into, the first of its kind."""
        return next((name for name, kind in self.states if kind == FIRST), None)

    @functools.cached_property
    def seconds(self) -> tuple[str, ...]:
        """The states kept as second moments are."""
        return tuple(name for name, kind in self.states if kind in (SECOND, SLOW))

    def storage(self, name: str, arithmetic: Arithmetic) -> Storage:
        """How one of its states is kept."""
        strategy, kind = arithmetic.strategy, dict(self.states)[name]
        if kind == PREVIOUS and strategy.packed:
            return RATIO8
        if kind == SLOW and strategy.second.coding is not None:
            return STOCHASTIC
        return strategy.second if kind in (SECOND, SLOW) else strategy.first

    def format(self, name: str, arithmetic: Arithmetic) -> Format:
        """The format of the components of one of its states."""
        kept = self.storage(name, arithmetic)
        if name in self.seconds and kept is arithmetic.strategy.second:
            return arithmetic.second_moment
        return kept.format(arithmetic.component)
