"""The hyperparameters of a parameter group, as the buckets of a step read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mcf.optim.rule.rule import Rule
from mcf.optim.storage.strategies import Arithmetic

Group = dict[str, Any]


class GroupHyperparameters:
    """The hyperparameters of a group for a bucket (`mcf.optim.step.bucket.Hyperparameters`)."""

    def __init__(
        self, optimizer: Any, group: Group, rule: Rule, arithmetic: Arithmetic, where: str
    ) -> None:
        """Take an optimizer and one of its groups; `where` names the bucket's first parameter."""
        self._optimizer, self.options = optimizer, group
        self._rule, self._arithmetic, self._where = rule, arithmetic, where
        self._kind = _kind(group)
        self._before = _values(group)
        # The scalars of the last step.
        self._last: Group | None = None

    def given(self, read: Callable[[Any], Any]) -> Group:
        """Return the scalars of the rule, and whatever else its coefficients read."""
        try:
            found: Group = self._optimizer._all_given(self.options, self._arithmetic, read)
        except (TypeError, ValueError):
            # A value is not a number; the check names it.
            self._optimizer._check_scheduled(self.options)
            raise
        # The first step's values were checked with the parameters. Values on a device are not
        # compared.
        if read is float:
            last = self._last
            if last is not None and last != found and not self._at_other_rates(found, last):
                self._optimizer._check_scheduled(self.options)
            self._last = found
        return found

    def _at_other_rates(self, now: Group, last: Group) -> bool:
        """Return whether only rates differ, as schedules change them: these need no full check."""
        for name in _RATES & now.keys():
            if type(self.options[name]) is not float or not 0 <= now[name] < math.inf:
                return False
        return {**now, **{name: last[name] for name in _RATES & now.keys()}} == last

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        """Return the scalars that depend on a parameter's shape."""
        found: dict[str, float] = self._optimizer._of_shape(self.options, shape)
        return found

    def ask_the_same(self) -> bool:
        """Return whether the group still needs the rule and the arithmetic of the bucket."""
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
    """Return a group whose values stand for its scheduled hyperparameters in a range check.

    Tensors that a step does not read (on a device, or in a graph that is being captured) are
    replaced by a number within every range. A schedule down to 0 may go below 0 by rounding errors;
    these are below 2**-20 of the initial rate.
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
    """Return a hyperparameter, or a number within every range for a tensor that is not read."""
    if not isinstance(value, Tensor):
        return value
    unread = group["capturable"] or value.device.type != "cpu" or isinstance(value, FakeTensor)
    return _WITHIN if unread else value.item() if value.numel() == 1 else value


# The hyperparameters that schedules change, in [0, inf).
_RATES = frozenset(("lr", "weight_decay"))
# A number within the range of every hyperparameter that may be a tensor.
_WITHIN = 0.5
# Entries with one value per parameter.
_NAMED = ("params", "param_names")


def _kind(group: Group) -> tuple[Any, ...]:
    """Return what determines the precision strategy and its arithmetic, besides the parameter."""
    return group["precision"], group["low"], group["compute_dtype"]


def _values(group: Group) -> list[Any] | None:
    """Return the options of a group that determine its rule or its arithmetic.

    Return None if a value can be changed in place, because then identity proves nothing.
    """
    found = [value for name, value in group.items() if name not in _CHANGING]
    kinds = set(map(type, found))
    if tuple in kinds:
        kinds.discard(tuple)
        for value in found:
            if type(value) is tuple:
                kinds.update(map(type, value))
    return found if kinds <= _FIXED else None


# Options that determine neither rule nor arithmetic.
_CHANGING = frozenset(("params", "param_names", "lr", "initial_lr", "weight_decay"))
_FIXED = frozenset((int, float, bool, str, type(None), torch.dtype))
