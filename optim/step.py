"""The fused step: what is checked before it, what is launched, and when a plan repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.optim import blocks, eight_bits, expansions, gradients, options, randomness, validation
from mcf.optim.base import Group, GroupedOptimizer, Named
from mcf.optim.batch import Fused, Launch, Work
from mcf.optim.metrics import StepMetrics
from mcf.optim.plan import Plan
from mcf.optim.strategies import Arithmetic
from mcf.optim.update import (
    GradientForm,
    Rule,
    given_scalars,
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
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        plan = self._plan
        try:
            self._step(plan if plan is not None and plan.holds(self) else None)
        finally:
            # Also after an error, or gradients would live on.
            if plan is not None:
                plan.release()
        return loss

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
        scale = gradients.factor(self, found)
        if scale is None:
            return
        for each in work:
            self._try_scalars(each)
        metrics = None
        if self._track_metrics:
            terms = [self._rule(group).metric_count for group in self.param_groups]
            metrics = StepMetrics(terms)
        if plan is not None:
            work = [*plan.run(self, scale, metrics), *work]
        self._metrics = metrics
        self._general(work, scale)
        if plan is None:
            made = Plan(self, work)
            self._plan = made if made.useful else None

    def _try_scalars(self, work: Work) -> None:
        """Raise for hyperparameters that are no numbers, before anything is changed."""
        _, group, rule, arith, _, live = work
        p = live[0][1]
        state = self.state.get(p) or {"step": 0, **dict(rule.numbers)}
        self._columns(group, arith, self._next(group, rule, p, state)[0])

    def _next(
        self, group: Group, rule: Rule, p: Tensor, state: Group
    ) -> tuple[Any, tuple[float, ...]]:
        """`_advance` for the step after that which a state is at."""
        numbers = tuple(float(state[name]) for name, _ in rule.numbers)
        shape = tuple(p.shape) if rule.shaped else ()
        return self._advance(group, int(state["step"]) + 1, numbers, shape)

    def _general(self, work: Sequence[Work], scale: float | Tensor) -> None:
        """Step what was checked, whatever its layout, type, device or executor."""
        for each in work:
            index, group, rule, arith, _, live = each
            names = tuple(states(rule, arith))
            rows, steps = [], []
            for _, p in live:
                state = self.state[p]
                if not state:
                    state.update(self._new_state(rule, arith, p))
                # The kernel reads memory, where a lazily negated view has the other sign.
                grads = [g.resolve_neg() for g in gradients.components(self, p)]
                rows.append(expansions.row(p, tuple(grads), [state[n] for n in names]))
                step, numbers = self._next(group, rule, p, state)
                steps.append(step)
                state["step"] += 1
                for (name, _), x in zip(rule.numbers, numbers, strict=True):
                    state[name].fill_(x)
            columns = {s: self._columns(group, arith, s) for s in set(steps)}
            sums = self._launch(each, rows, [columns[s] for s in steps], scale)
            for _, p in live:
                expansions.stepped(p)
            if self._metrics is not None:
                self._metrics.add(index, sums, sum(p.numel() for _, p in live))

    def _launch(
        self,
        work: Work,
        rows: list[list[Tensor]],
        columns: list[dict[str, float]],
        scale: float | Tensor,
    ) -> Tensor:
        """Step rows of parameters, gradients and states; the sums of the metrics."""
        _, _, rule, arith, form, _ = work
        spec = kernel(rule, arith, self._track_metrics, form)
        table = self._table(spec, work, columns, scale)
        if arith.strategy.eight_bits:
            return blocks.step(spec, work, rows, table)
        return update_(spec, rows, table)

    def _prepare(self, work: Work, rows: list[list[Tensor]]) -> Launch | None:
        """`_launch` for a plan to repeat on rows of these sizes and layouts; None without."""
        _, _, rule, arith, form, _ = work
        if arith.strategy.eight_bits:
            return None
        return Fused.of(kernel(rule, arith, self._track_metrics, form), rows)

    def _table(
        self, spec: Elementwise, work: Work, columns: list[dict[str, float]], scale: float | Tensor
    ) -> Tensor:
        """A kernel's scalars, one line for each row."""
        _, group, _, _, _, live = work
        table = [[column[name] for name in given_scalars(spec)] for column in columns]
        if spec.random:
            places = {p: k for k, p in enumerate(self._parameters())}
            counts = [int(self.state[p]["step"]) for _, p in live]
            streams = randomness.columns(group["seed"], places, [p for _, p in live], counts)
            table = [row + stream for row, stream in zip(table, streams, strict=True)]
        scalars = torch.tensor(table, dtype=torch.float64).reshape(len(columns), -1)
        if "grad_scale" in spec.scalars:
            scalars = gradients.scaled(scalars, spec.scalars.index("grad_scale"), scale)
        return scalars

    def _columns(self, group: Group, arith: Arithmetic, step: Any) -> dict[str, float]:
        """All scalars that kernels know by name."""
        scalars = options.weight_decay(group, self._scalars(group, arith, step))
        return {"grad_limit": self.max_grad_value or 0.0, **scalars}

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
                if p.grad is not None and (plan is None or id(p) not in plan.stepped):
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
                    if self.state.get(p):
                        validation.state(where, p, self.state[p], formats, rule)
                        validation.state_device(where, p, self.state[p], formats)
                work.append((index, group, rule, arith, form, live))
        return work

    def _new_state(self, rule: Rule, arith: Arithmetic, p: Tensor) -> Group:
        """Zero moments, and the parameter's value where a copy is kept."""
        # An integer: a float32 counter stops at 2**24, a bf16 one at 256.
        state: Group = {"step": torch.zeros((), dtype=torch.int64)}
        for name, start in rule.numbers:
            state[name] = torch.tensor(start, dtype=torch.float64)
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
