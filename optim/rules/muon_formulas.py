"""The formulas of Muon's step (Jordan et al. 2024) and the kernels of its two halves."""

from __future__ import annotations

import functools

from mcf.kernels import algorithms, streams
from mcf.kernels.algorithms.primitives import ONE, neg, rn
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.formats import BF16, FP64, Format
from mcf.optim.rule.rule import Rule
from mcf.optim.rule.terms import param_terms
from mcf.optim.step.kernel import GradientForm
from mcf.optim.step.opaque_operator import registered
from mcf.optim.storage.arithmetic import Arithmetic
from mcf.optim.storage.base import Coding
from mcf.optim.storage.slots import accumulate, ahead, param_value, scaled_gradient


def muon_momentum(
    grad, grad_lo, momentum_buffer, grad_scale, grad_limit, momentum, one_minus_momentum
):
    """The new buffer and the matrix to orthogonalise.

    b <- momentum b + (1 - momentum) g;  the matrix is b, or (1 - momentum) g + momentum b
    (Nesterov), as torch has it.
    """
    gradient = scaled_gradient(grad, grad_lo, grad_scale, grad_limit)
    fresh = rn(one_minus_momentum * gradient)
    momentum_buffer = rn(rn(momentum * momentum_buffer) + fresh)
    return momentum_buffer, ahead(fresh, momentum_buffer, momentum)


def plain_ahead(fresh, buffer, momentum):
    """b."""
    return buffer


def nesterov_ahead(fresh, buffer, momentum):
    """(1 - momentum) g + momentum b, where fresh is (1 - momentum) g."""
    return rn(fresh + rn(momentum * buffer))


def muon(param, param_lo, grad, lr, adjustment, weight_decay):
    """The new parameter and its update; `grad` is the orthogonalised matrix O.

    p <- p - lr (adjustment O + weight_decay p).
    """
    decay = rn(weight_decay * param_value(param, param_lo))
    update = neg(rn(lr * rn(rn(adjustment * grad) + decay)))
    param, param_lo = accumulate(param, param_lo, update)
    return param, param_lo, update


def complement(momentum):
    """1 - mu."""
    return (rn(ONE - momentum),)


# The second half of a step, which neither reads nor writes the buffer.
UPDATE = Rule(
    name="muon",
    function=muon,
    results=("param", "param_lo", "update"),
    metrics=param_terms,
    metric_count=3,
    decoupled=True,
    shaped=True,
)


def momentum_kernel(arith: Arithmetic, form: GradientForm, nesterov: bool) -> Elementwise:
    """The first half of a step: the buffer, and the matrix to orthogonalise in a tensor."""
    first = arith.strategy.first
    how = first.stochastic, first.coding
    return _momentum_kernel(arith.format, arith.first_moment, form, nesterov, *how)


@functools.cache
def _momentum_kernel(
    arithmetic: Format,
    stored: Format,
    form: GradientForm,
    nesterov: bool,
    stochastic: bool,
    coding: Coding | None,
) -> Elementwise:
    words = ["muon_nesterov" if nesterov else "muon_momentum", arithmetic.name, stored.name]
    words += ["stochastic"] if stochastic else []
    rounding = algorithms.stochastic if stochastic and coding is None else None
    buffer = Field("momentum_buffer", stored, written=True, rounding=rounding, draw="first")
    codes = [] if coding is None else [Code(buffer.name, coding.decode, coding.encode)]
    return registered(
        Elementwise(
            name="_".join(words) + form.suffix(stored),
            function=muon_momentum,
            results=("momentum_buffer", "direction"),
            fields=(
                Field("grad", form.format),
                *([Field("grad_lo", form.format)] if form.paired else []),
                buffer,
                Field("direction", arithmetic, read=False, written=True),
            ),
            stores=(("momentum_buffer", "momentum_buffer"), ("direction", "direction")),
            arithmetic=arithmetic,
            scalars=("grad_scale", "momentum", "one_minus_momentum")
            + (("grad_limit",) if form.clipped else ())
            + (streams.SCALARS if stochastic else ()),
            absent=(() if form.paired else ("grad_lo",))
            + (() if form.clipped else ("grad_limit",)),
            rounded=("momentum_buffer", "direction") if stored == arithmetic else ("direction",),
            slots=(
                ("scaled_gradient", form.slot),
                ("ahead", nesterov_ahead if nesterov else plain_ahead),
            ),
            codes=tuple(codes),
        )
    )


def orthogonal_format(component: Format) -> Format:
    """What the orthogonalised matrix is read from: bf16, or float64 for float64 parameters."""
    return FP64 if component == FP64 else BF16
