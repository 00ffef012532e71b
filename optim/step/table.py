"""The scalars of a step, computed by the CPU from its step counts, or on a device.

A rule defines its scalars once, as formulas (`mcf.optim.rule.rule.Coefficients`). The CPU binds
them to Python floats. For counts on a device they become two small kernels, one for the powers and
one for the rest, whose elements are the parameters of a bucket. The bits are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import host, streams
from mcf.kernels.algorithms import powers
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Elementwise, Field, parameters
from mcf.kernels.formats import FP64
from mcf.kernels.tables import table_of, to_device
from mcf.optim.parameters import randomness
from mcf.optim.rule.rule import Coefficients
from mcf.optim.step.bucket import Bucket, Group, Request
from mcf.optim.step.opaque_operator import registered, update_

# Larger counts are replaced by it: the largest for which float64 has every integer.
MOST = 2**53 - 1

# The scalar state of a parameter: the number of steps, the rule's numbers, and its shape if the
# rule is `shaped`.
At = tuple[Any, ...]


class Table(NamedTuple):
    """Scalars for an opaque operator.

    Args:
        values: float64 [rows, scalars], with trailing `streams.COLUMNS` if random numbers are
            drawn.
        live: one number on the rows' device that is 0 if the step is skipped, or None.
        first: the index of each parameter's first element, if it is not in the table.
        params: the parameters of the rows.
    """

    values: Tensor
    live: Tensor | None = None
    first: Sequence[int] = ()
    params: Sequence[Tensor] = ()


def by_host(bucket: Bucket, names: Sequence[str], before: Sequence[At]) -> tuple[Any, list[At]]:
    """Return the scalars of parameters with some scalar states, and these states after the step.

    Returns:
        A float64 NumPy array [parameters, names], and the new scalar states.

    Raises:
        ValueError, TypeError: for hyperparameters that are not numbers.
    """
    rule, shaped = bucket.rule, bucket.rule.shaped
    given = bucket.hyper.given(float)
    lines: dict[At, list[float]] = {}
    after: dict[At, At] = {}
    for at in before:
        if at in lines:
            continue
        count, *numbers, shape = at
        known = {**given, **bucket.hyper.of_shape(shape)} if shaped else given
        known = known | {name: x for (name, _), x in zip(rule.numbers, numbers, strict=True)}
        scalars = {**known, **on_host(bucket.computed, known, count + 1)}
        lines[at] = [scalars[name] for name in names]
        after[at] = (
            count + rule.counted,
            *(scalars[f"new_{name}"] for name, _ in rule.numbers),
            shape,
        )
    if len(lines) == 1:
        table = np.array([lines[before[0]]]).repeat(len(before), 0)
    else:
        table = np.array([lines[at] for at in before])
    return table.reshape(len(before), -1), [after[at] for at in before]


def scaled(table: Tensor, names: Sequence[str], number: float | Tensor) -> Tensor:
    """Return a table of scalars with its column `grad_scale` multiplied by a number.

    It is moved to the number's device if that is a GPU; the CPU does not wait for it.
    """
    if isinstance(number, Tensor) and number.is_cuda and not table.is_cuda:
        table = table.pin_memory().to(number.device, non_blocking=True)
    if isinstance(number, Tensor) or number != 1:
        table[:, list(names).index("grad_scale")] *= number
    return table


class ByDevice:
    """The scalars for step counts on a device; nothing is read from it."""

    def __init__(
        self,
        bucket: Bucket,
        request: Request,
        entries: Sequence[Group],
        scale: float | Tensor,
        live: bool | Tensor,
    ) -> None:
        """Compute scalars; `live`: whether the step is taken, `scale`: the factor of gradients."""
        rule, hyper = bucket.rule, bucket.hyper
        self._bucket, self._request = bucket, request
        self._params = [p for _, p in bucket.named]
        self._entries = entries
        device = self._params[0].device
        self._live: Tensor | None = None
        one: int | Tensor = 1
        if isinstance(live, Tensor):
            one = self._live = live.to(device, torch.int64).reshape(())
        self._counts = _gathered(entries, "step", torch.int64, device) + one
        before = {n: _gathered(entries, n, torch.float64, device) for n, _ in rule.numbers}
        known = _on_device(hyper.given(reader(device)), device)
        if isinstance(scale, Tensor) or scale != 1:
            known["grad_scale"] = known["grad_scale"] * _tensor(scale, device)
        if rule.shaped:
            rows = [hyper.of_shape(tuple(p.shape)) for p in self._params]
            for name in rows[0]:
                known[name] = _tensor([row[name] for row in rows], device)
        counts = self._counts.clamp(max=MOST).double()
        made = on_device(bucket.computed, {**known, **before}, counts)
        self._columns = {**known, **made}
        self._after = {
            n: made[f"new_{n}"]
            if self._live is None
            else torch.where(self._live != 0, made[f"new_{n}"], before[n])
            for n, _ in rule.numbers
        }

    def table(self, names: Sequence[str], random: bool) -> Table:
        """Return the columns of some names."""
        shape = self._counts.shape
        columns = [self._columns[name].expand(shape) for name in names]
        first: list[int] = []
        if random:
            mine = table_of([self._request.streams[p] for p in self._params], torch.int64)
            here = to_device(mine, self._counts.device)
            seed = self._bucket.hyper.options["seed"]
            columns.append(streams.key(seed, self._counts, here).double())
            # The index of the first element is passed separately.
            columns.append(torch.zeros_like(columns[-1]))
            first = [randomness.index_offset(p) for p in self._params]
        return Table(torch.stack(columns, 1), self._live, first, self._params)

    def finish(self) -> None:
        """Count the step and store the rule's numbers, after the kernels."""
        counted = {"step": self._counts} if self._bucket.rule.counted else {}
        for name, after in {**counted, **self._after}.items():
            for entry in self._entries:
                if entry[name].device != after.device:
                    # The CPU has counted until now.
                    entry[name] = torch.empty_like(entry[name], device=after.device)
            torch._foreach_copy_([e[name] for e in self._entries], list(after.unbind()))


