"""What a step is asked for: buckets of parameters, and what is common to all of them."""

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
from mcf.optim.sharding.across import Across, every, everyone
from mcf.optim.step import gradient_scaling
from mcf.optim.step.kernel import GradientForm, states
from mcf.optim.storage.strategy_arithmetic import Arithmetic

Group = dict[str, Any]
# A parameter, after the words that name it in messages.
Named = tuple[str, Tensor]


class Hyperparameters(Protocol):
    """The hyperparameters of a group, which are read in every step."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The group's options as they are now."""

    def given(self, read: Callable[[Any], Any]) -> dict[str, Any]:
        """Scalars of the rule, and what else its coefficients read.

        Each that may be a tensor is taken by `read`: the host's is `float`.

        Raises:
            ValueError, TypeError: for those that are no numbers.
        """

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        """Scalars that depend on a parameter's shape, where the rule is `shaped`."""

    def ask_the_same(self) -> bool:
        """Whether the group still asks for the rule and the arithmetic of the bucket.

        May raise what the full checks raise.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters of one group that one kernel can step.

    Args:
        index: of the group.
        rule: the update rule.
        arithmetic: the precision strategy on the parameters' dtype.
        form: how the kernel finds the gradient.
        hyper: the hyperparameters.
        named: the parameters, each after the words that name it.
    """

    index: int
    rule: Rule
    arithmetic: Arithmetic
    form: GradientForm
    hyper: Hyperparameters
    named: Sequence[Named]

    @functools.cached_property
    def computed(self) -> tuple[Coefficients, ...]:
        """What the rule computes for each step."""
        return self.rule.computed(self.arithmetic)

    def of(self, named: Sequence[Named]) -> Bucket:
        """The same for some of the parameters."""
        return dataclasses.replace(self, named=named)


@dataclasses.dataclass(eq=False)
class Request:
    """What one step is asked for.

    Args:
        groups: the parameter groups; a step that repeats the last one has the same.
        counted: the groups that say which random numbers each parameter gets.
        state: the states of parameters.
        lows: second components of gradients.
        gradients: what is done to all of them before the rule.
        terms: where metrics are tracked, how many terms each group has; else None.
        collect: makes the buckets of all parameters with gradients, which it checks, but of those
            whose ids are in what it is given.
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
        return randomness.numbers(self.counted)

    @functools.cached_property
    def places(self) -> dict[Tensor, int]:
        """The place of each parameter among all."""
        return {p: k for k, p in enumerate(p for g in self.counted for p in g["params"])}

    @functools.cached_property
    def sharers(self) -> list[Across]:
        """All groups of processes that share any parameter that is asked for."""
        return every(self._asked)

    @functools.cached_property
    def everyone(self) -> list[Across]:
        """All processes that have any parameter that is asked for, replicas among them."""
        return everyone(self._asked)

    @property
    def _asked(self) -> Iterable[Tensor]:
        return self.places if self.only is None else [self.only]

    def made(self, p: Tensor) -> Group:
        """A parameter's state where there is one: what others keep there alone is none."""
        return entries.made_of(self.state, p)


@dataclasses.dataclass
class Row:
    """One parameter of a step.

    Args:
        where: names it.
        p: the parameter.
        entry: its state, which is new where the optimizer has none.
        known: whether the optimizer has it.
        tensors: of the kernel: what is here of the parameter, its gradient, its states; each with
            their components.
        negated: whether the gradient is a copy of one that is lazily negated.
    """

    where: str
    p: Tensor
    entry: Group
    known: bool
    tensors: list[Tensor]
    negated: bool


def rows(bucket: Bucket, request: Request) -> list[Row]:
    """The rows of a bucket; new states are made, and are nowhere yet."""
    names = tuple(states(bucket.rule, bucket.arithmetic))
    found = []
    for where, p in bucket.named:
        entry = request.made(p)
        known = bool(entry)
        if not known:
            capturable = bool(bucket.hyper.options["capturable"])
            entry = new_state(bucket.rule, bucket.arithmetic, p, capturable)
        # The kernel reads memory, where a lazily negated view has the other sign.
        given = gradient_scaling.components(p, request.lows)
        grads = tuple(g.resolve_neg() for g in given)
        tensors = expansions.row(p, grads, [entry[n] for n in names])
        found.append(Row(where, p, entry, known, tensors, any(g.is_neg() for g in given)))
    return found


def counted_by_device(bucket: Bucket, request: Request, live: bool | Tensor) -> bool:
    """Whether the steps of a bucket are counted where its parameters are."""
    if bucket.hyper.options["capturable"] or isinstance(live, Tensor):
        return True
    if any(isinstance(p, FakeTensor) and p.device.type == "cpu" for _, p in bucket.named):
        # The counts have no values, which those who trace or estimate a step do not ask for.
        return True
    found = (request.made(p) for _, p in bucket.named)
    return any(s and s["step"].device.type != "cpu" for s in found)


def new_state(rule: Rule, arithmetic: Arithmetic, p: Tensor, capturable: bool) -> Group:
    """Zero moments, and what begins beside a parameter."""
    home = p.device if capturable else torch.device("cpu")
    # An integer: a float32 counter stops at 2**24, a bf16 one at 256.
    state: Group = {"step": torch.zeros((), dtype=torch.int64, device=home)}
    for name, start in rule.numbers:
        state[name] = torch.full((), start, dtype=torch.float64, device=home)
    like, param = expansions.leading(p), arithmetic.strategy.param
    for name, fmt in states(rule, arithmetic).items():
        if name == param.hidden:
            here = param.start(like, like, arithmetic.component)
        else:
            made = like if fmt.packed == 1 else like.new_empty(fmt.shape(tuple(like.shape)))
            here = torch.zeros_like(made, dtype=fmt.dtype, memory_format=torch.preserve_format)
        state[name] = shards.like(p, here, fmt.shape(tuple(p.shape)))
    return state
