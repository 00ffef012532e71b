"""The fused step: what is checked before it, what is launched, and when a plan repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._subclasses.fake_tensor import FakeTensor

from mcf.kernels import registry
from mcf.optim import (
    blocks,
    commit,
    eight_bits,
    entries,
    expansions,
    gradients,
    rewritten,
    validation,
)
from mcf.optim.base import Group, GroupedOptimizer, Named
from mcf.optim.batch import Fused, Launch, Work
from mcf.optim.metrics import StepMetrics
from mcf.optim.plan import Plan
from mcf.optim.scalars import Scalars
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import (
    GradientForm,
    Rule,
    kernel,
    states,
    update_,
)


class FusedOptimizer(GroupedOptimizer):
    """One launch steps all tensors that one kernel can step."""

    # What of the last step can be repeated.
    _plan: Plan | None

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    # A caller's torch.compile has nothing to gain from what is only checks and one operator.
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step on every parameter that has a gradient.

        Gradients are read and never changed. Everything is checked before anything is changed.

        Args:
            closure: evaluates the model again and returns the loss, as in torch.

        Returns:
            What the closure returned.

        Raises:
            ValueError, TypeError: for a gradient of another shape, dtype, device or layout than
                its parameter, and for a parameter that changed dtype or shape after its first
                step.
            RuntimeError: while a CUDA graph is captured, for groups that are not capturable and
                for parameters that have not made a step before.
        """
        self._check_capture()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take()
        return loss

    def _take(self) -> None:
        """The step, after its closure: what a `GradientRelease` calls, without hooks of `step`."""
        plan = self._plan
        holds = plan is not None and not self._ahead and plan.holds(self)
        if plan is not None and not holds:
            plan.tell(self)
        try:
            self._step(plan if holds else None)
        finally:
            # Also after an error, or gradients would live on.
            if plan is not None:
                plan.release()

    def _check_capture(self) -> None:
        """Raise where a graph would hold what the host computed once."""
        if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
            return
        for index, group in enumerate(self.param_groups):
            if not group["capturable"]:
                raise RuntimeError(
                    f"step() while a CUDA graph is captured: param_groups[{index}] has "
                    "capturable=False, so each replay would repeat the scalars of this step; "
                    "allowed is capturable=True"
                )
            for where, p in self._named(index):
                state = self._made(p)
                if p.grad is not None and (not state or state["step"].device != p.device):
                    raise RuntimeError(
                        f"step() while a CUDA graph is captured: {where} has no state on "
                        f"{p.device} yet, and each replay would begin anew; take a step before"
                    )

    def _step(self, plan: Plan | None) -> None:
        """The step itself; with the plan of the step before, where that holds."""
        work = [] if plan is not None and plan.whole else self._collect(plan)
        found: list[tuple[str, tuple[Tensor, ...]]] = []
        if gradients.looks(self):
            everything = [
                *(plan.live() if plan is not None else []),
                *(n for w in work for n in w[-1]),
            ]
            found = [(w, gradients.components(self, p)) for w, p in everything]
        scale, live = gradients.factor(self, found)
        if live is False:
            return
        if plan is not None and live is not True:
            # What a device decides it counts, too.
            plan.tell(self)
            work, plan = [*plan.work(), *work], None
        if self._ahead:
            work = commit.left(self, work)
        metrics = None
        if self._track_metrics:
            terms = [self._rule(group).metric_count for group in self.param_groups]
            metrics = StepMetrics(terms)
        repeated, undone = ([], []) if plan is None else plan.prepare(self, scale)
        others = (use for each in repeated for use in each.uses())
        general = commit.general(self, [*undone, *work], scale, live, others)
        repairs = [] if plan is None else plan.repairs(self)
        repairs += [found for each in general for found in each.repairs()]
        ready: list[commit.Ready] = [*repeated, *general]
        rewritten.tell(self, repairs)
        renew = plan is None and live is True
        after = (lambda: self._renew(work)) if renew else None
        commit.commit(self, ready, metrics, repairs, after)

    def _renew(self, work: Sequence[Work]) -> None:
        """Make a plan of a step that was made on `work`."""
        made = Plan(self, work)
        self._plan = made if made.useful else None

    def _general(
        self, work: Sequence[Work], scale: float | Tensor, live: bool | Tensor = True
    ) -> None:
        """Step what was checked, without a plan."""
        commit.commit(self, commit.general(self, work, scale, live), None, [])

    def _counted_by_device(self, work: Work, live: bool | Tensor = True) -> bool:
        """Whether the steps of a batch are counted where its parameters are."""
        _, group, _, _, _, found = work
        if group["capturable"] or isinstance(live, Tensor):
            return True
        if any(isinstance(p, FakeTensor) and p.device.type == "cpu" for _, p in found):
            # The counts have no values, which those who trace or estimate a step do not ask for.
            return True
        found_states = (self._made(p) for _, p in found)
        return any(s and s["step"].device.type != "cpu" for s in found_states)

    def _made(self, p: Tensor) -> Group:
        """A parameter's state where there is one: what others keep there alone is none."""
        state: Group = self.state.get(p, {})
        return state if entries.made(state) else {}

    def _launch(
        self, work: Work, rows: list[list[Tensor]], scalars: Scalars
    ) -> Callable[[], Tensor]:
        """What steps rows of parameters, gradients and states, and returns the metrics' sums."""
        _, _, rule, arith, form, _ = work
        spec = kernel(rule, arith, self._track_metrics, form)
        if arith.strategy.eight_bits:
            return blocks.prepared(spec, work, rows, scalars)
        table, first = scalars.table(spec), scalars.first(spec)
        return lambda: update_(spec, rows, table, scalars.live, first)

    def _prepare(self, work: Work, rows: list[list[Tensor]]) -> Launch | None:
        """`_launch` for a plan to repeat on rows of these sizes and layouts; None without."""
        _, _, rule, arith, form, _ = work
        if arith.strategy.eight_bits:
            return None
        return Fused.of(kernel(rule, arith, self._track_metrics, form), rows)

    def _collect(self, plan: Plan | None = None) -> list[Work]:
        """Check all parameters with gradients and sort them by the kernel they need.

        Those that a plan steps are left out.
        """
        work: list[Work] = []
        for index, group in enumerate(self.param_groups):
            self._check_precision(group)
            rule = self._rule(group)
            batches: dict[tuple[torch.dtype, torch.device, GradientForm, bool], list[Named]] = {}
            for where, p in self._named(index):
                if p.grad is None:
                    validation.replaced(where, p)
                elif plan is None or id(p) not in plan.stepped:
                    validation.parameter(where, p, self.takes_expansions)
                    validation.gradient(where, p, p.grad)
                    form = gradients.form(self, p)
                    kind = (p.dtype, p.device, form, expansions.is_expansion(p))
                    batches.setdefault(kind, []).append((where, p))
            for (_, device, form, _), live in batches.items():
                registry.executor_for(device)
                arith = self._arithmetic(group, live[0][1], live[0][0])
                formats = states(rule, arith)
                for where, p in live:
                    if arith.strategy.eight_bits:
                        blocks.check(where, p)
                    if self._made(p):
                        validation.state(
                            where, p, self.state[p], formats, rule, group["capturable"]
                        )
                        validation.state_device(where, p, self.state[p], formats)
                work.append((index, group, rule, arith, form, live))
        return work

    def _new_state(self, group: Group, rule: Rule, arith: Arithmetic, p: Tensor) -> Group:
        """Zero moments, and the parameter's value where a copy is kept."""
        home = p.device if group["capturable"] else torch.device("cpu")
        # An integer: a float32 counter stops at 2**24, a bf16 one at 256.
        state: Group = {"step": torch.zeros((), dtype=torch.int64, device=home)}
        for name, start in rule.numbers:
            state[name] = torch.full((), start, dtype=torch.float64, device=home)
        for name, fmt in states(rule, arith).items():
            if eight_bits.holds(name, fmt):
                shape = eight_bits.shape(name, p)
                state[name] = torch.zeros(shape, dtype=fmt.dtype, device=p.device)
                continue
            like = expansions.leading(p)
            state[name] = torch.zeros_like(
                like, dtype=fmt.dtype, memory_format=torch.preserve_format
            )
        if "master_param" in state:
            state["master_param"].copy_(p)
        return state
