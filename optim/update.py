"""An update rule under a precision strategy, as one fused kernel."""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from mcf.kernels import streams
from mcf.kernels.algorithms import words
from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32, Format
from mcf.kernels.torch.registers import primitives
from mcf.optim import eight_bits
from mcf.optim.coefficients import Coefficients
from mcf.optim.operator import registered as registered
from mcf.optim.operator import update_ as update_
from mcf.optim.rules import gradient
from mcf.optim.strategies import Arithmetic, Storage


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule: its formula, and what the formula reads and returns by name.

    Args:
        name: for kernel names.
        function: the formula, an algorithm over the names below with slots left open.
        scalars: its scalars.
        results: the names of its results.
        metrics: the terms summed when metrics are tracked, and how many they are.
        metric_count: the number of terms.
        first: the state that is a first moment, or None.
        second: the state that is a second moment, or None.
        maximum: the state that is the largest second moment so far, stored like it, or None.
        numbers: states that are one number for each parameter, and what they start from; they are
            float64, where the count of steps is, and only scalars depend on them.
        absent: a state that the formula names but this variant does not store (momentum of 0).
        slots: what fills slots that the strategy leaves to the rule.
        decoupled: whether the weight decay is decoupled from the gradient, where no slot says it.
        feed_back: the first moment with the parameter's rounding error in it, for strategies that
            feed it back; None for a rule without.
        unused: states that other variants store; one that is there is left as it is.
        shaped: whether its scalars depend on the parameter's shape.
        coefficients: those of its scalars that are computed from hyperparameters and the number of
            the step, and its numbers after the step.
        feedback: the same for the scalar `feedback`, where rounding errors are fed back.
    """

    name: str
    function: Algorithm
    scalars: tuple[str, ...]
    results: tuple[str, ...]
    metrics: Algorithm
    metric_count: int
    first: str | None = None
    second: str | None = None
    maximum: str | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    absent: tuple[str, ...] = ()
    slots: tuple[tuple[str, Algorithm], ...] = ()
    unused: tuple[str, ...] = ()
    decoupled: bool = False
    shaped: bool = False
    feed_back: Algorithm | None = None
    coefficients: tuple[Coefficients, ...] = ()
    feedback: Coefficients | None = None

    def computed(self, arithmetic: Arithmetic) -> tuple[Coefficients, ...]:
        """What is computed for each step under an arithmetic."""
        if arithmetic.strategy.feedback and self.feedback is not None:
            return (*self.coefficients, self.feedback)
        return self.coefficients

    @property
    def seconds(self) -> tuple[str, ...]:
        """The states stored as second moments are."""
        return tuple(name for name in (self.second, self.maximum) if name is not None)


@functools.cache
def states(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """The state tensors besides `step`, by torch's names, and the format of each."""
    formats: dict[str, Format] = {}
    for name, fmt in _wide_states(rule, arithmetic.inside).items():
        if name == "param_lo" and arithmetic.held:
            continue
        storage = block_storage(rule, arithmetic, name)
        formats |= {name: fmt} if storage is None else eight_bits.states(name, storage)
    return formats


def block_storage(rule: Rule, arithmetic: Arithmetic, name: str) -> Storage | None:
    """How a state is stored, where that is in blocks of numbers of 8 bits."""
    strategy = arithmetic.strategy
    storage = strategy.first if name == rule.first else strategy.second
    stored = name == rule.first or name in rule.seconds
    return storage if stored and storage.eight_bits else None


