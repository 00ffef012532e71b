"""Parameter groups under precision strategies, and the hooks that a subclass implements."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import Optimizer

from mcf.kernels import registry
from mcf.kernels.choices import check_choice
from mcf.kernels.formats import format_of
from mcf.optim import options, user_warnings, validation
from mcf.optim.parameters import entries, expansions, randomness
from mcf.optim.precision import by_name, check_composed, strategy_of
from mcf.optim.rule.rule import Rule
from mcf.optim.sharding.processes import across, place_gradient
from mcf.optim.sharding.shards import is_sharded
from mcf.optim.step import gradient_scaling
from mcf.optim.step.bucket import Bucket, Named, Request
from mcf.optim.step.kernel import GradientForm, states
from mcf.optim.step.run import Steps
from mcf.optim.storage.strategies import WITHOUT_FEEDBACK, Arithmetic, arithmetic

Group = dict[str, Any]


class GroupedOptimizer(Optimizer):
    """Parameter groups, each with a rule and a precision, checked before they are added."""

    # The values of `precision` that make sense for the rule.
    precisions: tuple[str, ...] = WITHOUT_FEEDBACK
    # Whether `Precision` may compose further ones.
    custom = True
    # The options of a group that select its rule, and the rules by the values of these.
    variants: tuple[str, ...] = ()
    rules: Mapping[tuple[Any, ...], Rule]
    # Whether parameters may be expansion tensors.
    takes_expansions = True

    max_grad_norm: float | None
    max_grad_value: float | None
    check_numerics: bool
    nonfinite: str
    # Norm of all gradients in the last step, if it was clipped.
    grad_norm: Tensor | None = None

    # Second components of the gradients during a step, and the accumulator that fills them.
    _grad_low: dict[Tensor, Tensor]
    _accumulator: Any
    _released: bool
    # The entries that a checkpoint's groups must have; wrappers may add others to `defaults`.
    _required: frozenset[str]
    # State that steps leave for later steps.
    _steps: Steps
    # Whether the warning about replaced parameters was issued.
    _told = False
    _track_metrics: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show users every option of the constructor."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            shown = options.signature(vars(cls)["__init__"])
            cls.__signature__ = shown  # type: ignore[attr-defined]

    # -- hooks for subclasses ------------------------------------------------------------------

    def _rule(self, group: Group) -> Rule:
        """Return the rule of a group."""
        return self.rules[tuple(group[name] for name in self.variants)]

    def _given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """Return the hyperparameters, and whatever else `Rule.coefficients` reads from a group.

        `read` converts each hyperparameter that may be a tensor; on the CPU it is `float`.
        """
        raise NotImplementedError

    def _of_shape(self, group: Group, shape: tuple[int, ...]) -> dict[str, float]:
        """Return the scalars that depend on a parameter's shape, if the rule is `shaped`."""
        return {}

    def _all_given(self, group: Group, arith: Arithmetic, read: Callable[[Any], Any]) -> Group:
        """Return the subclass's scalars, and those of the options that all optimizers have."""
        given = self._given(group, arith, read)
        if group["decouple_lr"]:
            given = options.weight_decay(group, given)
        given["grad_limit"] = self.max_grad_value or 0.0
        return given

    def _check_group(self, group: Group) -> None:
        """Raise for hyperparameters out of range."""
        raise NotImplementedError

    def _check_scheduled(self, group: Group) -> None:
        """Raise for values out of range in a group before a step."""
        self._check_group(scheduled(group, self.defaults))

    def _later_options(self) -> Group:
        """Return the defaults of options that checkpoints of older versions lack."""
        return options.OLDER

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
            rule = self._rule(merged)
            name = type(self).__name__
            options.check_decay(merged, dict(rule.slots), rule.decoupled, name)
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

    # -- requests for steps -------------------------------------------------------------------

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
            terms = [self._rule(group).metric_count for group in self.param_groups]
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
            for where, p in mine:
                self._check_state(group, rule, arith, where, p)
            hyper = GroupHyperparameters(self, group, rule, arith, mine[0][0])
            buckets.append(Bucket(index, rule, arith, form, hyper, mine))
        return buckets

    def _form(self, p: Tensor) -> GradientForm:
        """Return how a parameter's kernel reads its gradient, which has been checked."""
        given = gradient_scaling.components(p, self._grad_low)
        fmt = format_of(given[0].dtype, "gradient")
        return GradientForm(fmt, len(given) > 1, self.max_grad_value is not None)

    def _check_state(
        self, group: Group, rule: Rule, arith: Arithmetic, where: str, p: Tensor
    ) -> None:
        """Raise for a state that a parameter's kernel cannot read."""
        state = self._made(p)
        if state:
            formats = states(rule, arith)
            validation.state(where, p, state, formats, rule, group["capturable"])
            validation.state_device(where, p, state, formats)

    def _made(self, p: Tensor) -> Group:
        """Return a parameter's state; empty if only other software has entries there."""
        return entries.made_of(self.state, p)


