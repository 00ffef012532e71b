"""Scalars that follow from the number of the step: computed by the host, or where the count is.

A rule says them once (`mcf.optim.rules.coefficients`). The host binds the formulas to Python's
floats; for a count that only the device knows they are two small kernels, one for the powers and
one for the rest, whose elements are the parameters of a group. The bits are the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mcf.kernels import host
from mcf.kernels.algorithms import powers
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import FP64
from mcf.optim.operator import registered, update_

# Larger counts are taken for it: the last that a float64 counts.
MOST = 2**53 - 1


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """Some scalars of a rule.

    Args:
        function: the formula; see `mcf.optim.rules.coefficients` for its parameters.
        results: the names of the scalars that it returns; `new_x` for a number x of the rule.
    """

    function: Algorithm
    results: tuple[str, ...]

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """What the formula reads."""
        return parameters(self.function)


@functools.cache
def raised(some: tuple[Coefficients, ...]) -> tuple[str, ...]:
    """The hyperparameters that any of these raise to the count, each once."""
    names = (p for c in some for p in c.parameters if p.startswith("power_"))
    return tuple(dict.fromkeys(n.removeprefix("power_").removesuffix("_lo") for n in names))


def on_host(
    some: tuple[Coefficients, ...], known: Mapping[str, float], count: int
) -> dict[str, float]:
    """The scalars for one number of the step.

    Args:
        some: whose scalars.
        known: hyperparameters, and the rule's numbers before the step.
        count: the number of the step.
    """
    values: dict[str, float] = {**known, "step": float(min(count, MOST))}
    power = host.bind(powers.power)
    for name in raised(some):
        low = known.get(f"{name}_lo", 0.0)
        values[f"power_{name}"], values[f"power_{name}_lo"] = power(
            known[name], low, values["step"]
        )
    found: dict[str, float] = {}
    for each in some:
        results = host.bind(each.function)(*(values[p] for p in each.parameters))
        found.update(zip(each.results, results, strict=True))
    return found


def on_device(
    some: tuple[Coefficients, ...], known: Mapping[str, Tensor], counts: Tensor
) -> dict[str, Tensor]:
    """The scalars for many parameters, without reading anything back.

    Args:
        some: whose scalars.
        known: as for `on_host`, float64 tensors of one element or of one for each parameter.
        counts: the numbers of their steps, float64 [parameters].

    Returns:
        A float64 tensor [parameters] for each scalar.
    """
    values = {name: t.expand(counts.shape) for name, t in known.items()}
    values["step"] = counts
    names = raised(some)
    if names:
        nothing = torch.zeros_like(counts)
        bases = [torch.stack([values[n], values.get(f"{n}_lo", nothing)]) for n in names]
        high, low = torch.stack(bases).unbind(1)
        result = torch.empty(2, *high.shape, dtype=torch.float64, device=counts.device)
        every = counts.expand(high.shape)
        row = [t.reshape(-1) for t in (high, low, every, *result.unbind())]
        _run(POWER, row)
        for n, pair in zip(names, result.unbind(1), strict=True):
            values[f"power_{n}"], values[f"power_{n}_lo"] = pair.unbind()
    found: dict[str, Tensor] = {}
    for each in some:
        read = torch.stack([values[p] for p in each.parameters]).unbind()
        results = [torch.empty_like(counts) for _ in each.results]
        _run(kernel(each), [*read, *results])
        found.update(zip(each.results, results, strict=True))
    return found


def _run(spec: Elementwise, row: Sequence[Tensor]) -> None:
    update_(spec, [row], torch.zeros(1, 0, dtype=torch.float64, device="cpu"))


def _elementwise(name: str, function: Algorithm, results: tuple[str, ...]) -> Elementwise:
    return registered(
        Elementwise(
            name=name,
            function=function,
            results=results,
            fields=(
                *(Field(p, FP64) for p in parameters(function)),
                *(Field(f"to_{r}", FP64, read=False, written=True) for r in results),
            ),
            stores=tuple((r, f"to_{r}") for r in results),
            arithmetic=FP64,
            roundings=(("rc", FP64),),
            few=True,
        )
    )


POWER = _elementwise("power", powers.power, ("power", "power_lo"))


@functools.cache
def kernel(some: Coefficients) -> Elementwise:
    """The kernel that computes them for many parameters."""
    return _elementwise(f"coefficients_{some.function.__name__}", some.function, some.results)
