"""A rule under a precision strategy: the states that it keeps, and its one fused kernel."""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels import streams
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.formats import Format
from mcf.optim.operator import registered
from mcf.optim.rules import gradient
from mcf.optim.rules.rule import Rule
from mcf.optim.storage.arithmetic import Arithmetic


@functools.cache
def states(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """The state tensors besides `step`, by torch's names, and the format of each."""
    found = _in_kernel(rule, arithmetic)
    hidden = arithmetic.strategy.param.hidden
    # Of an expansion, which holds its low word itself.
    return {n: f for n, f in found.items() if n != hidden or not arithmetic.held}


def _in_kernel(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """The same, and the low word of a parameter that is an expansion."""
    param = arithmetic.strategy.param
    formats: dict[str, Format] = {}
    if param.hidden:
        formats[param.hidden] = param.hidden_format(arithmetic.component)
    for name, _ in rule.states:
        fmt = rule.format(name, arithmetic)
        formats |= rule.storage(name, arithmetic).moment(name, fmt)
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
    gradient is one component in the parameter's format.
    """
    form = form or GradientForm(arithmetic.component)
    return _kernel(rule, arithmetic, track_metrics, form)


@functools.cache
def _kernel(
    rule: Rule, arithmetic: Arithmetic, track_metrics: bool, form: GradientForm
) -> Elementwise:
    formats = _in_kernel(rule, arithmetic)
    strategy = arithmetic.strategy
    param, second = strategy.param, strategy.second
    fields = [
        Field("param", arithmetic.component, read=param.visible, written=True),
        Field("grad", form.format),
        *([Field("grad_lo", form.format)] if form.paired else []),
        *(Field(name, fmt, written=True) for name, fmt in formats.items()),
    ]
    drawn = {
        name: "second" if name in rule.seconds else "first"
        for name, _ in rule.states
        if rule.storage(name, arithmetic).stochastic
    }
    codes = _codes(rule, arithmetic)
    coded = {code.field for code in codes}
    fields = [
        dataclasses.replace(f, stochastic=f.name not in coded, draw=drawn[f.name])
        if f.name in drawn
        else f
        for f in fields
    ]
    # The rule has one name for what is hidden, and another for what stands in the parameter's
    # place.
    alias = "param_lo" if param.visible else "param"
    stores = [("param", "param")]
    stores += [(alias if name == param.hidden else name, name) for name in formats]
    renamed = tuple((alias, n) for n in formats if n == param.hidden and n != alias)
    low_words = ("param_lo", *(f"{name}_lo" for name in rule.seconds))
    possible = [name for name in rule.results if name in low_words]
    supplied = {*formats, *dict(renamed)}
    absent = [*(n for n in possible if n not in supplied), *rule.absent]
    absent += [] if form.paired else ["grad_lo"]
    absent += [] if form.clipped else ["grad_limit"]
    if strategy.stochastic:
        last = "param_lo" if "param_lo" in formats else "param"
        fields = [dataclasses.replace(f, stochastic=True) if f.name == last else f for f in fields]
    scalars = (*rule.scalars, "grad_limit") if form.clipped else rule.scalars
    correction = None
    if strategy.feedback:
        assert rule.first is not None
        assert rule.feed_back is not None
        scalars += ("feedback",)
        correction = (rule.first, rule.feed_back)
    if strategy.stochastic or drawn:
        scalars += streams.SCALARS
    words = [rule.name, strategy.name, arithmetic.component.name]
    words.append("strict" if arithmetic.strict else "wide")
    words += ["held"] if arithmetic.held else []
    # Where components are computed, the leading one comes out rounded.
    rounded = [*(["param"] if param.split else []), *(rule.seconds if second.split else ())]
    spec = Elementwise(
        name="_".join(words)
        + form.suffix(arithmetic.component)
        + ("_metrics" if track_metrics else ""),
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
        codes=codes,
    )
    return registered(spec)


def _codes(rule: Rule, arithmetic: Arithmetic) -> tuple[Code, ...]:
    """The states that are codes, those that others are relative to first."""
    found = []
    for name, _ in rule.states:
        coding = rule.storage(name, arithmetic).coding
        if coding is not None:
            beside = rule.seconds[:1] if coding.relative else ()
            found.append(Code(name, coding.decode, coding.encode, beside))
    return tuple(sorted(found, key=lambda code: len(code.beside)))


def given_scalars(spec: Elementwise) -> tuple[str, ...]:
    """The scalars that an optimizer supplies; those of a stream follow them."""
    return spec.scalars[: -len(streams.SCALARS)] if spec.random else spec.scalars
