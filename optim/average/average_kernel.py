"""The formula and the kernel by which an average of weights takes the weight of one more step."""

from __future__ import annotations

import functools

import torch

from mcf.kernels.algorithms.primitives import ZERO, rn
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP16, INT8, INT16, Format
from mcf.kernels.formats import FORMATS as _NUMBERS
from mcf.optim.step.opaque_operator import registered
from mcf.optim.storage.base import Storage
from mcf.optim.storage.slots import accumulate, param_components, param_value

# The formats in which weights are stored.
FORMATS: dict[torch.dtype, Format] = {**_NUMBERS, torch.int16: INT16, torch.int8: INT8}


def average(param, param_lo, average, average_lo, weight):
    """a <- a + c (w - a), for a weight w as it is stored.

    c = 1 - decay makes an exponential average, c = 1 / n the mean of n weights, c = 1 a copy.
    """
    hi, lo = param_components(param, param_lo)
    distance = rn(rn(hi - average) + rn(lo - average_lo))
    return accumulate(average, average_lo, rn(weight * distance))


def both_components(hi, lo):
    """Return both components of a parameter, without rounding either away."""
    return hi, lo


def one_component(hi, lo):
    """Return a parameter that is read as one number, and 0."""
    return param_value(hi, lo), ZERO


@functools.cache
def kernel(
    weights: Storage, stored: tuple[Format, ...], averages: Storage, component: Format
) -> Elementwise:
    """Return the kernel of averages of weights with one storage.

    Args:
        weights: the storage of the weights.
        stored: the formats of the tensors that `weights` reads, one or two.
        averages: the storage of the averages.
        component: the format of the averages' components.
    """
    wide = component in (BF16, FP16)
    kept = tuple(averages.moment("average", component))
    read = ("param", "param_lo")[: len(stored)]
    possible = ("average_lo", "param_lo")
    names = [f.name for f in stored]
    return registered(
        Elementwise(
            name="_".join(["average", weights.name, *names, averages.name, component.name]),
            function=average,
            results=("average", "average_lo"),
            fields=(
                *(Field(name, component, written=True) for name in kept),
                *(Field(name, fmt) for name, fmt in zip(read, stored, strict=True)),
            ),
            stores=tuple((name, name) for name in kept),
            arithmetic=max((component, *stored), key=lambda f: f.register.p).register,
            roundings=(("rc", component),),
            scalars=("weight",),
            absent=tuple(n for n in possible if n not in (*kept, *read)),
            rounded=("average",) if averages.split else (),
            slots=(
                ("accumulate", averages.accumulate(not wide, wide, False)),
                ("param_value", weights.loaded(False)),
                ("param_components", both_components if weights.has_low else one_component),
            ),
        )
    )
