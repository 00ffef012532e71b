"""Storage formats put together by the user."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from mcf.optim import eight_bits, validation
from mcf.optim.strategies import STRATEGIES, Storage, Strategy

_NAMES = {
    "single": Storage.SINGLE,
    "kahan": Storage.KAHAN,
    "pair": Storage.PAIR,
    "split16": Storage.SPLIT16,
    "split8": Storage.SPLIT8,
    "float32": Storage.WIDE,
    "fp8": Storage.FP8,
    "fp8x2": Storage.FP8_PAIR,
    "e5m2": Storage.E5M2,
    "e5m2x2": Storage.E5M2_PAIR,
}
_WORDS = {storage: name for name, storage in _NAMES.items()}
# What a parameter may be, and the bytes beside those of the 16-bit parameter itself.
_MORE = {"single": 0, "kahan": 2, "pair": 2, "split16": 2, "split8": 1, "float32": 4}

_EIGHT_BITS = ("fp8", "fp8x2", "e5m2", "e5m2x2")

_MOMENTS = {
    "exp_avg": (
        ("single", "float32", *_EIGHT_BITS),
        "it forgets in 1 / (1 - beta1) steps, so little is lost that a low word could keep",
    ),
    "exp_avg_sq": (
        ("single", "pair", "float32", "fp8x2", "e5m2x2"),
        "it takes shares of 1 - beta2, which a number of 8 bits loses, and only positive ones",
    ),
}


@dataclasses.dataclass(frozen=True)
class Precision:
    """How each tensor of an optimizer is stored, for a 16-bit parameter.

        AdamW(params, precision=Precision(param="pair", exp_avg="float32", exp_avg_sq="pair"))

    Args:
        param: `"single"` (the 16-bit parameter alone), `"kahan"` or `"pair"` (and a low word),
            `"split16"` or `"split8"` (and that many further bits; bf16 only), `"float32"` (and a
            float32 copy).
        exp_avg: storage of the first moment or momentum buffer, `"single"` or `"float32"`; as an
            experiment `"fp8"` or `"fp8x2"`, one or two e4m3 numbers with a scale for each block,
            `"e5m2"` or `"e5m2x2"`, the same of e5m2.
        exp_avg_sq: storage of the second moment, `"single"`, `"pair"` or `"float32"`, or as an
            experiment `"fp8x2"` or `"e5m2x2"`. Without an effect for rules that have none.
        rounding: `"nearest"`, or `"stochastic"` for the last word of a bf16 parameter.
        feedback: whether the parameter's rounding error goes into the first moment (ECO).

    `str()` is what parameter groups and checkpoints keep: the name of the precision that is so
    composed (`"plus"`), or the parts joined (`"pair_float32_pair"`), which optimizers take too.

    Raises:
        ValueError: for a name that is not known, or parts that do not go together, with the reason.
    """

    param: str = "single"
    exp_avg: str = "single"
    exp_avg_sq: str = "single"
    rounding: str = "nearest"
    feedback: bool = False

    def __post_init__(self) -> None:
        """Check the parts and that they go together."""
        if self.param in _EIGHT_BITS:
            raise ValueError(
                f"param={self.param!r}: weights take small updates that 8 bits lose; allowed are "
                f"{', '.join(map(repr, _MORE))}"
            )
        validation.choice("param", self.param, _MORE)
        for name, (allowed, reason) in _MOMENTS.items():
            given = getattr(self, name)
            if given in _NAMES and given not in allowed:
                known = ", ".join(map(repr, allowed))
                raise ValueError(f"{name}={given!r}: {reason}; allowed are {known}")
            validation.choice(name, given, allowed)
        validation.choice("rounding", self.rounding, ("nearest", "stochastic"))
        validation.flag("feedback", self.feedback)
        if self.rounding == "stochastic" and self.param not in ("single", "kahan", "pair"):
            raise ValueError(
                f"rounding='stochastic' with param={self.param!r}, whose last word is not bf16; "
                "allowed are 'single', 'kahan', 'pair'"
            )
        if self.feedback and self.param != "single":
            raise ValueError(
                f"feedback=True with param={self.param!r}, which stores what rounding to one "
                "component loses; allowed is 'single'"
            )

    @property
    def strategy(self) -> Strategy:
        """The same, as optimizers use it."""
        found = Strategy(
            "_".join(
                [self.param, self.exp_avg, self.exp_avg_sq]
                + ["stochastic"] * (self.rounding == "stochastic")
                + ["feedback"] * self.feedback
            ),
            _NAMES[self.param],
            _NAMES[self.exp_avg],
            _NAMES[self.exp_avg_sq],
            self.rounding == "stochastic",
            self.feedback,
        )
        for named in STRATEGIES.values():
            if dataclasses.replace(found, name=named.name) == named:
                return named
        return found

    def __str__(self) -> str:
        return self.strategy.name

    @property
    def bytes_per_param(self) -> float:
        """Bytes of parameter, 16-bit gradient and two moments."""
        moments: dict[str, float] = {"single": 2, "pair": 4, "float32": 4}
        for name in _EIGHT_BITS:
            moments[name] = len(_NAMES[name].codes) + 1 / eight_bits.BLOCK
        return 4 + _MORE[self.param] + moments[self.exp_avg] + moments[self.exp_avg_sq]

    @classmethod
    def of(cls, precision: str) -> Precision:
        """The parts of a precision, from its name or its parts joined.

        Raises:
            ValueError: for a string that is neither.
        """
        if precision in STRATEGIES:
            s = STRATEGIES[precision]
            rounding = "stochastic" if s.stochastic else "nearest"
            return cls(_WORDS[s.param], _WORDS[s.first], _WORDS[s.second], rounding, s.feedback)
        found = parts(precision)
        if found is None:
            validation.choice("precision", precision, STRATEGIES)
            raise AssertionError("no precision")
        return found


def parts(precision: Any) -> Precision | None:
    """The precision whose parts are joined in a string; None for another string.

    Raises:
        ValueError: for parts that do not go together.
    """
    words = precision.split("_") if isinstance(precision, str) else []
    if len(words) < 3 or words[0] not in _MORE or set(words[3:]) - {"stochastic", "feedback"}:
        return None
    rounding = "stochastic" if "stochastic" in words[3:] else "nearest"
    return Precision(words[0], words[1], words[2], rounding, "feedback" in words[3:])


@functools.cache
def strategy_of(precision: str) -> Strategy:
    """The strategy of a precision that was checked."""
    return STRATEGIES.get(precision) or Precision.of(precision).strategy


def by_name(group: dict[str, Any]) -> dict[str, Any]:
    """A group in which a `Precision` is replaced by its name."""
    given = group.get("precision")
    return {**group, "precision": str(given)} if isinstance(given, Precision) else group
