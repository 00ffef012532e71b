"""Per-parameter optimizers of torch on parameters and states stored in low precision."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcf.kernels.choices import check_choice
from mcf.optim import options, user_warnings, validation
from mcf.optim.checkpoint import in_order
from mcf.optim.companions import wrap_storage as storage
from mcf.optim.parameters import randomness
from mcf.optim.precision import Precision, by_name, parts, strategy_of
from mcf.optim.sharding.processes import everyone, place_gradient
from mcf.optim.sharding.shards import is_sharded, like, local, moved_like
from mcf.optim.step import gradient_scaling, rewritten
from mcf.optim.step.rewritten import Marks
from mcf.optim.storage.strategies import (
    STRATEGIES,
    WITHOUT_FEEDBACK,
    Arithmetic,
    PrecisionName,
    Strategy,
    arithmetic,
)
from mcf.optim.validation import has_values

Group = Mapping[str, Any]


def strategy_of_group(group: dict[str, Any]) -> Strategy:
    """Return the strategy of a group, after checks."""
    options.check_rounding(group)
    name = group["precision"]
    if name not in STRATEGIES and parts(name) is None:
        check_choice("precision", name, WITHOUT_FEEDBACK)
    found = strategy_of(name)
    if found.feedback:
        raise ValueError(
            f"precision={name!r} feeds rounding errors back into a first moment that the update is "
            "a multiple of, and a class of torch does not say which state that is; use "
            "mcf.optim.SGD, Adam or AdamW"
        )
    return found.with_low(group["low"])


# States of torch's optimizers that are averages or sums of squares, or maxima of these.
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")


def collage(
    optimizer: type[Optimizer],
    params: ParamsT,
    *,
    precision: PrecisionName | Precision = "light",
    low: str = "nearest",
    seed: int = 0,
    compute_dtype: torch.dtype = torch.float32,
    second_moments: Collection[str] = SECOND_MOMENTS,
    **options: Any,
) -> Collage:
    """Return an optimizer of torch whose parameters and states are stored in a precision.

        optimizer = mcf.optim.collage(torch.optim.NAdam, model.parameters(), lr=1e-3)

    For one parameter after another, its value and states are read into `compute_dtype`, the class
    steps them, and the results are stored: an expansion (`light`, `plus`, `kahan`) adds the update
    (new - old), other parameters take the new value, and each state is rounded to its format. So
    the temporary memory is that of the largest parameter.

    Args:
        optimizer: a class of torch's conventions that treats each parameter by itself.
        params: parameters, named parameters or groups; groups may have their own `precision`,
            `low`, `seed` and `stream_by`.
        precision: see `mcf.optim.AdamW`, or a `Precision`; not those that feed rounding errors back
            (`eco`), for which use `mcf.optim.SGD`, `Adam` or `AdamW`.
        low: see `mcf.optim.options.Options`.
        seed: see `mcf.optim.options.Options`; streams are keyed as they are there.
        compute_dtype: float32, which resolves an update to 2**-24 of its weight, as with float32
            master weights; or float64, which resolves it to float32's precision.
        second_moments: the names of states that use the second-moment storage; states without
            dimensions or with another shape than the parameter are stored unchanged.
        options: options of the class.

    DTensor parameters are passed to the class as such: it computes on local parts, and torch
    communicates for functions of the whole, if it can. All processes step together.

    Guarantees: a class that treats each element by itself has the bits of one process, however
    parameters are shared. With `precision="master"` in float32 the bits are those of the class on
    float32 parameters. This package's rules round elsewhere than the class: see `Collage`.

    Raises:
        ValueError, TypeError: as the class does, and for arguments that this package refuses. New
            and changed options are tried in two steps on stand-ins for the parameters, so that no
            step fails half-way.
    """
    mine = {"precision": precision, "low": low, "seed": seed, "stream_by": None}
    return Collage(optimizer, params, mine, compute_dtype, second_moments, options)


class Collage(Optimizer):
    """An optimizer of torch on stored parameters, created by `collage`.

    In contrast to this package's optimizer of the same rule, the class rounds the new weight and
    not the update, and applies decay to the weight, so bits differ by float32 roundings. In float64
    the update of `torch.optim.SGD` is the same to within 2**-53 of the weight, and the stored bits
    are those of `mcf.optim.SGD` unless that decides a rounding; stochastic rounding draws the same
    bits.
    """

    # Whether the constructor has added its groups, and which warnings were issued.
    _complete = False
    _told_of_no_effect = False
    _told = False

    def __init__(
        self,
        optimizer: type[Optimizer],
        params: ParamsT,
        mine: dict[str, Any],
        compute_dtype: torch.dtype,
        second_moments: Collection[str],
        options: dict[str, Any],
    ) -> None:
        """Take this package's defaults of groups, `mine`, and the class's `options`."""
        if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
            raise TypeError(f"optimizer is {optimizer!r}; allowed is a class of torch.optim's kind")
        if issubclass(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS does not treat each parameter by itself")
        if compute_dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"Invalid compute_dtype: {compute_dtype}; allowed are torch.float32, torch.float64"
            )
        self._class = optimizer
        self._options = dict(options)
        self._compute_dtype = compute_dtype
        self._marks = Marks()
        if isinstance(second_moments, str):
            raise TypeError(
                f"second_moments is the string {second_moments!r}; allowed are several names"
            )
        self._second_moments = frozenset(second_moments)
        # The options of each group that were tried, and the entries that the class writes.
        self._tried: list[tuple[dict[str, Any], frozenset[str]]] = []
        defaults = {**self._made().defaults, **mine}
        self._lock = threading.RLock()
        super().__init__(params, by_name(defaults))
        self._complete = True
        self._told_of_no_effect = user_warnings.warn_of_no_effect(self, 0)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch.amp.GradScaler leaves the scale and its findings to the step."""
        return gradient_scaling.unscales(self)

    def _made(self, **options: Any) -> Optimizer:
        """Return the class with a stand-in for a parameter; it checks the options."""
        return stand_in(self._class, {**self._options, **options})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; the class and this package check it first."""
        if isinstance(param_group, dict):
            param_group = by_name(param_group)
            strategy_of_group({**self.defaults, **param_group})
            given = {k: v for k, v in param_group.items() if k in self.defaults}
            self._made(**class_options(given))
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        try:
            group, words = self.param_groups[index], f"param_groups[{index}]"
            randomness.set_default_key(words, group)
            for k, p in enumerate(group["params"]):
                where = f"params[{k}] of param_groups[{index}]"
                if not validation.later(p):
                    validation.parameter(where, p)
                    if self._arithmetic(group, p, where).strategy.random:
                        randomness.stream_names(words, group)
            self._try(index)
        except Exception:
            self.param_groups.pop()
            raise
        if self._complete and not self._told_of_no_effect:
            self._told_of_no_effect = user_warnings.warn_of_no_effect(self, index)

    def _arithmetic(self, group: dict[str, Any], p: Tensor, where: str) -> Arithmetic:
        found = arithmetic(strategy_of_group(group), p.dtype, torch.float32, where)
        if found.strategy.narrow:
            raise ValueError(
                f"precision={group['precision']!r} of {where} keeps moments as codes relative to "
                "each other, and those of a wrapped class are not known to be; allowed are "
                "precisions that store numbers, 'bf16_sr' among them"
            )
        return found

    def _try(self, index: int) -> None:
        """Raise, before anything is changed, for options with which the class makes no step."""
        group = self.param_groups[index]
        now = snapshot(group)
        if index < len(self._tried):
            before, names = self._tried[index]
            if before == {k: v for k, v in now.items() if k not in names}:
                return
        names = try_steps(self._made, group, f"param_groups[{index}]")
        kept = {k: v for k, v in now.items() if k not in names}
        self._tried[index:] = [(kept, names), *self._tried[index + 1 :]]

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every parameter that has a gradient with the class; gradients are not changed.

        Raises:
            ValueError, TypeError: for options with which the class makes no step, for a gradient
                that does not fit, and for a parameter whose dtype or shape changed after its first
                step; before anything is changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Two threads at a time would lose steps: counts, states and marks are read and written.
        with self._lock:
            if not (self._take() or self._told):
                self._told = user_warnings.warn_of_replaced(self.param_groups, self.state)
        return loss

    def _take(self) -> bool:
        """Step every parameter that has a gradient, and return whether one has."""
        work, known = [], dict[Tensor, int]()
        for index, group in enumerate(self.param_groups):
            self._try(index)
            for k, p in enumerate(group["params"]):
                where = f"params[{k}] of param_groups[{index}]"
                if p.grad is None:
                    validation.replaced(where, p)
                else:
                    validation.parameter(where, p)
                    place_gradient(p)
                    validation.gradient(where, p, p.grad)
                    arith = self._arithmetic(group, p, where)
                    storage.check(where, p, self.state.get(p, {}), arith)
                    work.append((where, group, p, arith))
                    if arith.strategy.random and not known:
                        known = randomness.stream_numbers(self.param_groups)
        found = getattr(self, "found_inf", None)
        if found is not None:
            every = everyone(p for group in self.param_groups for p in group["params"])
            if float(gradient_scaling.found_by_any(found, every)) != 0:
                return bool(work)
        scale = getattr(self, "grad_scale", None)
        factor = 1.0 if scale is None else 1.0 / float(scale)
        rewritten.follow(self._marks, [(w, p, self.state.get(p, {}), a) for w, _, p, a in work])
        # All parameters of a group get its options as they were before the class writes any.
        later: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for _, group, p, arith in work:
            later.append((group, self._step_one(group, known, p, arith, factor)))
            self._marks.leave([p])
        for group, changed in later:
            group.update(changed)
        return bool(work)

    def _step_one(
        self,
        group: dict[str, Any],
        known: Mapping[Tensor, int],
        p: Tensor,
        arith: Arithmetic,
        scale: float,
    ) -> dict[str, Any]:
        """Step a parameter; return the entries that the class has written into its group."""
        state = self.state[p]
        wide = torch.promote_types(self._compute_dtype, p.dtype)
        old = storage.value(p, state, arith, wide)
        weight = old.clone().requires_grad_()
        assert p.grad is not None
        weight.grad = p.grad.to(wide, copy=True)
        if scale != 1.0:
            weight.grad.mul_(scale)
        inner = self._made()
        inner.param_groups = [{**class_options(group), "params": [weight]}]
        mine = storage.read(state, p, wide)
        inner.state = defaultdict(dict)
        if mine:
            inner.state[weight] = mine
        class_step(inner)
        found, new = inner.state[weight], weight.detach()
        stream = (0.0, 0.0)
        if arith.strategy.random:
            # Classes count their steps each in its own way, or not at all.
            count = state.setdefault("param_step", torch.zeros((), dtype=torch.int64, device="cpu"))
            count += 1
            seed = group["seed"]
            ((key, first),) = randomness.columns(seed, known, [p], [int(count)])
            stream = (key, first)
        storage.store(p, state, arith, old, new, stream)
        for name, t in found.items():
            second = name in self._second_moments
            storage.write(name, state, t, p, arith, second, stream, wide)
        return written(inner, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; every state keeps its own dtype.

        States go to parameters by name if both sides name all parameters of a group.

        Raises:
            ValueError, TypeError: for other groups, sizes, precisions or names.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        state_dict = in_order(self.param_groups, state_dict)
        # Older checkpoints key streams by index.
        saved = [{"stream_by": "place", **group} for group in state_dict["param_groups"]]
        check_saved(self.param_groups, saved)
        state = copied_states(self.param_groups, saved, state_dict["state"])
        loaded = [copy.deepcopy({k: v for k, v in g.items() if k != "params"}) for g in saved]
        for group, other in zip(self.param_groups, loaded, strict=True):
            group.update(other)
        self.state, self._marks.left = state, {}
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with copied parameters, which keep their offsets in larger tensors."""
        return randomness.deepcopied(self, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        self._marks, self._lock, self._complete = Marks(), threading.RLock(), True
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that pickling and copying keep."""
        own = ("_class", "_options", "_compute_dtype", "_second_moments", "_tried")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    @torch.no_grad()
    def master_weight(self, p: Tensor) -> Tensor:
        """Return the value that is stored for a parameter, in float32 (float64 for float64)."""
        wide, state = torch.promote_types(torch.float32, p.dtype), self.state.get(p, {})
        group = next((g for g in self.param_groups if any(p is q for q in g["params"])), None)
        if group is None or not state:
            return p.detach().to(wide, copy=True)
        arith = self._arithmetic(group, p, "p")
        if self._marks.perhaps(p):
            state = rewritten.followed("p", p, state, arith, False)
        return storage.value(p, state, arith, wide).clone()


# -- checkpoints -------------------------------------------------------------------------------


def check_saved(groups: Sequence[Group], saved: Sequence[Group]) -> None:
    """Raise unless the groups of a checkpoint are like the optimizer's.

    Raises:
        ValueError, TypeError: for other groups, sizes, precisions or names.
    """
    mine, theirs = (
        [(len(g["params"]), g.get("precision"), g.get("low", "nearest")) for g in some]
        for some in (groups, saved)
    )
    if mine != theirs:
        raise ValueError(
            f"state_dict has groups of (parameters, precision, low) {theirs}; the optimizer {mine}"
        )
    for index, (group, other) in enumerate(zip(groups, saved, strict=True)):
        loaded = {**group, **other, "params": group["params"]}
        randomness.stream_names(f"state_dict param_groups[{index}]", loaded)


def copied_states(
    groups: Sequence[Group], saved: Sequence[Group], states: Mapping[Any, Any]
) -> defaultdict[Tensor, dict[str, Any]]:
    """Return copies of the saved states on the parameters' devices, each in its own dtype."""
    found: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    for index, (group, other) in enumerate(zip(groups, saved, strict=True)):
        for k, (key, p) in enumerate(zip(other["params"], group["params"], strict=True)):
            for name, value in states.get(key, {}).items():
                has_values(name, f"params[{k}] of param_groups[{index}]", p, value)
                if not isinstance(value, Tensor) or not value.dim():
                    found[p][name] = copy.deepcopy(value)
                    continue
                laid = moved_like(p, value.detach()) if value.shape == p.shape else value.detach()
                found[p][name] = laid.clone() if is_sharded(laid) else laid.to(p.device, copy=True)
    return found


# -- the wrapped class -------------------------------------------------------------------------

# Options of groups that belong to this package instead of the class.
OURS = ("params", "param_names", "precision", "low", "seed", "stream_by")


def class_options(group: Group) -> dict[str, Any]:
    """Return a group's options that belong to the class."""
    return {k: v for k, v in group.items() if k not in OURS}


def stand_in(kind: type[Optimizer], options: Mapping[str, Any]) -> Optimizer:
    """Return a class with a stand-in for a parameter; it checks the options.

    Raises:
        TypeError: for a class that needs more in groups than its options.
    """
    make: Callable[..., Optimizer] = kind
    weight = torch.zeros(1, 1, dtype=torch.float32, device="cpu", requires_grad=True)
    try:
        return make([weight], **options)
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise TypeError(
            f"{kind.__name__} cannot be made for a list of parameters: {type(error).__name__}: "
            f"{error}; allowed are classes that, as torch.optim's, ask nothing of groups but params"
        ) from error


def snapshot(group: Group) -> dict[str, Any]:
    """Return the values of a group's options, tensors by value, to compare with later ones."""
    return {
        k: tuple(v.flatten().tolist()) if isinstance(v, Tensor) else v
        for k, v in class_options(group).items()
    }


def written(inner: Optimizer, given: Group) -> dict[str, Any]:
    """Return the entries that a class has written into its group, such as a count of steps."""
    (group,) = inner.param_groups
    before = snapshot(given)
    changed = {k for k, v in snapshot(group).items() if k not in before or v != before[k]}
    return {k: v for k, v in group.items() if k in changed}


def try_steps(make: Callable[[], Optimizer], group: Group, where: str) -> frozenset[str]:
    """Make two steps on stand-ins for a group's parameters, one for each number of dimensions.

    DTensors have one stand-in per layout, as large as the parameter, because a class that needs
    more than the local part communicates with other processes.

    Returns:
        The names of the entries that the class writes into groups, equal for all parameters.

    Raises:
        ValueError: with the class's error, before anything is changed; and for a class whose
            entries in groups depend on parameters or gradients.
    """
    names: set[str] = set()
    kinds = {(p.dim(), p.device, _layout(p)): p for p in group["params"] if not is_lazy(p)}
    for (dims, device, layout), p in kinds.items():
        found = []
        for number in (0.0, 1.0):
            weight = torch.full([1] * dims, number, dtype=torch.float32, device=device)
            if layout is not None:
                weight = like(p, torch.full_like(local(p), number, dtype=torch.float32))
            weight.requires_grad_()
            weight.grad = torch.ones_like(weight) * (1 + number)
            inner = make()
            inner.param_groups = [{**class_options(group), "params": [weight]}]
            try:
                with torch.no_grad():
                    class_step(inner)
                    class_step(inner)
            except Exception as error:
                raise ValueError(
                    f"{type(inner).__name__} makes no step on a parameter of shape "
                    f"{list(p.shape)} with the options of {where}: {type(error).__name__}: {error}"
                ) from error
            found.append(snapshot(written(inner, group)))
        if found[0] != found[1]:
            differ = sorted(
                k for k in {**found[0], **found[1]} if found[0].get(k) != found[1].get(k)
            )
            raise ValueError(
                f"{type(inner).__name__} keeps {', '.join(differ)} of all parameters of a group "
                "together, and each is stepped by itself here; allowed are classes that treat "
                "each parameter by itself"
            )
        names |= {*found[0]}
    return frozenset(names)


def _layout(p: Tensor) -> Any:
    return (p.device_mesh, tuple(p.placements)) if is_sharded(p) else None  # type: ignore[attr-defined]


def class_step(inner: Optimizer) -> None:
    """Make a step of the class itself, without the hooks that torch puts around all optimizers."""
    own: Any = type(inner).step
    (own.__wrapped__ if getattr(own, "hooked", False) else own)(inner)
