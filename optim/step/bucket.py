"""The request for a step: buckets of parameters, and the settings common to all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mcf.optim.parameters import entries, expansions, randomness
from mcf.optim.rule.rule import Coefficients, Rule
from mcf.optim.sharding import shards
from mcf.optim.sharding.processes import Across, every, everyone
from mcf.optim.step import gradient_scaling
from mcf.optim.step.kernel import GradientForm, states
from mcf.optim.storage.strategies import Arithmetic

Group = dict[str, Any]
# A parameter, after its name for error messages.
Named = tuple[str, Tensor]


class Hyperparameters(Protocol):
    """The hyperparameters of a group, which are read in every step."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The group's present options."""

    def given(self, read: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the scalars of the rule, and whatever else its coefficients read.

        `read` converts each value that may be a tensor; on the CPU it is `float`.

        Raises:
            ValueError, TypeError: for values that are not numbers.
        """

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        """Return the scalars that depend on a parameter's shape, if the rule is `shaped`."""

    def ask_the_same(self) -> bool:
        """Return whether the group still needs the rule and the arithmetic of the bucket.

        It may raise the errors of the full checks.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters of one group that one kernel can step.

    Args:
        index: the group's index.
        rule: the update rule.
        arithmetic: the precision strategy on the parameters' dtype.
        form: how the kernel reads the gradient.
        hyper: the hyperparameters.
        named: the parameters, each after its name for error messages.
    """

    index: int
    rule: Rule
    arithmetic: Arithmetic
    form: GradientForm
    hyper: Hyperparameters
    named: Sequence[Named]

    @functools.cached_property
    def computed(self) -> tuple[Coefficients, ...]:
        """The coefficients that the rule computes for each step."""
        return self.rule.computed(self.arithmetic)

    def of(self, named: Sequence[Named]) -> Bucket:
        """Return this bucket with some of its parameters only."""
        return dataclasses.replace(self, named=named)


@dataclasses.dataclass(eq=False)
class Request:
    """The request for one step.

    Args:
        groups: the parameter groups; a step that repeats the last one has the same.
        counted: the groups that determine each parameter's random numbers.
        state: the states of parameters.
        lows: second components of gradients.
        gradients: the settings of unscaling, clipping and checks.
        terms: the number of metrics' terms of each group; None if metrics are not tracked.
        collect: checks all parameters with gradients and returns their buckets, without parameters
            whose ids are in its argument.
        only: the one parameter that is stepped; None for all.
    """

    groups: Sequence[Group]
    counted: Sequence[Group]
    state: MutableMapping[Any, Any]
    lows: Mapping[Tensor, Tensor]
    gradients: gradient_scaling.Settings
    terms: Sequence[int] | None
    collect: Callable[[Container[int]], list[Bucket]]
    only: Tensor | None = None

    @functools.cached_property
    def streams(self) -> dict[Tensor, int]:
        """The number of each parameter's stream of random numbers."""
        return randomness.stream_numbers(self.counted)

    @functools.cached_property
    def places(self) -> dict[Tensor, int]:
        """The index of each parameter among all."""
        return {p: k for k, p in enumerate(p for g in self.counted for p in g["params"])}

    @functools.cached_property
    def sharers(self) -> list[Across]:
        """All groups of processes that share any requested parameter."""
        return every(self._asked)

    @functools.cached_property
    def everyone(self) -> list[Across]:
        """All groups of processes that have any requested parameter, replicas among them."""
        return everyone(self._asked)

    @property
    def _asked(self) -> Iterable[Tensor]:
        return self.places if self.only is None else [self.only]

    def made(self, p: Tensor) -> Group:
        """Return a parameter's state; empty if only other software has entries there."""
        return entries.made_of(self.state, p)


@dataclasses.dataclass
class Row:
    """The tensors and state of one parameter in a step.

    Args:
        where: its name for error messages.
        p: the parameter.
        entry: its state, new if the optimizer has none.
        known: whether the optimizer already has the state.
        tensors: the kernel's operands: the local parts of parameter, gradient and states, each with
            its components.
        negated: whether the gradient is a copy of one that is lazily negated.
    """

    where: str
    p: Tensor
    entry: Group
    known: bool
    tensors: list[Tensor]
    negated: bool


def rows(bucket: Bucket, request: Request) -> list[Row]:
    """Return the rows of a bucket; new states are created but not yet stored."""
    names = tuple(states(bucket.rule, bucket.arithmetic))
    found = []
    for where, p in bucket.named:
        entry = request.made(p)
        known = bool(entry)
        if not known:
            capturable = bool(bucket.hyper.options["capturable"])
            entry = new_state(bucket.rule, bucket.arithmetic, p, capturable)
        # The kernel reads memory, where a lazily negated view has the opposite sign.
        given = gradient_scaling.components(p, request.lows)
        grads = tuple(g.resolve_neg() for g in given)
        tensors = expansions.row(p, grads, [entry[n] for n in names])
        found.append(Row(where, p, entry, known, tensors, any(g.is_neg() for g in given)))
    return found


def counted_by_device(bucket: Bucket, request: Request, live: bool | Tensor) -> bool:
    """Return whether the device counts the steps of a bucket."""
    if bucket.hyper.options["capturable"] or isinstance(live, Tensor):
        return True
    if any(isinstance(p, FakeTensor) and p.device.type == "cpu" for _, p in bucket.named):
        # Fake counts have no values; tracing or estimating a step needs none.
        return True
    found = (request.made(p) for _, p in bucket.named)
    return any(s and s["step"].device.type != "cpu" for s in found)


def new_state(rule: Rule, arithmetic: Arithmetic, p: Tensor, capturable: bool) -> Group:
    """Return a new state: zero moments, and the initial state next to a parameter."""
    home = p.device if capturable else torch.device("cpu")
    # An integer: a float32 counter stops at 2**24, a bf16 one at 256.
    state: Group = {"step": torch.zeros((), dtype=torch.int64, device=home)}
    for name, start in rule.numbers:
        state[name] = torch.full((), start, dtype=torch.float64, device=home)
    like, param = expansions.leading(p), arithmetic.strategy.param
    for name, fmt in states(rule, arithmetic).items():
        if name == param.hidden:
            here = param.start(like, arithmetic.component)
        else:
            made = like if fmt.packed == 1 else like.new_empty(fmt.shape(tuple(like.shape)))
            here = torch.zeros_like(made, dtype=fmt.dtype, memory_format=torch.preserve_format)
        state[name] = shards.like(p, here, fmt.shape(tuple(p.shape)))
    return state