def _wide_states(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """The states as the fused kernel reads them."""
    strategy = arithmetic.strategy
    formats = {}
    if strategy.param.has_low:
        formats["param_lo"] = arithmetic.component
    if strategy.param.bits is not None:
        formats["param_bits"] = strategy.param.bits
    if strategy.param is Storage.WIDE:
        formats["master_param"] = arithmetic.stored(Storage.WIDE)
    if rule.first is not None:
        formats[rule.first] = arithmetic.stored(strategy.first)
    for second in rule.seconds:
        formats[second] = arithmetic.second_moment
        if strategy.second.has_low:
            formats[f"{second}_lo"] = arithmetic.second_moment
    return formats


@dataclasses.dataclass(frozen=True)
class GradientForm:
    """How a kernel finds its gradient.

    Args:
        format: the format that stores it.
        paired: whether it is the sum of two components, `grad` and `grad_lo`.
        clipped: whether each element is clipped to the scalar `grad_limit`.
    """

    format: Format
    paired: bool = False
    clipped: bool = False

    @property
    def slot(self) -> Algorithm:
        """The function that reads it."""
        if self.paired:
            return gradient.pair_clipped if self.clipped else gradient.pair
        return gradient.single_clipped if self.clipped else gradient.single

    def suffix(self, component: Format) -> str:
        """What distinguishes a kernel's name."""
        words = [f"grad_{self.format.name}"] if self.format != component else []
        words += ["pair"] if self.paired else []
        words += ["clipped"] if self.clipped else []
        return "".join(f"_{word}" for word in words)


def kernel(
    rule: Rule, arithmetic: Arithmetic, track_metrics: bool, form: GradientForm | None = None
) -> Elementwise:
    """The fused kernel: each tensor is read once and written once.

    Its scalars are the rule's, and `grad_limit` where the gradient is clipped. Without a form the
    gradient is one component in the parameter's format. Moments of 8 bits it takes as float32.
    """
    form = form or GradientForm(arithmetic.component)
    return _kernel(rule, arithmetic.inside, track_metrics, form)


@functools.cache
def _kernel(
    rule: Rule, arithmetic: Arithmetic, track_metrics: bool, form: GradientForm
) -> Elementwise:
    formats = _wide_states(rule, arithmetic)
    master = arithmetic.strategy.param is Storage.WIDE
    fields = [
        Field("param", arithmetic.component, read=not master, written=True),
        Field("grad", form.format),
        *([Field("grad_lo", form.format)] if form.paired else []),
        *(Field(name, fmt, written=True) for name, fmt in formats.items()),
    ]
    stores = [("param", "param")]
    # Parameters of the rule, and results, that are stored under another name.
    loads = {"master_param": "param", "param_bits": "param_lo"}
    stores += [(loads.get(name, name), name) for name in formats]
    renamed = tuple((loads[name], name) for name in formats if name in loads)
    low_words = ("param_lo", *(f"{second}_lo" for second in rule.seconds))
    possible = [name for name in rule.results if name in low_words]
    supplied = {*formats, *dict(renamed)}
    absent = [*(n for n in possible if n not in supplied), *rule.absent]
    absent += [] if form.paired else ["grad_lo"]
    absent += [] if form.clipped else ["grad_limit"]
    if arithmetic.strategy.stochastic:
        last = "param_lo" if "param_lo" in formats else "param"
        fields = [dataclasses.replace(f, stochastic=f.name == last) for f in fields]
    scalars = (*rule.scalars, "grad_limit") if form.clipped else rule.scalars
    correction = None
    if arithmetic.strategy.feedback:
        assert rule.first is not None
        assert rule.feed_back is not None
        scalars += ("feedback",)
        correction = (rule.first, rule.feed_back)
    if arithmetic.strategy.stochastic:
        scalars += streams.SCALARS
    arithmetic_name = "strict" if arithmetic.strict else "wide"
    arithmetic_name += "_held" if arithmetic.held else ""
    metrics = "_metrics" if track_metrics else ""
    name = f"{rule.name}_{arithmetic.strategy.name}_{arithmetic.component.name}_{arithmetic_name}"
    # Where a pair is computed, its leading component comes out rounded.
    split = arithmetic.strategy.param
    rounded = ["param"] if split.has_low or split.bits is not None else []
    if arithmetic.strategy.second.has_low:
        rounded += rule.seconds
    spec = Elementwise(
        name=name + form.suffix(arithmetic.component) + metrics,
        function=rule.function,
        results=rule.results,
        fields=tuple(fields),
        stores=tuple(stores),
        arithmetic=arithmetic.format,
        roundings=arithmetic.roundings,
        loads=renamed,
        scalars=scalars,
        absent=tuple(absent),
        rounded=rule.results if arithmetic.strict else tuple(rounded),
        slots=(*arithmetic.slots().items(), *rule.slots, ("scaled_gradient", form.slot)),
        sums=rule.metrics if track_metrics else None,
        sum_count=rule.metric_count if track_metrics else 0,
        # Two sums, and shares of lost additions.
        counts=rule.metric_count - 2 if track_metrics else 0,
        correction=correction,
    )
    return registered(spec)


def given_scalars(spec: Elementwise) -> tuple[str, ...]:
    """The scalars that an optimizer supplies; those of a stream follow them."""
    return spec.scalars[: -len(streams.SCALARS)] if spec.random else spec.scalars


def joined(p: Tensor, param_bits: Tensor) -> Tensor:
    """The float32 that a bf16 parameter and its further bits make."""
    join = {torch.int16: words.join16, torch.int8: words.join8}[param_bits.dtype]
    value: Tensor = _reference(join)(p.float(), param_bits.float())
    return value


_reference = Binder(lambda f: f, primitives(FP32, FP32, {}))
