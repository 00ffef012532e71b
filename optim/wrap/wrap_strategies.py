"""The precision strategies that an optimizer of torch can have, and what its group asks for."""

from __future__ import annotations

from typing import Any

from mcf.optim import options, validation
from mcf.optim.precision import parts, strategy_of
from mcf.optim.storage.strategies import STRATEGIES, WITHOUT_FEEDBACK, Strategy

# Errors that are fed back need a first moment of which the update is a multiple.
PRECISIONS = WITHOUT_FEEDBACK


def of_group(group: dict[str, Any]) -> Strategy:
    """The strategy of a group, checked."""
    options.check_rounding(group)
    name = group["precision"]
    composed = None if name in STRATEGIES else parts(name)
    if name not in PRECISIONS and composed is None:
        _refuse_feedback(name in STRATEGIES, name)
        validation.choice("precision", name, PRECISIONS)
    _refuse_feedback(composed is not None and composed.feedback, name)
    return strategy_of(name).with_low(group["low"])


def _refuse_feedback(asked: bool, name: str) -> None:
    if asked:
        raise ValueError(
            f"precision={name!r} feeds rounding errors back into a first moment that the update is "
            "a multiple of; which that is, is not known of a class of torch: use mcf.optim.SGD, "
            "Adam or AdamW"
        )
