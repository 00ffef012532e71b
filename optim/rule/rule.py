"""The interface of an update rule: its formula, states, scalars and storages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import parameters
from mcf.kernels.formats import Format
from mcf.optim.rule.metrics import adamw_terms, param_terms
from mcf.optim.storage.base import STOCHASTIC, Storage
from mcf.optim.storage.codes import RATIO8
from mcf.optim.storage.strategies import Arithmetic

# Storage of a state: that of the strategy's first or second moments. SLOW is SECOND but never a
# code: such an average decays more slowly than the second moment, which therefore does not bound
# it. PREVIOUS is FIRST but never 4 bits, which would cut values that are not averages.
FIRST, SECOND, SLOW, PREVIOUS = "first", "second", "slow", "previous"

# Operands of a formula that are neither states nor scalars of the rule.
_GIVEN = ("param", "param_lo", "grad", "grad_lo", "grad_limit")

# The operands that a formula takes together, as a tuple, by the name of its parameter.
GROUPS = {
    "weight": ("param", "param_lo"),
    "grads": ("grad", "grad_lo", "grad_scale", "grad_limit"),
    "second": ("exp_avg_sq", "exp_avg_sq_lo"),
    "maximum": ("max_exp_avg_sq", "max_exp_avg_sq_lo"),
    "rates": ("beta1", "one_minus_beta1", "beta2", "beta2_lo", "one_minus_beta2"),
    "corrections": ("bias_correction1", "bias_correction2"),
}


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """Scalars of a rule that are computed from hyperparameters and the step number.

    Args:
        function: the formula, an algorithm in float64. Its parameters are hyperparameters by name;
            `step`, the number of the step from 1; `power_x` and `power_x_lo`, the pair x**step; and
            the rule's numbers before the step.
        results: the names of the scalars that it returns; `new_x` for a number x of the rule.
    """

    function: Algorithm
    results: tuple[str, ...]

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The operands of the formula."""
        return parameters(self.function)


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule: its formula, and the names of what the formula reads and returns.

    The formula's operands are `param`, `grad` and `grad_limit` (`param_lo`, `grad_lo`: their
    further components), the states and their further components (`exp_avg_sq_lo`), and scalars. A
    parameter of the formula is an operand, or a tuple of several (`GROUPS`).

    Args:
        name: for kernel names.
        function: the formula, an algorithm over the operands with slots left open.
        results: the names of its results.
        states: its states per element, any number of pairs `(name, kind)`, where the kind is FIRST,
            SECOND, SLOW or PREVIOUS. States of kinds FIRST and PREVIOUS can be codes relative to
            the root of the first state of kind SECOND.
        numbers: its scalar states per parameter, pairs of name and initial value. They are float64,
            on the device of the step count, and only scalars depend on them.
        absent: states that the formula names but this variant neither reads nor keeps (momentum of
            0); if present, they are left unchanged.
        groups: pairs of a parameter and its operands, in addition to `GROUPS` or instead of its.
        slots: functions for the slots that the strategy leaves to the rule.
        decoupled: whether the weight decay is decoupled from the gradient.
        feed_back: computes its first state with the parameter's rounding error added, for
            strategies that feed it back; None if the rule does not support it.
        made: results that are written to temporary tensors, in the format of the arithmetic. They
            are the last operands of the kernel.
        shaped: whether its scalars depend on the parameter's shape.
        counted: whether it is a whole step of a parameter, rather than a part that another rule
            finishes.
        coefficients: the scalars that are computed from hyperparameters and the step number, and
            its numbers after the step.
        feedback: computes the scalar `feedback`, if rounding errors are fed back.
        launcher: creates the launches of a step that is more than one fused kernel; see
            `mcf.optim.step.launch`.
    """

    name: str
    function: Algorithm
    results: tuple[str, ...]
    states: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    absent: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    slots: tuple[tuple[str, Algorithm], ...] = ()
    made: tuple[str, ...] = ()
    decoupled: bool = False
    shaped: bool = False
    counted: bool = True
    feed_back: Algorithm | None = None
    coefficients: tuple[Coefficients, ...] = ()
    feedback: Coefficients | None = None
    launcher: Any = None

    def computed(self, arithmetic: Arithmetic) -> tuple[Coefficients, ...]:
        """Return the coefficients that each step computes under an arithmetic."""
        if arithmetic.strategy.feedback and self.feedback is not None:
            return (*self.coefficients, self.feedback)
        return self.coefficients

    @property
    def metrics(self) -> tuple[Algorithm, int]:
        """The terms summed when metrics are tracked, and their number."""
        return (adamw_terms, 4) if "increment" in self.results else (param_terms, 3)

    @functools.cached_property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The operands of the formula, by the parameters that are tuples of several."""
        known = {**GROUPS, **dict(self.groups)}
        return {p: known[p] for p in parameters(self.function) if p in known}

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """The operands of the formula, one after another."""
        return tuple(n for p in parameters(self.function) for n in self.members.get(p, (p,)))

    @functools.cached_property
    def scalars(self) -> tuple[str, ...]:
        """The operands of the formula that are one number for all elements."""
        tensors = {*_GIVEN, *self.absent}
        for name, _ in self.states:
            tensors |= {name, f"{name}_lo"}
        return tuple(n for n in self.operands if n not in tensors)

    @functools.cached_property
    def first(self) -> str | None:
        """The state that rounding errors are fed into: the first one of kind FIRST."""
        return next((name for name, kind in self.states if kind == FIRST), None)

    @functools.cached_property
    def seconds(self) -> tuple[str, ...]:
        """The states that use the second-moment storage."""
        return tuple(name for name, kind in self.states if kind in (SECOND, SLOW))

    def storage(self, name: str, arithmetic: Arithmetic) -> Storage:
        """Return the storage of a state."""
        strategy, kind = arithmetic.strategy, dict(self.states)[name]
        if kind == PREVIOUS and strategy.packed:
            return RATIO8
        if kind == SLOW and strategy.second.coding is not None:
            return STOCHASTIC
        return strategy.second if kind in (SECOND, SLOW) else strategy.first

    def format(self, name: str, arithmetic: Arithmetic) -> Format:
        """Return the format of a state's components."""
        kept = self.storage(name, arithmetic)
        if name in self.seconds and kept is arithmetic.strategy.second:
            return arithmetic.second_moment
        return kept.format(arithmetic.component)


def by_flags(make: Callable[..., Rule]) -> dict[tuple[bool, ...], Rule]:
    """Return the rules that a function makes for the values of one flag, keyed as in optimizers."""
    return {(flag,): make(flag) for flag in (False, True)}
