"""The base of all optimizers: constructor, parameter groups, steps, stored values, checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, ParamsT
from typing_extensions import Unpack

from mcf.kernels import registry
from mcf.kernels.choices import check_choice
from mcf.kernels.formats import FORMATS, format_of
from mcf.optim import checkpoint, options, user_warnings, validation
from mcf.optim.hyperparameters import Group, GroupHyperparameters, scheduled
from mcf.optim.parameters import entries, expansions, randomness
from mcf.optim.precision import by_name, check_composed, strategy_of
from mcf.optim.rule.rule import Rule
from mcf.optim.sharding.processes import across, place_gradient
from mcf.optim.sharding.shards import is_sharded, like, local
from mcf.optim.step import gradient_scaling, rewritten
from mcf.optim.step.bucket import Bucket, Named, Request, new_state
from mcf.optim.step.kernel import GradientForm, states
from mcf.optim.step.run import Steps
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK, Arithmetic, arithmetic
from mcf.optim.user_warnings import LostUpdates


class LowPrecisionOptimizer(Optimizer):
    """Parameter groups, each with a rule and a precision; subclasses define rules and scalars."""

    # The values of `precision` that make sense for the rule.
    precisions: tuple[str, ...] = WITHOUT_FEEDBACK
    # Whether `Precision` may compose further ones.
    custom = True
    # The options of a group that select its rule, and the rules by the values of these.
    variants: tuple[str, ...] = ()
    rules: Mapping[tuple[Any, ...], Rule]
    # Flags that checkpoints of older versions lack.
    later: tuple[str, ...] = ()
    # Whether parameters may be expansion tensors.
    takes_expansions = True

    max_grad_norm: float | None
    max_grad_value: float | None
    check_numerics: bool
    nonfinite: str
    # Norm of all gradients in the last step, if it was clipped.
    grad_norm: Tensor | None = None

    # The entries that a checkpoint's groups must have; wrappers may add others to `defaults`.
    _required: frozenset[str]
    # Whether the constructor has added its groups.
    _complete = False
    # Whether the warnings about replaced parameters and about a precision without effect were
    # issued.
    _told = _told_of_no_effect = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show every option of the constructor; describe shared ones in this package's classes."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            shown = options.signature(vars(cls)["__init__"], cls.precisions)
            cls.__signature__ = shown  # type: ignore[attr-defined]
            if cls.__doc__ is not None and cls.__module__.startswith(f"{__package__}."):
                cls.__doc__ = options.documented(cls.__doc__, [*shown.parameters, "options"])

    def __init__(self, params: ParamsT, defaults: Group, **given: Unpack[options.Options]) -> None:
        """Create the optimizer; `defaults` are the hyperparameters of its rule."""
        given = options.renamed(given)
        options.known(type(self).__name__, given)
        mine = options.chosen(given, options.OF_OPTIMIZER)
        gradient_scaling.check(mine)
        validation.flag(options.CHECK, mine[options.CHECK])
        vars(self).update(mine)
        # Second components of the gradients during a step, and the accumulator that fills them.
        self._grad_low: dict[Tensor, Tensor] = {}
        self._accumulator: Any = None
        self._released = False
        self._track_metrics = bool(given.get("track_metrics"))
        # State that steps leave for later steps.
        self._steps = Steps()
        self._lock = threading.RLock()
        self._lost = LostUpdates(self.check_numerics)
        every = options.defaults_of(self.precisions)
        common = {k: every[k] for k in (*options.ALWAYS, *options.IN_GROUPS)}
        defaults = {**defaults, **options.chosen(given, common)}
        self._required = frozenset(defaults)
        super().__init__(params, by_name(defaults))
        if any(group["capturable"] for group in self.param_groups):
            gradient_scaling.check_capturable(self.nonfinite)
        self._complete = True
        self._warn_of_no_effect(0)

    # -- hooks for subclasses ------------------------------------------------------------------

    def _rule(self, group: Group) -> Rule:
        """Return the rule of a group."""
        return self.rules[tuple(group[name] for name in self.variants)]

    def _given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """Return the rule's own hyperparameters, and whatever else its coefficients read.

        `read` converts each hyperparameter that may be a tensor; on the CPU it is `float`.
        """
        raise NotImplementedError

    def _of_shape(self, group: Group, shape: tuple[int, ...]) -> dict[str, float]:
        """Return the scalars that depend on a parameter's shape, if the rule is `shaped`."""
        return {}

    def _all_given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """Return the rule's scalars, and those of the options that all optimizers have."""
        given = {
            "grad_scale": -1.0 if group["maximize"] else 1.0,
            "lr": read(group["lr"]),
            "weight_decay": read(group["weight_decay"]),
            **self._given(group, arith, read),
        }
        if group["decouple_lr"]:
            given = options.weight_decay(group, given)
        given["grad_limit"] = self.max_grad_value or 0.0
        return given

    def _check_group(self, group: Group) -> None:
        """Raise for hyperparameters out of range."""
        for name, check in validation.HYPERPARAMETERS.items():
            if name in self._required:
                check(group[name])

    def _check_scheduled(self, group: Group) -> None:
        """Raise for values out of range in a group before a step."""
        self._check_group(scheduled(group, self.defaults))

    def _later_options(self) -> Group:
        """Return the defaults of options that checkpoints of older versions lack."""
        return {**options.OLDER, **dict.fromkeys(self.later, False)}

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch.amp.GradScaler sets `grad_scale` and `found_inf` for the step."""
        return gradient_scaling.unscales(self)

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
            options.check(merged, self.defaults)
            self._check_group(merged)
            merged = options.with_peak_lr(merged, param_group)
            options.check_decay(merged, self._rule(merged).decoupled, type(self).__name__)
            param_group = {**param_group, "peak_lr": merged["peak_lr"]}
            validation.distinct(f"param_groups[{index}]", merged.get("params"))
        try:
            super().add_param_group(param_group)
            group, words = self.param_groups[index], f"param_groups[{index}]"
            randomness.set_default_key(words, group)
            for where, p in self._named(index):
                if not validation.later(p):
                    validation.parameter(where, p, self.takes_expansions)
                    if self._arithmetic(group, p, where).strategy.random:
                        randomness.stream_names(words, group)
        except BaseException:
            # After an error in the constructor nobody has the object; later, the other groups must
            # stay.
            del self.param_groups[index:]
            raise
        self._lost.active = self.check_numerics
        if self._complete:
            self._warn_of_no_effect(index)

    def _warn_of_no_effect(self, first: int) -> None:
        """Warn once if the precision of the groups from `first` on has no effect on anything."""
        if not self._told_of_no_effect:
            self._told_of_no_effect = user_warnings.warn_of_no_effect(self, first)

    def _check_precision(self, group: Group) -> None:
        """Raise for an unknown precision, rounding or compute_dtype."""
        if group["precision"] not in self.precisions:
            name = type(self).__name__
            check_composed(group["precision"], self.precisions, self.custom, name)
        validation.compute_dtype(options.dtype_of(group["compute_dtype"]))
        check_choice("low", group["low"], options.LOW)

    def _named(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of a group, each with its name for error messages."""
        group = self.param_groups[index]
        names = group.get("param_names") or ()
        # Names of a whole group do not fit its parameters once other software has sharded them.
        known = len(names) == len(group["params"])
        for k, p in enumerate(group["params"]):
            name = f" ({names[k]})" if known else ""
            yield f"params[{k}]{name} of param_groups[{index}]", p

    def _all_named(self) -> Iterator[tuple[Group, str, Tensor]]:
        """Yield all parameters, each after its group and its name for error messages."""
        for index, group in enumerate(self.param_groups):
            for where, p in self._named(index):
                yield group, where, p

    def _parameters(self) -> Iterator[Tensor]:
        """Yield all parameters, in the order in which checkpoints number them."""
        for group in self.param_groups:
            yield from group["params"]

    def _arithmetic(self, group: Group, p: Tensor, where: str) -> Arithmetic:
        strategy = strategy_of(group["precision"]).with_low(group["low"])
        computed = options.dtype_of(group["compute_dtype"])
        found = arithmetic(strategy, p.dtype, computed, where).of_shape(tuple(p.shape))
        if not self._rule(group).seconds:
            found = found.without_second()
        if found.strategy.packed:
            randomness.whole_pairs(where, p, group["precision"])
        self._check_arithmetic(group, found, where)
        return expansions.arithmetic(found, p, where)

    def _check_arithmetic(self, group: Group, arith: Arithmetic, where: str) -> None:
        """Raise for hyperparameters that the arithmetic of a parameter cannot represent."""

    # -- steps ---------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    # torch.compile of a caller gains nothing here: a step is checks and one opaque operator.
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every parameter that has a gradient.

        Gradients are read and never changed. Everything is checked before anything is changed.

        Args:
            closure: evaluates the model again and returns the loss, as in torch.

        Returns:
            The result of the closure.

        Raises:
            ValueError, TypeError: for a gradient of another shape, dtype, device or layout than
                its parameter, and for a parameter that changed dtype or shape after its first
                step.
            RuntimeError: while a CUDA graph is captured, for groups that are not capturable and
                for parameters that have not been stepped before.
        """
        for index in range(len(self.param_groups)):
            self._check_capture(index, self._named(index))
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sampled = self._lost.before(self) if self.check_numerics and self._lost.active else None
        self._take(self._steps, self._request())
        if sampled:
            self._lost.after(self, sampled)
        return loss

    def _take(self, steps: Steps, request: Request) -> None:
        """Take a requested step, after its closure and without the hooks of `step`."""
        # Two threads at a time would lose steps: counts, caches and states are read and written.
        with self._lock:
            try:
                steps.take(request)
            finally:
                if request.gradients.norm is not None:
                    self.grad_norm = request.gradients.norm

    def _check_capture(self, index: int, named: Iterable[Named]) -> None:
        """Raise if a captured graph would freeze values that the CPU has computed once."""
        if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
            return
        if not self.param_groups[index]["capturable"]:
            raise RuntimeError(
                f"step() while a CUDA graph is captured: param_groups[{index}] has "
                "capturable=False, so each replay would repeat the scalars of this step; "
                "allowed is capturable=True"
            )
        for where, p in named:
            state = self._made(p)
            if p.grad is not None and (not state or state["step"].device != p.device):
                raise RuntimeError(
                    f"step() while a CUDA graph is captured: {where} has no state on "
                    f"{p.device} yet, so each replay would reset it; take a step first"
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, and their second components, as torch does."""
        super().zero_grad(set_to_none)
        if self._accumulator is not None:
            self._accumulator.zero()

    def _request(self, only: tuple[int, Named] | None = None) -> Request:
        """Return the request for a step of all parameters, or of one and its group's index."""
        settings = gradient_scaling.PLAIN
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        mine = (self.max_grad_norm, self.max_grad_value, self.nonfinite, scale, found)
        if mine != (None, None, "torch", None, None):
            capturable = any(group["capturable"] for group in self.param_groups)
            released = self._released and only is None
            settings = gradient_scaling.Settings(*mine, capturable, released)
        terms = None
        if self._track_metrics:
            terms = [self._rule(group).metrics[1] for group in self.param_groups]
        found = Request(
            groups=self.param_groups,
            counted=self.param_groups,
            state=self.state,
            lows=self._grad_low,
            gradients=settings,
            terms=terms,
            collect=self._collect,
        )
        if only is not None:
            index, named = only
            found.groups, found.only = (), named[1]
            found.collect = lambda skip: self._buckets(index, [named], skip)
        return found

    def _collect(self, skip: Container[int] = ()) -> list[Bucket]:
        """Check all parameters with gradients and sort them by the kernel they need.

        Parameters whose ids are in `skip` are left out.
        """
        found = (self._buckets(k, self._named(k), skip) for k in range(len(self.param_groups)))
        buckets = [bucket for some in found for bucket in some]
        if not (buckets or skip or self._told):
            self._told = user_warnings.warn_of_replaced(self.param_groups, self.state)
        return buckets

    def _buckets(
        self, index: int, named: Iterable[Named], skip: Container[int] = ()
    ) -> list[Bucket]:
        """Check the named parameters of one group and sort them by the kernel they need."""
        group = self.param_groups[index]
        self._check_precision(group)
        self._check_scheduled(group)
        rule = self._rule(group)
        kinds: dict[tuple[Any, ...], list[Named]] = {}
        for where, p in named:
            if p.grad is None:
                validation.replaced(where, p)
            elif id(p) not in skip:
                validation.parameter(where, p, self.takes_expansions)
                place_gradient(p)
                validation.gradient(where, p, p.grad)
                # The rows that one launch sums over must belong to the same processes.
                shared = (p.device_mesh, across(p)) if is_sharded(p) else None  # type: ignore[attr-defined]
                kind = (self._arithmetic(group, p, where), p.device, self._form(p), shared)
                kinds.setdefault(kind, []).append((where, p))
        buckets = []
        for (arith, device, form, _), mine in kinds.items():
            registry.executor_for(device)
            formats = states(rule, arith)
            for where, p in mine:
                state = self._made(p)
                if state:
                    validation.state(where, p, state, formats, rule, group["capturable"])
                    validation.state_device(where, p, state, formats)
            hyper = GroupHyperparameters(self, group, rule, arith, mine[0][0])
            buckets.append(Bucket(index, rule, arith, form, hyper, mine))
        return buckets

    def _form(self, p: Tensor) -> GradientForm:
        """Return how a parameter's kernel reads its gradient, which has been checked."""
        given = gradient_scaling.components(p, self._grad_low)
        fmt = format_of(given[0].dtype, "gradient")
        return GradientForm(fmt, len(given) > 1, self.max_grad_value is not None)

    def _made(self, p: Tensor) -> Group:
        """Return a parameter's state; empty if only other software has entries there."""
        return entries.made_of(self.state, p)

    # -- stored values ------------------------------------------------------------------------

    @torch.no_grad()
    def master_weight(self, p: Tensor, *, exact: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Return the value that is stored for a parameter: p + param_lo, or the master copy.

        After other code wrote to the parameter, it is the value that the next step begins with.

        Args:
            p: one of the optimizer's parameters.
            exact: return the stored tensors, whose sum is the value, instead of rounding it.

        Returns:
            A new float32 tensor (float64 for a float64 parameter) of p's shape and layout, or a
            copy of a frozen parameter of another dtype. With `exact`, the tuple of stored
            components, largest first, not copied; bf16 with further bits is joined to one float32.

        Raises:
            ValueError: if `p` is not a parameter of this optimizer.
        """
        if not any(p is q for group in self.param_groups for q in group["params"]):
            raise ValueError(
                f"p of shape {list(p.shape)} is not one of this optimizer's parameters"
            )
        storage, tensors = self._stored(p)
        components = storage.components(tensors)
        if exact:
            return tuple(like(p, t) for t in components)
        if p.dtype not in FORMATS:
            # A frozen parameter.
            return p.detach().clone()
        kind = torch.float64 if p.dtype == torch.float64 else torch.float32
        value = components[0].to(kind, copy=True)
        for low in components[1:]:
            value += low.to(kind)
        return like(p, value)

    def _stored(self, p: Tensor) -> tuple[Storage, list[Tensor]]:
        """Return the storage of a parameter's value and the local tensors that hold it.

        The tensors are the parameter (or an expansion's components) and the state next to it, if
        there is one, as the next step begins with them.
        """
        state = self._followed(p)
        if expansions.is_expansion(p):
            return PAIR, list(expansions.components(p))
        tensors = [local(p.detach())]
        if not state:
            return SINGLE, tensors
        storage = self._arithmetic(self._group_of(p), p, "p").strategy.param
        return storage, tensors + ([local(state[storage.hidden])] if storage.hidden else [])

    @torch.no_grad()
    def _followed(self, p: Tensor) -> Group:
        """Return a parameter's state as the next step begins with it."""
        self._steps.tell()
        state = self._made(p)
        if not state or not self._steps.marks.perhaps(p):
            return state
        group = self._group_of(p)
        arith = self._arithmetic(group, p, "p")
        if not rewritten.beside(arith):
            return state
        return rewritten.followed("p", p, state, arith, group["capturable"])

    def _group_of(self, p: Tensor) -> Group:
        """Return the group of a parameter."""
        return next(g for g in self.param_groups if any(p is q for q in g["params"]))

    @torch.no_grad()
    def reload_model_params(self) -> None:
        """Adopt the current values of all weights after other code wrote to them.

        A step detects by itself writes through a parameter and replaced memory. Call this after
        writing in place through `p.data`, which leaves no trace. State next to a weight (a master
        copy, a low word, further bits) is kept where it can belong to the present weight, and reset
        otherwise, element by element.
        """
        found = []
        for group, where, p in self._all_named():
            state = self._made(p)
            arith = self._arithmetic(group, p, where) if state else None
            if arith is not None and rewritten.beside(arith):
                repair = rewritten.repair(where, p, state, arith, group["capturable"])
                found += [] if repair is None else [repair]
        rewritten.tell(self._steps.marks, found)
        rewritten.apply(found)

    def metrics(self, *, flat: bool = False) -> dict[str, Any]:
        """Return how the last step changed the stored parameters; needs `track_metrics=True`.

            run.log(optimizer.metrics(flat=True))

        Args:
            flat: return numbers only, with the metrics of group 0 as `groups/0/edq` and so on, for
                loggers (wandb, TensorBoard, Lightning's `log_dict`).

        Returns:
            A dict with `edq` (effective descent quality <e, d> / |d| of the intended update d and
            the effective one e, Definition 3.3 of the Collage paper, arXiv:2405.03637),
            `update_norm` (|d|), `edq_ratio` (edq / |d|; 1 when nothing is lost, NaN when d is 0),
            `lost_param` and, for rules with a second moment, `lost_exp_avg_sq` (the share, 0 to 1,
            of additions of a nonzero number that left the stored value unchanged), over all
            parameters; and `groups`, a list of these metrics for each parameter group, unless
            `flat`. All are floats; those of a group without updates are 0 or NaN. Sums are kept in
            registers over blocks of elements: relative error below 1e-4.

        Raises:
            RuntimeError: if metrics are not tracked or no step was made.
        """
        if not self._track_metrics:
            raise RuntimeError("metrics() needs an optimizer made with track_metrics=True")
        if self._steps.metrics is None:
            raise RuntimeError("metrics() needs a step first")
        return self._steps.metrics.result(flat)

    # -- checkpoints -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, in types that distributed checkpoints can save and move.

        Groups hold plain data, dtypes by name. 16-bit integers become int8 tensors with a last
        dimension of 2, which share their memory.
        """
        return checkpoint.portable(super().state_dict())

    @torch.no_grad()
    def init_state(self) -> None:
        """Create the states of all parameters that have none, as the first step would.

        Use it to fill a new optimizer in place. torch.distributed.checkpoint would otherwise take a
        step with gradients and learning rates of 0, which counts until a state is loaded.
        """
        for group, where, p in self._all_named():
            if not validation.later(p) and not self._made(p):
                arith = self._arithmetic(group, p, where)
                made = new_state(self._rule(group), arith, p, bool(group["capturable"]))
                self.state[p].update(made)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state made by `state_dict`, bit for bit; every state keeps its own dtype.

        States go to parameters by name if both sides name all parameters of a group, otherwise by
        index, as in torch.

        Raises:
            ValueError, TypeError: when the state is of another precision, shape or model; then
                nothing has changed.
        """
        # Overrides torch's method, which would cast every state to its parameter's dtype.
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        state_dict = checkpoint.in_order(self.param_groups, state_dict)
        checkpoint.check(self, state_dict)
        groups = checkpoint.groups(self, state_dict)
        states = checkpoint.states(self, state_dict)
        # One assignment, so that no interrupt leaves half of it. Cached steps would hold old
        # addresses.
        vars(self).update(state=states, param_groups=groups, _steps=self._steps.anew())
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        fresh: Group = {
            "_track_metrics": False,
            "_steps": Steps(),
            "_lock": threading.RLock(),
            "_lost": LostUpdates(False),
            "_grad_low": {},
            "_accumulator": None,
            "_released": False,
            **options.OF_OPTIMIZER,
        }
        vars(self).update({**fresh, **vars(self), "_complete": True})
        super().__setstate__(state)
        self.__dict__.setdefault("_required", frozenset(self.defaults))
        # Groups of an older version lack later options.
        for group in (self.defaults, *self.param_groups):
            renamed = options.upgraded(group)
            group.clear()
            group.update(renamed)
            for name, default in self._later_options().items():
                group.setdefault(name, default)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with copied parameters, which keep their offsets in larger tensors."""
        return randomness.deepcopied(self, memo)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that pickling and copying keep."""
        mine = {name: getattr(self, name) for name in (*options.OF_OPTIMIZER, "_required")}
        return {**super().__getstate__(), **mine, "_track_metrics": self._track_metrics}
