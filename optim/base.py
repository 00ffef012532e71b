"""Parameter groups under precision strategies, and what the class of an update rule provides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from mcf.optim import expansions, gradients, options, stream_names, validation
from mcf.optim.coefficients import on_host
from mcf.optim.metrics import StepMetrics
from mcf.optim.precision import by_name, parts, strategy_of
from mcf.optim.strategies import (
    STRATEGIES,
    WITHOUT_FEEDBACK,
    Arithmetic,
    Storage,
    arithmetic,
)
from mcf.optim.update import Rule

if TYPE_CHECKING:
    from mcf.optim.accumulator import GradientAccumulator

Group = dict[str, Any]
# A parameter, after the words that name it in messages.
Named = tuple[str, Tensor]


class Progress(NamedTuple):
    """The number of a step, from 1, the rule's numbers before it, the shape if it is `shaped`."""

    step: int
    numbers: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()


class GroupedOptimizer(Optimizer):
    """Parameter groups, each with its rule and precision; checked before they are taken."""

    # The values of `precision` that make sense for the rule.
    precisions: tuple[str, ...] = WITHOUT_FEEDBACK
    # Whether others can be put together (`Precision`).
    custom = True
    # Whether parameters may be expansion tensors.
    takes_expansions = True

    max_grad_norm: float | None
    max_grad_value: float | None
    nonfinite: str
    # The norm of all gradients in the last step, where it was clipped.
    grad_norm: Tensor | None = None

    # Second components of gradients, during a step, and who adds them up.
    _grad_low: dict[Tensor, Tensor]
    _accumulator: GradientAccumulator | None
    _released: bool
    # The entries of a group that its checkpoints have; wrappers may add others to `defaults`.
    _required: frozenset[str]
    # By id of a parameter, what tells that others wrote it; and those that are a step ahead.
    _seen: dict[int, tuple[int, int]]
    _ahead: dict[Tensor, tuple[Tensor, int]]
    _warned_of_rewriting: bool
    _track_metrics: bool
    _metrics: StepMetrics | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show users every option of the constructor."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            shown = options.signature(vars(cls)["__init__"])
            cls.__signature__ = shown  # type: ignore[attr-defined]

    # -- what a subclass provides ------------------------------------------------------------

    def _rule(self, group: Group) -> Rule:
        raise NotImplementedError

    def _given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """Scalars that are hyperparameters, and what else `Rule.coefficients` reads of a group.

        Each hyperparameter that may be a tensor is taken by `read`: the host's is `float`.
        """
        raise NotImplementedError

    def _of_shape(self, group: Group, shape: tuple[int, ...]) -> dict[str, float]:
        """Scalars that depend on a parameter's shape, where the rule is `shaped`."""
        return {}

    def _all_given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """What a subclass gives, and what comes of the options that all have."""
        given = options.weight_decay(group, self._given(group, arith, read))
        return {"grad_limit": self.max_grad_value or 0.0, **given}

    def _scalars(self, group: Group, arith: Arithmetic, step: Progress) -> dict[str, float]:
        """The scalars of one step in float64, by the host; `new_x` for each number x of the rule.

        Raises:
            ValueError, TypeError: for hyperparameters that are no numbers.
        """
        rule = self._rule(group)
        given = self._all_given(group, arith, float)
        numbers = dict(zip(dict(rule.numbers), step.numbers, strict=True))
        given |= self._of_shape(group, step.shape)
        return {**given, **on_host(rule.computed(arith), {**given, **numbers}, step.step)}

    def _check_group(self, group: Group) -> None:
        """Raise for hyperparameters out of range."""
        raise NotImplementedError

    def _later_options(self) -> Group:
        """Options that checkpoints of older versions lack, and what they are there."""
        return options.OLDER

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch.amp.GradScaler sets `grad_scale` and `found_inf` for the step."""
        return gradients.unscales(self)

    # -- groups ------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does; its hyperparameters and parameters are checked first.

        Raises:
            ValueError, TypeError: naming the hyperparameter or the parameter and its group.
        """
        index = len(self.param_groups)
        if isinstance(param_group, dict):
            params = param_group.get("params")
            if isinstance(params, Iterator):
                param_group = {**param_group, "params": list(params)}
            param_group = by_name(param_group)
            merged = {**self.defaults, **param_group}
            self._check_precision(merged)
            options.check(merged, self.defaults)
            self._check_group(merged)
            merged = options.with_peak_lr(merged, param_group)
            rule = self._rule(merged)
            name = type(self).__name__
            options.check_decay(merged, dict(rule.slots), rule.decoupled, name)
            param_group = {**param_group, "peak_lr": merged["peak_lr"]}
            validation.distinct(f"param_groups[{index}]", merged.get("params"))
        try:
            super().add_param_group(param_group)
            group, words = self.param_groups[index], f"param_groups[{index}]"
            stream_names.settle(words, group)
            for where, p in self._named(index):
                if not validation.later(p):
                    validation.parameter(where, p, self.takes_expansions)
                    if self._arithmetic(group, p, where).strategy.stochastic:
                        stream_names.names(words, group)
        except BaseException:
            # The constructor's caller never sees the object; here the others stay as they were.
            del self.param_groups[index:]
            raise

    def _check_precision(self, group: Group) -> None:
        """Raise for a precision, rounding or compute_dtype that is not one of those known."""
        if group["precision"] not in self.precisions:
            self._check_custom(group["precision"])
        validation.compute_dtype(options.dtype_of(group["compute_dtype"]))
        validation.choice("low", group["low"], options.LOW)

    def _check_custom(self, precision: Any) -> None:
        """Raise for a precision that is none of `precisions` and cannot be put together either."""
        # Not every value can be looked up in a dict.
        named = precision in tuple(STRATEGIES)
        composed = None if named or not self.custom else parts(precision)
        if composed is None:
            validation.choice("precision", precision, self.precisions)
        elif composed.feedback and "eco" not in self.precisions:
            raise ValueError(
                f"precision={precision!r} feeds rounding errors back, which needs a first moment "
                f"that the update of {type(self).__name__} is a multiple of; allowed is "
                "feedback=False"
            )

    def _named(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """The parameters of a group, each with the words that name it in messages."""
        group = self.param_groups[index]
        names = group.get("param_names") or ()
        # Those of a whole group, whose parameters others have divided among processes, name none.
        known = len(names) == len(group["params"])
        for k, p in enumerate(group["params"]):
            name = f" ({names[k]})" if known else ""
            yield f"params[{k}]{name} of param_groups[{index}]", p

    def _counted(self) -> list[Group]:
        """The groups that say which random numbers each parameter gets."""
        return self.param_groups

    def _parameters(self) -> Iterator[Tensor]:
        """All parameters, in the order in which checkpoints count them."""
        for group in self.param_groups:
            yield from group["params"]

    def _arithmetic(self, group: Group, p: Tensor, where: str) -> Arithmetic:
        strategy = strategy_of(group["precision"]).with_low(group["low"])
        computed = options.dtype_of(group["compute_dtype"])
        found = arithmetic(strategy, p.dtype, computed, where)
        self._check_arithmetic(group, found, where)
        return expansions.arithmetic(found, p, where)

    def _check_arithmetic(self, group: Group, arith: Arithmetic, where: str) -> None:
        """Raise for hyperparameters that the arithmetic of a parameter cannot represent."""


def beta2_components(beta2: float | Tensor, arith: Arithmetic) -> tuple[Any, Any]:
    """beta2 as the strict arithmetic of an expansion needs it, else as one number.

    Tensors for a tensor, which is not read.
    """
    if not (arith.strict and arith.strategy.second is Storage.PAIR):
        return beta2, 0.0
    dtype = arith.component.dtype
    home = beta2.device if isinstance(beta2, Tensor) else "cpu"
    whole = torch.as_tensor(beta2, dtype=torch.float64, device=home)
    high = whole.to(dtype).double()
    low = (whole - high).to(dtype).double()
    return (high, low) if isinstance(beta2, Tensor) else (high.item(), low.item())
