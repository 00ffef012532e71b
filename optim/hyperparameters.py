"""The hyperparameters of a parameter group, as a step asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mcf.optim.rule.rule import Rule
from mcf.optim.storage.strategy_arithmetic import Arithmetic

if TYPE_CHECKING:
    from mcf.optim.grouped import GroupedOptimizer

Group = dict[str, Any]


class GroupHyperparameters:
    """The hyperparameters of a group for a bucket; see `mcf.optim.step.bucket.Hyperparameters`."""

    def __init__(
        self,
        optimizer: GroupedOptimizer,
        group: Group,
        rule: Rule,
        arithmetic: Arithmetic,
        where: str,
    ) -> None:
        self._optimizer, self.options = optimizer, group
        self._rule, self._arithmetic, self._where = rule, arithmetic, where
        self._kind = _kind(group)
        self._before = _values(group)
        # The scalars of the last step.
        self._last: Group | None = None

    def given(self, read: Callable[[Any], Any]) -> Group:
        """Scalars of the rule, and what else its coefficients read."""
        try:
            found = self._optimizer._all_given(self.options, self._arithmetic, read)
        except (TypeError, ValueError):
            # No number: the check says which.
            self._optimizer._check_scheduled(self.options)
            raise
        # Those of the first step were checked with the parameters; a device's are not compared.
        if read is float:
            last = self._last
            if last is not None and last != found and not self._at_other_rates(found, last):
                self._optimizer._check_scheduled(self.options)
            self._last = found
        return found

    def _at_other_rates(self, now: Group, last: Group) -> bool:
        """Whether scalars differ as schedules make them, which need not be checked in full."""
        for name in _RATES & now.keys():
            if type(self.options[name]) is not float or not 0 <= now[name] < math.inf:
                return False
        return {**now, **{name: last[name] for name in _RATES & now.keys()}} == last

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        """Scalars that depend on a parameter's shape."""
        return self._optimizer._of_shape(self.options, shape)

    def ask_the_same(self) -> bool:
        """Whether the group still asks for the rule and the arithmetic of the bucket."""
        group, optimizer = self.options, self._optimizer
        now = _values(group)
        if now is not None and now == self._before:
            return True
        if _kind(group) != self._kind or optimizer._rule(group) is not self._rule:
            return False
        optimizer._check_arithmetic(group, self._arithmetic, self._where)
        self._before = now
        return True


def scheduled(group: Group, defaults: Group) -> Group:
    """A group with hyperparameters that its range check takes for what they stand for.

    Tensors that a step does not read, those of a device or of a graph that is captured, have no
    values here. A schedule down to 0 can miss it from below by rounding errors, which are below
    2**-20 of the rate that it began with.
    """
    found = {
        name: tuple(_looked_at(x, group) for x in value)
        if type(value) is tuple
        else _looked_at(value, group)
        for name, value in group.items()
        if name not in _NAMED
    }
    lr, of = found["lr"], (defaults.get("lr"), group.get("initial_lr"))
    whole = max((float(x) for x in of if isinstance(x, (int, float))), default=0.0)
    if isinstance(lr, (int, float)) and -whole * 2.0**-20 <= lr < 0:
        found["lr"] = 0.0
    return found


def _looked_at(value: Any, group: Group) -> Any:
    """A hyperparameter, or a number that is in every range for one that is not read."""
    if not isinstance(value, Tensor):
        return value
    unread = group["capturable"] or value.device.type != "cpu" or isinstance(value, FakeTensor)
    return _WITHIN if unread else value.item() if value.numel() == 1 else value


# What schedules change, in [0, inf).
_RATES = frozenset(("lr", "weight_decay"))
# A number in the range of every hyperparameter that may be a tensor.
_WITHIN = 0.5
# Of these a group has one for each parameter.
_NAMED = ("params", "param_names")


def _kind(group: Group) -> tuple[Any, ...]:
    """What the precision strategy and its arithmetic follow from, beside the parameter."""
    return group["precision"], group["low"], group["compute_dtype"]


def _values(group: Group) -> list[Any] | None:
    """The options of a group that a rule or its arithmetic may follow from.

    None where one can be changed in place, so that nothing is said by its being the same.
    """
    found = [value for name, value in group.items() if name not in _CHANGING]
    kinds = set(map(type, found))
    if tuple in kinds:
        kinds.discard(tuple)
        for value in found:
            if type(value) is tuple:
                kinds.update(map(type, value))
    return found if kinds <= _FIXED else None


# Options that neither rule nor arithmetic follow from.
_CHANGING = frozenset(("params", "param_names", "lr", "initial_lr", "weight_decay"))
_FIXED = frozenset((int, float, bool, str, type(None), torch.dtype))
