"""Precisions that the user composes from storage formats."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from mcf.kernels.choices import check_choice
from mcf.optim import validation
from mcf.optim.storage.strategies import STORAGES, STRATEGIES, Strategy, named

_PARAMETERS = tuple(n for n, s in STORAGES.items() if s.parameter_bytes is not None)
# Experimental storages of earlier versions.
_REMOVED = ("fp8", "fp8x2", "e5m2", "e5m2x2")
_MOMENTS = {
    "exp_avg": (
        tuple(n for n, s in STORAGES.items() if s.first_bytes is not None),
        "it forgets in 1 / (1 - beta1) steps, so little is lost that a low word could keep",
    ),
    "exp_avg_sq": (
        tuple(n for n, s in STORAGES.items() if s.second_bytes is not None),
        "it is that of a first moment or of a parameter",
    ),
}
_STOCHASTIC = tuple(n for n in _PARAMETERS if STORAGES[n].roundings)


@dataclasses.dataclass(frozen=True)
class Precision:
    """The storage of each tensor of an optimizer, for a 16-bit parameter.

        AdamW(params, precision=Precision(param="pair", exp_avg="float32", exp_avg_sq="pair"))

    Args:
        param: `"single"` (the 16-bit parameter alone), `"kahan"` or `"pair"` (with a low word),
            `"split16"` or `"split8"` (with 16 or 8 further bits; bf16 only), `"float32"` (with a
            float32 copy).
        exp_avg: storage of the first moment or momentum buffer, `"single"` or `"float32"`,
            `"stochastic"` (bf16 rounded stochastically), `"ratio8"` (8 bits, relative to the root
            of the stored second moment), `"ratio4"` (that ratio in 4 bits, two per byte);
            `"se5m2"` (8 bits) for rules without a second moment.
        exp_avg_sq: storage of the second moment, `"single"`, `"pair"` or `"float32"`,
            `"stochastic"`, `"ue6m2"` (8 bits). It has no effect for rules without one.
        rounding: `"nearest"`, or `"stochastic"` for the last word of a bf16 parameter: the
            parameter itself, its low word, or the byte of `"split8"`.
        feedback: whether the parameter's rounding error goes into the first moment (ECO).

    `str()` returns the name that parameter groups and checkpoints keep: that of the equal named
    precision (`"plus"`), or the parts joined (`"pair_float32_pair"`), which optimizers accept too.

    Raises:
        ValueError: for an unknown name, or incompatible parts, with the reason.
    """

    param: str = "single"
    exp_avg: str = "single"
    exp_avg_sq: str = "single"
    rounding: str = "nearest"
    feedback: bool = False

    def __post_init__(self) -> None:
        """Check the parts and their combination."""
        if self.param in tuple(STRATEGIES) and self.param not in _PARAMETERS:
            raise ValueError(
                f"param={self.param!r} is the name of a whole precision: use "
                f"precision={self.param!r}, or Precision.of({self.param!r})"
            )
        check_choice("param of Precision", self.param, _PARAMETERS)
        for name, (allowed, reason) in _MOMENTS.items():
            given = getattr(self, name)
            if given in _REMOVED:
                raise ValueError(
                    f"{name}={given!r}: moments in blocks of 8-bit numbers were an experiment and "
                    "were removed; use 'ratio8' for exp_avg and 'ue6m2' for exp_avg_sq "
                    "(precision='8bit'), and mcf.optim.load_converted for checkpoints"
                )
            if given in STORAGES and given not in allowed:
                known = ", ".join(map(repr, allowed))
                raise ValueError(f"{name}={given!r}: {reason}; allowed are {known}")
            check_choice(name, given, allowed)
        check_choice("rounding", self.rounding, ("nearest", "stochastic"))
        validation.flag("feedback", self.feedback)
        if self.rounding == "stochastic" and self.param not in _STOCHASTIC:
            raise ValueError(
                f"rounding='stochastic' with param={self.param!r}, which keeps float32 exactly; "
                f"allowed are {', '.join(map(repr, _STOCHASTIC))}"
            )
        if self.feedback and self.param != "single":
            raise ValueError(
                f"feedback=True with param={self.param!r}, which stores what rounding to one "
                "component loses; allowed is 'single'"
            )

    @property
    def strategy(self) -> Strategy:
        """The strategy that optimizers use for this precision."""
        words = [self.param, self.exp_avg, self.exp_avg_sq]
        words += ["stochastic"] * (self.rounding == "stochastic") + ["feedback"] * self.feedback
        return named(
            Strategy(
                "_".join(words),
                STORAGES[self.param],
                STORAGES[self.exp_avg],
                STORAGES[self.exp_avg_sq],
                self.rounding == "stochastic",
                self.feedback,
            )
        )

    def __str__(self) -> str:
        return self.strategy.name

    @property
    def bytes_per_param(self) -> float:
        """Bytes of parameter, 16-bit gradient and two moments."""
        found = (
            STORAGES[self.param].parameter_bytes,
            STORAGES[self.exp_avg].first_bytes,
            STORAGES[self.exp_avg_sq].second_bytes,
        )
        return 4 + sum(n for n in found if n is not None)

    @classmethod
    def of(cls, precision: str) -> Precision:
        """Return the precision with a name, or from its joined parts.

        Raises:
            ValueError: for any other string.
        """
        if precision in STRATEGIES:
            s = STRATEGIES[precision]
            rounding = "stochastic" if s.stochastic else "nearest"
            return cls(s.param.name, s.first.name, s.second.name, rounding, s.feedback)
        found = parts(precision)
        if found is None:
            check_choice("precision", precision, STRATEGIES)
            raise AssertionError("no precision")
        return found


def parts(precision: Any) -> Precision | None:
    """Return the precision whose parts are joined in a string; None for another string.

    Raises:
        ValueError: for incompatible parts.
    """
    words = precision.split("_") if isinstance(precision, str) else []
    if len(words) < 3 or words[0] not in _PARAMETERS or set(words[3:]) - {"stochastic", "feedback"}:
        return None
    rounding = "stochastic" if "stochastic" in words[3:] else "nearest"
    return Precision(words[0], words[1], words[2], rounding, "feedback" in words[3:])


def check_composed(precision: Any, named: tuple[str, ...], custom: bool, optimizer: str) -> None:
    """Raise for a precision that is neither in `named` nor a valid composition.

    Args:
        precision: the precision to check.
        named: the names that the optimizer allows.
        custom: whether it allows composed ones.
        optimizer: its name.
    """
    # The value may be unhashable.
    known = precision in tuple(STRATEGIES)
    composed = None if known or not custom else parts(precision)
    if known and custom:
        allowed = ", ".join(map(repr, named))
        raise ValueError(
            f"precision={precision!r} {_reason(STRATEGIES[precision], optimizer)}; allowed are "
            f"{allowed}"
        )
    if composed is None:
        check_choice("precision", precision, named)
    elif composed.strategy.narrow and not _codes_fit(composed, named):
        more = " and 'se5m2'" if "8bit" in named and "plus" not in named else ""
        raise ValueError(
            f"precision={precision!r} keeps moments as codes that need a second moment, which "
            f"{optimizer} has not; allowed are 'single', "
            f"'float32' and 'stochastic'{more} for exp_avg"
        )
    elif composed.exp_avg == "ratio4" and "4bit" not in named:
        raise ValueError(
            f"precision={precision!r} keeps a first moment in 4 bits, and {optimizer} has none"
        )
    elif composed.exp_avg == "se5m2" and "plus" in named:
        raise ValueError(
            f"precision={precision!r} keeps a first moment by itself in 8 bits, and {optimizer} "
            "has a second one that it can be relative to, which is better; allowed are 'ratio8' "
            "and 'ratio4' for exp_avg"
        )
    elif composed.feedback and "eco" not in named:
        raise ValueError(
            f"precision={precision!r} feeds rounding errors back, which needs a first moment "
            f"that the update of {optimizer} is a multiple of; allowed is "
            "feedback=False"
        )


def _reason(strategy: Strategy, optimizer: str) -> str:
    """Return why an optimizer lacks a strategy that others have."""
    if strategy.feedback:
        return (
            "feeds rounding errors into a first moment that the update is a multiple of, which "
            f"{optimizer} has not"
        )
    if strategy.packed:
        return f"keeps a first moment in 4 bits, which needs a second one; {optimizer} has not both"
    if strategy.narrow:
        return f"keeps moments as codes that need a second moment, which {optimizer} has not"
    reason = f"stores a second moment in more bits, and {optimizer} has none"
    return f"{reason}: 'light' is the same here" if strategy.name == "plus" else reason


def _codes_fit(composed: Precision, named: tuple[str, ...]) -> bool:
    """Return whether an optimizer that allows `named` has the moments that these codes need."""
    # Only optimizers with second moments have "plus".
    return "8bit" in named and ("plus" in named or not composed.exp_avg.startswith("ratio"))


@functools.cache
def strategy_of(precision: str) -> Strategy:
    """Return the strategy of a precision that has been checked."""
    return STRATEGIES.get(precision) or Precision.of(precision).strategy


def by_name(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group in which a `Precision` is replaced by its name."""
    given = group.get("precision")
    return {**group, "precision": str(given)} if isinstance(given, Precision) else group
