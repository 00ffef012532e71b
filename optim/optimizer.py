"""What all optimizers of this package share: states, the fused step, checkpoints and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, ParamsT
from typing_extensions import Unpack

from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.optim import checkpoint, gradients, options, randomness, validation
from mcf.optim.metrics import StepMetrics
from mcf.optim.plan import Plan, Work
from mcf.optim.precision import by_name, parts, strategy_of
from mcf.optim.strategies import (
    STRATEGIES,
    WITHOUT_FEEDBACK,
    Arithmetic,
    Storage,
    arithmetic,
)
from mcf.optim.update import (
    GradientForm,
    Rule,
    given_scalars,
    joined,
    kernel,
    states,
    update_,
)

if TYPE_CHECKING:
    from mcf.optim.accumulator import GradientAccumulator

Group = dict[str, Any]
# A parameter, after the words that name it in messages.
Named = tuple[str, Tensor]


class LowPrecisionOptimizer(Optimizer):
    """An update rule under precision strategies; subclasses give the rule and its scalars."""

    # The values of `precision` that make sense for the rule.
    precisions: tuple[str, ...] = WITHOUT_FEEDBACK
    # Whether others can be put together (`Precision`).
    custom = True

    # torch.amp.GradScaler sets `grad_scale` and `found_inf` for the step instead of unscaling.
    _step_supports_amp_scaling = True

    max_grad_norm: float | None
    max_grad_value: float | None
    nonfinite: str
    # The norm of all gradients in the last step, where it was clipped.
    grad_norm: Tensor | None = None

    def __init__(
        self,
        params: ParamsT,
        defaults: Group,
        *,
        track_metrics: bool,
        **given: Unpack[options.Options],
    ) -> None:
        """See the subclasses and `Options`; `track_metrics` keeps sums for `metrics`."""
        options.known(type(self).__name__, given)
        mine = options.of_optimizer(given)
        gradients.check(mine)
        vars(self).update(mine)
        # Second components of gradients, during a step, and who adds them up.
        self._grad_low: dict[Tensor, Tensor] = {}
        self._accumulator: GradientAccumulator | None = None
        self._released = False
        self._track_metrics = bool(track_metrics)
        self._metrics: StepMetrics | None = None
        self._plan: Plan | None = None
        super().__init__(params, {**by_name(defaults), **options.in_groups(given)})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show users every option of the constructor."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            shown = options.signature(vars(cls)["__init__"])
            cls.__signature__ = shown  # type: ignore[attr-defined]

    # -- what a subclass provides ------------------------------------------------------------

    def _rule(self, group: Group) -> Rule:
        raise NotImplementedError

    def _advance(self, group: Group, entries: list[Group]) -> list[Any]:
        """Count a step in the numbers of some states; what `_scalars` needs of each, hashable."""
        counts = []
        for state in entries:
            state["step"] += 1
            counts.append(int(state["step"]))
        return counts

    def _scalars(self, group: Group, arith: Arithmetic, step: Any) -> dict[str, float]:
        """The rule's scalars in float64; `step` from `_advance`, the number of the step from 1."""
        raise NotImplementedError

    def _check_group(self, group: Group) -> None:
        """Raise for hyperparameters out of range."""
        raise NotImplementedError

    # -- groups ------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does; its hyperparameters and parameters are checked first.

        Raises:
            ValueError, TypeError: naming the hyperparameter or the parameter and its group.
        """
        index = len(self.param_groups)
        if isinstance(param_group, dict):
            params = param_group.get("params")
            if isinstance(params, Iterator):
                param_group = {**param_group, "params": list(params)}
            param_group = by_name(param_group)
            merged = {**self.defaults, **param_group}
            self._check_precision(merged)
            options.check(merged)
            self._check_group(merged)
            merged = options.with_max_lr(merged)
            rule = self._rule(merged)
            name = type(self).__name__
            options.check_decay(merged, dict(rule.slots), rule.decoupled, name)
            param_group = {**param_group, "max_lr": merged["max_lr"]}
            validation.distinct(f"param_groups[{index}]", merged.get("params"))
        super().add_param_group(param_group)
        try:
            for where, p in self._named(index):
                validation.parameter(where, p)
                self._arithmetic(self.param_groups[index], p, where)
        except Exception:
            # The constructor's caller never sees the object; here the others stay as they were.
            del self.param_groups[index]
            raise

    def _check_precision(self, group: Group) -> None:
        """Raise for a precision, rounding or compute_dtype that is not one of those known."""
        if group["precision"] not in self.precisions:
            self._check_custom(group["precision"])
        validation.compute_dtype(group["compute_dtype"])
        validation.choice("low", group["low"], options.LOW)

    def _check_custom(self, precision: Any) -> None:
        """Raise for a precision that is none of `precisions` and cannot be put together either."""
        # Not every value can be looked up in a dict.
        named = precision in tuple(STRATEGIES)
        composed = None if named or not self.custom else parts(precision)
        if composed is None:
            validation.choice("precision", precision, self.precisions)
        elif composed.feedback and "eco" not in self.precisions:
            raise ValueError(
                f"precision={precision!r} feeds rounding errors back, which needs a first moment "
                f"that the update of {type(self).__name__} is a multiple of; allowed is "
                "feedback=False"
            )

    def _named(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """The parameters of a group, each with the words that name it in messages."""
        group = self.param_groups[index]
        names = group.get("param_names")
        for k, p in enumerate(group["params"]):
            name = f" ({names[k]})" if names else ""
            yield f"params[{k}]{name} of param_groups[{index}]", p

    def _parameters(self) -> Iterator[Tensor]:
        """All parameters, in the order in which checkpoints count them."""
        for group in self.param_groups:
            yield from group["params"]

    def _arithmetic(self, group: Group, p: Tensor, where: str) -> Arithmetic:
        strategy = strategy_of(group["precision"]).with_low(group["low"])
        found = arithmetic(strategy, p.dtype, group["compute_dtype"], where)
        self._check_arithmetic(group, found, where)
        return found

    def _check_arithmetic(self, group: Group, arith: Arithmetic, where: str) -> None:
        """Raise for hyperparameters that the arithmetic of a parameter cannot represent."""

    # -- the step ----------------------------------------------------------------------------

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
        # What counts more than steps does it state by state.
        if plan is None and type(self)._advance is LowPrecisionOptimizer._advance:
            made = Plan(self, work)
            self._plan = made if made.useful else None

    def _try_scalars(self, work: Work) -> None:
        """Raise for hyperparameters that are no numbers, before anything is changed."""
        _, group, rule, arith, _, live = work
        p = live[0][1]
        state = self.state.get(p) or {"step": 0, **dict(rule.numbers)}
        # Numbers are counted on in copies; of the other states only the shape counts.
        entry: Group = dict.fromkeys(states(rule, arith), p)
        entry["step"] = torch.tensor(int(state["step"]))
        for name, _ in rule.numbers:
            entry[name] = torch.tensor(float(state[name]), dtype=torch.float64)
        (count,) = self._advance(group, [entry])
        self._columns(group, arith, count)

    def _general(self, work: Sequence[Work], scale: float | Tensor) -> None:
        """Step what was checked, whatever its layout, type, device or executor."""
        for each in work:
            index, group, rule, arith, _, live = each
            names = tuple(states(rule, arith))
            rows = []
            for _, p in live:
                state = self.state[p]
                if not state:
                    state.update(self._new_state(rule, arith, p))
                # The kernel reads memory, where a lazily negated view has the other sign.
                grads = [g.resolve_neg() for g in gradients.components(self, p)]
                rows.append([p, *grads, *(state[n] for n in names)])
            steps = self._advance(group, [self.state[p] for _, p in live])
            columns = {s: self._columns(group, arith, s) for s in set(steps)}
            sums = self._launch(each, rows, [columns[s] for s in steps], scale)
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
        return update_(spec, rows, self._table(spec, work, columns, scale))

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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, and their second components, as torch does."""
        super().zero_grad(set_to_none)
        if self._accumulator is not None:
            self._accumulator.zero()

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
            batches: dict[tuple[torch.dtype, torch.device, GradientForm], list[Named]] = {}
            for where, p in self._named(index):
                if p.grad is not None and (plan is None or id(p) not in plan.stepped):
                    validation.parameter(where, p)
                    validation.gradient(where, p, p.grad)
                    form = gradients.form(self, p)
                    batches.setdefault((p.dtype, p.device, form), []).append((where, p))
            for (_, device, form), live in batches.items():
                registry.executor_for(device)
                arith = self._arithmetic(group, live[0][1], live[0][0])
                formats = states(rule, arith)
                for where, p in live:
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
            state[name] = torch.zeros_like(p, dtype=fmt.dtype, memory_format=torch.preserve_format)
        if "master_param" in state:
            state["master_param"].copy_(p)
        return state

    def _later_options(self) -> Group:
        """Options that checkpoints of older versions lack, and what they are there."""
        return options.IN_GROUPS

    # -- what is stored ----------------------------------------------------------------------

    @torch.no_grad()
    def master_weight(self, p: Tensor, *, exact: bool = False) -> Tensor | tuple[Tensor, ...]:
        """The value that is really stored for a parameter: p + param_lo, or the master copy.

        Args:
            p: one of the optimizer's parameters.
            exact: return the stored tensors, whose sum is the value, instead of rounding it.

        Returns:
            A new float32 tensor (float64 for a float64 parameter) of p's shape; or, with `exact`,
            the tuple of stored components, largest first, not copied (but what is split into bf16
            and further bits is joined to one float32).

        Raises:
            ValueError: if `p` is not a parameter of this optimizer.
        """
        if not any(p is q for group in self.param_groups for q in group["params"]):
            raise ValueError(
                f"p of shape {list(p.shape)} is not one of this optimizer's parameters"
            )
        state = self.state.get(p, {})
        components: tuple[Tensor, ...] = (p.detach(),)
        if "master_param" in state:
            components = (state["master_param"],)
        elif "param_lo" in state:
            components = (p.detach(), state["param_lo"])
        elif "param_bits" in state:
            components = (joined(p.detach(), state["param_bits"]),)
        if exact:
            return components
        kind = torch.float64 if p.dtype == torch.float64 else torch.float32
        value = components[0].to(kind, copy=True)
        for low in components[1:]:
            value += low.to(kind)
        return value

    def metrics(self) -> dict[str, Any]:
        """What the last step did to the stored parameters; needs `track_metrics=True`.

        Returns:
            A dict with `edq` (effective descent quality <e, d> / |d| of the intended update d and
            the effective one e, Definition 3.3 of the Collage paper, arXiv:2405.03637),
            `update_norm` (|d|), `edq_ratio` (edq / |d|; 1 when nothing is lost, NaN when d is 0),
            `lost_param` and, for rules with a second moment, `lost_exp_avg_sq` (shares from 0 to 1
            of additions that left the stored value as it was though what was added is not 0), over
            all parameters; and `groups`, a list of the same for each parameter group. Sums are
            kept in registers over blocks of elements: relative error below 1e-4.

        Raises:
            RuntimeError: if metrics are not tracked or no step was made.
        """
        if not self._track_metrics:
            raise RuntimeError("metrics() needs an optimizer made with track_metrics=True")
        if self._metrics is None:
            raise RuntimeError("metrics() needs a step first")
        return self._metrics.result()

    # -- checkpoints -------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state made by `state_dict`, bit for bit; every state keeps its own dtype.

        Raises:
            ValueError, TypeError: when the state is of another precision, shape or model; then
                nothing has changed.
        """
        # Like torch's own, which casts every state to its parameter's dtype.
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        checkpoint.check(self, state_dict)
        groups = checkpoint.groups(self, state_dict)
        # A plan would go on holding the old addresses.
        self._plan = None
        self.state = checkpoint.states(self, state_dict)
        self.param_groups = groups
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        self.__dict__.setdefault("_track_metrics", False)
        self.__dict__.setdefault("_metrics", None)
        self.__dict__.setdefault("_plan", None)
        self.__dict__.setdefault("_grad_low", {})
        self.__dict__.setdefault("_accumulator", None)
        self.__dict__.setdefault("_released", False)
        vars(self).update({k: v for k, v in options.OF_OPTIMIZER.items() if k not in vars(self)})
        super().__setstate__(state)
        # Of an older version, which did not have them.
        for group in (self.defaults, *self.param_groups):
            for name, default in self._later_options().items():
                group.setdefault(name, default)

    def __getstate__(self) -> dict[str, Any]:
        """What pickling and copying keep."""
        mine = {name: getattr(self, name) for name in options.OF_OPTIMIZER}
        return {**super().__getstate__(), **mine, "_track_metrics": self._track_metrics}


def beta2_components(beta2: float, arith: Arithmetic) -> tuple[float, float]:
    """beta2 as the strict arithmetic of an expansion needs it, else as one number."""
    if arith.strict and arith.strategy.second is Storage.PAIR:
        dtype = arith.component.dtype
        high = torch.tensor(beta2, dtype=torch.float64).to(dtype).double().item()
        low = torch.tensor(beta2 - high, dtype=torch.float64).to(dtype).double().item()
        return high, low
    return beta2, 0.0
