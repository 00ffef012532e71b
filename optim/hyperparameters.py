"""The hyperparameters of a parameter group, as a step asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mcf.optim.rules.rule import Rule
from mcf.optim.storage.arithmetic import Arithmetic

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

    def given(self, read: Callable[[Any], Any]) -> Group:
        """Scalars of the rule, and what else its coefficients read."""
        return self._optimizer._all_given(self.options, self._arithmetic, read)

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