class GroupHyperparameters:
    """The hyperparameters of a group for a bucket (`mcf.optim.step.bucket.Hyperparameters`)."""

    def __init__(
        self,
        optimizer: GroupedOptimizer,
        group: Group,
        rule: Rule,
        arithmetic: Arithmetic,
        where: str,
    ) -> None:
        self._optimizer, self.options = optimizer, group
        self._rule, self._arithmetic, self._where = rule, arithmetic, where
        self._kind = _kind(group)
        self._before = _values(group)
        # The scalars of the last step.
        self._last: Group | None = None

    def given(self, read: Callable[[Any], Any]) -> Group:
        """Return the scalars of the rule, and whatever else its coefficients read."""
        try:
            found = self._optimizer._all_given(self.options, self._arithmetic, read)
        except (TypeError, ValueError):
            # A value is not a number; the check names it.
            self._optimizer._check_scheduled(self.options)
            raise
        # The first step's values were checked with the parameters. Values on a device are not
        # compared.
        if read is float:
            last = self._last
            if last is not None and last != found and not self._at_other_rates(found, last):
                self._optimizer._check_scheduled(self.options)
            self._last = found
        return found

    def _at_other_rates(self, now: Group, last: Group) -> bool:
        """Return whether only rates differ, as schedules change them: these need no full check."""
        for name in _RATES & now.keys():
            if type(self.options[name]) is not float or not 0 <= now[name] < math.inf:
                return False
        return {**now, **{name: last[name] for name in _RATES & now.keys()}} == last

    def of_shape(self, shape: tuple[int, ...]) -> dict[str, float]:
        """Return the scalars that depend on a parameter's shape."""
        return self._optimizer._of_shape(self.options, shape)

    def ask_the_same(self) -> bool:
        """Return whether the group still needs the rule and the arithmetic of the bucket."""
        group, optimizer = self.options, self._optimizer
        now = _values(group)
        if now is not None and now == self._before:
            return True
        if _kind(group) != self._kind or optimizer._rule(group) is not self._rule:
            return False
        optimizer._check_arithmetic(group, self._arithmetic, self._where)
        self._before = now
        return True


def scheduled(group: Group, defaults: Group) -> Group:
    """Return a group whose values stand for its scheduled hyperparameters in a range check.

    Tensors that a step does not read (on a device, or in a graph that is being captured) are
    replaced by a number within every range. A schedule down to 0 may go below 0 by rounding errors;
    these are below 2**-20 of the initial rate.
    """
    found = {
        name: tuple(_looked_at(x, group) for x in value)
        if type(value) is tuple
        else _looked_at(value, group)
        for name, value in group.items()
        if name not in _NAMED
    }
    lr, of = found["lr"], (defaults.get("lr"), group.get("initial_lr"))
    whole = max((float(x) for x in of if isinstance(x, (int, float))), default=0.0)
    if isinstance(lr, (int, float)) and -whole * 2.0**-20 <= lr < 0:
        found["lr"] = 0.0
    return found


def _looked_at(value: Any, group: Group) -> Any:
    """Return a hyperparameter, or a number within every range for a tensor that is not read."""
    if not isinstance(value, Tensor):
        return value
    unread = group["capturable"] or value.device.type != "cpu" or isinstance(value, FakeTensor)
    return _WITHIN if unread else value.item() if value.numel() == 1 else value


# The hyperparameters that schedules change, in [0, inf).
_RATES = frozenset(("lr", "weight_decay"))
# A number within the range of every hyperparameter that may be a tensor.
_WITHIN = 0.5
# Entries with one value per parameter.
_NAMED = ("params", "param_names")


def _kind(group: Group) -> tuple[Any, ...]:
    """Return what determines the precision strategy and its arithmetic, besides the parameter."""
    return group["precision"], group["low"], group["compute_dtype"]


def _values(group: Group) -> list[Any] | None:
    """Return the options of a group that determine its rule or its arithmetic.

    Return None if a value can be changed in place, because then identity proves nothing.
    """
    found = [value for name, value in group.items() if name not in _CHANGING]
    kinds = set(map(type, found))
    if tuple in kinds:
        kinds.discard(tuple)
        for value in found:
            if type(value) is tuple:
                kinds.update(map(type, value))
    return found if kinds <= _FIXED else None


# Options that determine neither rule nor arithmetic.
_CHANGING = frozenset(("params", "param_names", "lr", "initial_lr", "weight_decay"))
_FIXED = frozenset((int, float, bool, str, type(None), torch.dtype))
