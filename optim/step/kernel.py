"""The states and the fused kernel of a rule under a precision strategy."""

from __future__ import annotations

import dataclasses
import functools

from mcf.kernels import streams
from mcf.kernels.algorithms import stochastic
from mcf.kernels.bind import Algorithm
from mcf.kernels.elementwise import Code, Elementwise, Field
from mcf.kernels.formats import Format
from mcf.optim.rule import formulas
from mcf.optim.rule.rule import Rule
from mcf.optim.step.opaque_operator import registered
from mcf.optim.storage.strategies import Arithmetic


@functools.cache
def states(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """Return the state tensors besides `step`, by torch's names, with the format of each."""
    found = _in_kernel(rule, arithmetic)
    hidden = arithmetic.strategy.param.hidden
    # An expansion holds its low word itself.
    return {n: f for n, f in found.items() if n != hidden or not arithmetic.held}


def _in_kernel(rule: Rule, arithmetic: Arithmetic) -> dict[str, Format]:
    """Return the states, and the low word of a parameter that is an expansion."""
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
    """The form in which a kernel reads its gradient.

    Args:
        format: the format that stores it.
        paired: whether the gradient is the sum of two components, `grad` and `grad_lo`.
        clipped: whether each element is clipped to the scalar `grad_limit`.
    """

    format: Format
    paired: bool = False
    clipped: bool = False

    @property
    def slot(self) -> Algorithm:
        """The function that reads the gradient."""
        if self.paired:
            return formulas.paired_clipped_gradient if self.clipped else formulas.paired_gradient
        return formulas.single_clipped_gradient if self.clipped else formulas.single_gradient

    def suffix(self, component: Format) -> str:
        """Return the part of a kernel's name that this form determines."""
        words = [f"grad_{self.format.name}"] if self.format != component else []
        words += ["pair"] if self.paired else []
        words += ["clipped"] if self.clipped else []
        return "".join(f"_{word}" for word in words)


def kernel(
    rule: Rule, arithmetic: Arithmetic, track_metrics: bool, form: GradientForm | None = None
) -> Elementwise:
    """Return the fused kernel, which reads and writes each tensor once.

    Its tensors are the operands and results of the formula; its scalars are the rule's, and
    `grad_limit` if gradients are clipped. Without a form the gradient is one component in the
    parameter's format.
    """
    form = form or GradientForm(arithmetic.component)
    if "param" not in (*rule.results, *rule.operands):
        # Strategies that differ only in the parameter share the kernel.
        arithmetic = arithmetic.without_param()
    return _kernel(rule, arithmetic, track_metrics, form)


@functools.cache
def _kernel(
    rule: Rule, arithmetic: Arithmetic, track_metrics: bool, form: GradientForm
) -> Elementwise:
    strategy = arithmetic.strategy
    param, second = strategy.param, strategy.second
    # The rule's name of the hidden state depends on whether the kernel also reads the parameter.
    alias = "param_lo" if param.visible else "param"
    every = _in_kernel(rule, arithmetic)
    called = {name: alias if name == param.hidden else name for name in every}
    written = {*rule.results}
    # Slots produce nothing for tensors that are absent.
    used = written | {*rule.operands}
    formats = {name: fmt for name, fmt in every.items() if called[name] in used}
    moved, reads_gradient = "param" in written, "grad" in used
    codes = tuple(code for code in _codes(rule, arithmetic) if code.field in formats)
    coded = {code.field for code in codes}
    # The stochastic rounding of each tensor, and the random bits that it draws.
    roundings: dict[str, tuple[Algorithm | None, str]] = {
        name: (None if name in coded else stochastic, "second" if name in rule.seconds else "first")
        for name, _ in rule.states
        if rule.storage(name, arithmetic).stochastic
    }
    if strategy.stochastic and moved:
        words = zip(("param", param.hidden), param.roundings, strict=False)
        roundings |= {name: (rounding, "weight") for name, rounding in words}

    def field(name: str, fmt: Format, read: bool = True) -> Field:
        if name != "param" and called[name] not in written:
            return Field(name, fmt)
        return Field(name, fmt, read, True, *roundings.get(name, ()))

    fields = [
        *([field("param", arithmetic.component, param.visible)] if moved else []),
        *([Field("grad", form.format)] if reads_gradient else []),
        *([Field("grad_lo", form.format)] if reads_gradient and form.paired else []),
        *(field(name, fmt) for name, fmt in formats.items()),
        *(Field(name, arithmetic.format, read=False, written=True) for name in rule.made),
    ]
    stores = [("param", "param")] if moved else []
    stores += [(called[name], name) for name in formats if called[name] in written]
    stores += [(name, name) for name in rule.made]
    renamed = tuple((alias, n) for n in formats if n == param.hidden and n != alias)
    low_words = ("param_lo", *(f"{name}_lo" for name in rule.seconds))
    supplied = {*formats, *dict(renamed)}
    absent = [*(n for n in low_words if n not in supplied), *rule.absent]
    absent += [] if form.paired else ["grad_lo"]
    absent += [] if form.clipped else ["grad_limit"]
    scalars = rule.scalars + (("grad_limit",) if form.clipped and reads_gradient else ())
    correction = None
    if strategy.feedback:
        assert rule.first is not None
        assert rule.feed_back is not None
        scalars += ("feedback",)
        correction = (rule.first, rule.feed_back)
    if any(f.written and (f.rounding or f.name in coded) for f in fields):
        scalars += streams.SCALARS
    title = [rule.name, strategy.name, arithmetic.component.name]
    title.append("strict" if arithmetic.strict else "wide")
    title += ["held"] if arithmetic.held else []
    # If components are computed, the leading one is already rounded.
    rounded = [*(["param"] if param.split else []), *(rule.seconds if second.split else ())]
    rounded += rule.made
    sums, count = rule.metrics if track_metrics else (None, 0)
    spec = Elementwise(
        name="_".join(title)
        + form.suffix(arithmetic.component)
        + ("_metrics" if track_metrics else ""),
        function=rule.function,
        results=rule.results,
        fields=tuple(fields),
        stores=tuple(stores),
        arithmetic=arithmetic.format,
        roundings=arithmetic.roundings,
        loads=renamed,
        groups=tuple(rule.members.items()),
        scalars=scalars,
        absent=tuple(absent),
        rounded=rule.results if arithmetic.strict else tuple(rounded),
        slots=(
            *arithmetic.slots().items(),
            *(formulas.DECOUPLED if rule.decoupled else formulas.L2),
            *rule.slots,
            ("scaled_gradient", form.slot),
        ),
        sums=sums,
        sum_count=count,
        # Besides two sums, the metrics count lost additions.
        counts=max(0, count - 2),
        correction=correction,
        codes=codes,
    )
    return registered(spec)


def _codes(rule: Rule, arithmetic: Arithmetic) -> tuple[Code, ...]:
    """Return the states that are codes; states that others are relative to come first."""
    found = []
    for name, _ in rule.states:
        coding = rule.storage(name, arithmetic).coding
        if coding is not None:
            beside = rule.seconds[:1] if coding.relative else ()
            found.append(Code(name, coding.decode, coding.encode, beside))
    return tuple(sorted(found, key=lambda code: len(code.beside)))


def columns(rule: Rule, arithmetic: Arithmetic, form: GradientForm) -> tuple[str, ...]:
    """Return the kernels' names of a row's tensors, in order."""
    grads = ("grad", "grad_lo") if form.paired else ("grad",)
    return ("param", *grads, *_in_kernel(rule, arithmetic))


def given_scalars(spec: Elementwise) -> tuple[str, ...]:
    """Return the scalars that an optimizer supplies; scalars of a random stream follow them."""
    return spec.scalars[: -len(streams.SCALARS)] if spec.random else spec.scalars
