"""Wrong optimizers that the tests must reject."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mcf.kernels.algorithms import grow
from mcf.kernels.algorithms.primitives import fms, rn
from mcf.optim import AdamW
from mcf.optim.storage.strategies import Arithmetic


def aliased_product(b, db, hi, lo):
    """A product in place, whose result is its own input: what a released implementation does.

    Its error is that of (b hi) b, and Fast2Sum subtracts the new high word from itself, so the low
    word is added to the high one and kept as well.
    """
    hi = rn(b * hi)
    error = fms(b, hi, hi)
    lo = rn(rn(rn(b * lo) + rn(db * hi)) + error)
    return rn(hi + lo), lo


def aliased_decay(hi, lo, beta, beta_lo, increment):
    hi, lo = aliased_product(beta, beta_lo, hi, lo)
    return grow(hi, lo, increment)


class Aliased(Arithmetic):
    """Strict `plus` with the product above."""

    def slots(self) -> dict[str, Any]:
        return {**super().slots(), "decay_and_add": aliased_decay}


class AliasedAdamW(AdamW):
    def _arithmetic(self, group: dict[str, Any], p: Tensor, where: str) -> Arithmetic:
        right = super()._arithmetic(group, p, where)
        return Aliased(right.strategy, right.component, right.strict)
