"""Error functions without, with the logarithm of and inverse to the exponential in them."""

from __future__ import annotations

from typing import Any

import torch

from mcf.elementary import fixed
from mcf.tensor.ops.constants import constant
from mcf.tensor.ops.elementary import Derivative, computed, differentiable
from mcf.tensor.registry import implements

aten = torch.ops.aten


def _special(name: str, derivative: Derivative) -> Any:
    """Register the function that torch.special has under a name of ours."""
    function = computed(name)
    ours = differentiable(name, function, derivative)
    implements(getattr(torch.special, name))(ours)
    implements(getattr(aten, f"special_{name}").default)(function)
    return ours


def _root(numerator: int, denominator: int) -> int:
    return fixed.root(fixed.quotient(numerator, denominator))


# For large x both terms are 2/sqrt(pi) and their difference 1/(sqrt(pi) x^2): it has the bits that
# the cancellation leaves, as torch's.
_erfcx: Any = _special("erfcx", lambda x: 2 * x * _erfcx(x) - constant(fixed.two_over_root_pi(), x))
# The density over the distribution function, whose exponentials cancel.
_special(
    "log_ndtr",
    lambda x: (
        constant(_root(2 * fixed.ONE, fixed.pi()), x)
        / _erfcx(-x * constant(fixed.root(fixed.ONE // 2), x))
    ),
)
_ndtri: Any = _special(
    "ndtri",
    lambda x: constant(fixed.root(2 * fixed.pi()), x) * torch.exp(_ndtri(x).square() / 2),
)