def reader(device: torch.device) -> Any:
    """Return a function that converts hyperparameters to floats, except tensors on the device."""

    def read(value: Any) -> Any:
        there = isinstance(value, Tensor) and value.device.type == device.type
        return value if there else float(value)

    return read


def _on_device(known: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Move numbers, in one copy, and tensors of one element to a device as float64."""
    numbers = {name: x for name, x in known.items() if not isinstance(x, Tensor)}
    there = _tensor(list(numbers.values()), device)
    found = dict(zip(numbers, there.unbind(), strict=True))
    rest = {name: _tensor(x, device) for name, x in known.items() if name not in found}
    return {**found, **rest}


def _tensor(x: Any, device: torch.device) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().reshape(()).to(device, torch.float64)
    return to_device(table_of(x), device)


def _gathered(
    entries: Sequence[dict[str, Any]], name: str, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return one scalar of each state, on the device."""
    return torch.stack([to_device(e[name].reshape(1), device).reshape(()) for e in entries])


@functools.cache
def raised(some: tuple[Coefficients, ...]) -> tuple[str, ...]:
    """Return the hyperparameters whose power with the step count is needed, each once."""
    names = (p for c in some for p in c.parameters if p.startswith("power_"))
    return tuple(dict.fromkeys(n.removeprefix("power_").removesuffix("_lo") for n in names))


def on_host(
    some: tuple[Coefficients, ...], known: Mapping[str, float], count: int
) -> dict[str, float]:
    """Return the scalars for one step number.

    Args:
        some: the coefficients to compute.
        known: hyperparameters, and the rule's numbers before the step.
        count: the step number.
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
    """Return the scalars for many parameters, without reading anything back.

    Args:
        some: the coefficients to compute.
        known: as for `on_host`, float64 tensors of one element or of one for each parameter.
        counts: the parameters' step numbers, float64 [parameters].

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
    """Return the kernel that computes coefficients for many parameters."""
    return _elementwise(f"coefficients_{some.function.__name__}", some.function, some.results)
