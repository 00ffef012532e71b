"""Any per-parameter optimizer of torch on parameters and states stored in low precision."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import FP32, FP64, Format
from mcf.optim import update, validation, values
from mcf.optim.rules import accumulation
from mcf.optim.strategies import STRATEGIES, Arithmetic, Storage, arithmetic

# The strategies that are a way of storing and nothing else.
PRECISIONS = tuple(s.name for s in STRATEGIES.values() if not s.stochastic and not s.feedback)

# States of torch's optimizers that are averages or sums of squares, or their maxima.
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")


def collage(
    optimizer: type[Optimizer],
    params: ParamsT,
    *,
    precision: str = "light",
    compute_dtype: torch.dtype = torch.float32,
    second_moments: Collection[str] = SECOND_MOMENTS,
    **options: Any,
) -> Collage:
    """An optimizer of torch whose updates go to expansions, and whose states are stored as wanted.

        optimizer = mcf.optim.collage(torch.optim.NAdam, model.parameters(), lr=1e-3)

    For one parameter after another: its value and states are read into `compute_dtype`, the class
    makes its step on them, and what it changed is stored: the parameter takes the update
    (new - old) as an expansion does (`light`, `plus`, `kahan`) or the new value (the others), each
    state is rounded to its format. So the transient memory is that of the largest parameter.

    Args:
        optimizer: a class of torch's conventions that treats each parameter by itself.
        params: parameters, named parameters or groups; groups may name their own `precision`.
        precision: see `mcf.optim.AdamW`; those that are a way of storing alone.
        compute_dtype: float32, where an update is resolved to 2**-24 of its weight, as with float32
            master weights; or float64, where it is resolved to float32's precision.
        second_moments: the names of states that are stored as second moments are; states of
            another shape than the parameter, and those without dimensions, are kept as they are.
        options: those of the class.

    Guarantees: with `precision="master"` in float32 the bits are those of the class on float32
    parameters. The rules of this package and the class round at other places: see `Collage`.

    Raises:
        ValueError, TypeError: as the class does, and for what this package refuses.
    """
    return Collage(optimizer, params, precision, compute_dtype, second_moments, options)


class Collage(Optimizer):
    """See `collage`, which makes it.

    Beside our own optimizer of the same rule: the class rounds the new weight and not the update,
    and applies decay to the weight, so bits differ where float32 rounding does. In float64 the
    update of `torch.optim.SGD` is the same to within 2**-53 of the weight, and the stored bits are
    those of `mcf.optim.SGD` wherever that does not decide a rounding.
    """

    # torch.amp.GradScaler leaves the scale and what it found to the step.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: type[Optimizer],
        params: ParamsT,
        precision: str,
        compute_dtype: torch.dtype,
        second_moments: Collection[str],
        options: dict[str, Any],
    ) -> None:
        """See `collage`."""
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
        self._second_moments = frozenset(second_moments)
        defaults = {**self._made().defaults, "precision": precision}
        super().__init__(params, defaults)

    def _made(self, **options: Any) -> Optimizer:
        """The class on a stand-in for a parameter; it checks the options."""
        make: Callable[..., Optimizer] = self._class
        return make([torch.zeros(1, 1, requires_grad=True)], **{**self._options, **options})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does; the class and this package check it first."""
        if isinstance(param_group, dict):
            given = {k: v for k, v in param_group.items() if k != "params"}
            validation.choice("precision", {**self.defaults, **given}["precision"], PRECISIONS)
            known = {k: v for k, v in given.items() if k in self.defaults and k != "precision"}
            self._made(**known)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for k, p in enumerate(group["params"]):
                where = f"params[{k}] of param_groups[{len(self.param_groups) - 1}]"
                validation.parameter(where, p)
                arithmetic(STRATEGIES[group["precision"]], p.dtype, torch.float32, where)
        except Exception:
            self.param_groups.pop()
            raise

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of the class on every parameter that has a gradient; gradients are not changed.

        Raises:
            ValueError, TypeError: for a gradient that does not fit, and for a parameter whose dtype
                or shape changed after its first step; before anything is changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = []
        for index, group in enumerate(self.param_groups):
            for k, p in enumerate(group["params"]):
                if p.grad is not None:
                    where = f"params[{k}] of param_groups[{index}]"
                    validation.gradient(where, p, p.grad)
                    strategy = STRATEGIES[group["precision"]]
                    arith = arithmetic(strategy, p.dtype, torch.float32, where)
                    _check_state(where, p, self.state.get(p, {}), arith)
                    work.append((group, p, arith))
        found = getattr(self, "found_inf", None)
        if found is not None and float(found) != 0:
            return loss
        scale = getattr(self, "grad_scale", None)
        for group, p, arith in work:
            self._step_one(group, p, arith, 1.0 if scale is None else 1.0 / float(scale))
        return loss

    def _step_one(self, group: dict[str, Any], p: Tensor, arith: Arithmetic, scale: float) -> None:
        state = self.state[p]
        wide = torch.promote_types(self._compute_dtype, p.dtype)
        if arith.strategy.param is Storage.WIDE and "master_param" not in state:
            state["master_param"] = p.detach().float()
        old = _value(p, state, wide)
        weight = old.clone().requires_grad_()
        assert p.grad is not None
        weight.grad = p.grad.to(wide, copy=True)
        if scale != 1.0:
            weight.grad.mul_(scale)
        inner = self._made()
        inner.param_groups = [
            {**{k: v for k, v in group.items() if k not in ("precision", "param_names")},
             "params": [weight]}
        ]  # fmt: skip
        mine = {
            name: _value(t, {"param_lo": state.get(f"{name}_lo")}, wide) if _low(t, p) else t
            for name, t in state.items()
            if not name.endswith("_lo") and name not in ("param_bits", "master_param")
        }
        inner.state = defaultdict(dict)
        if mine:
            inner.state[weight] = mine
        inner.step()
        _store_param(p, state, arith, old, weight.detach())
        for name, t in inner.state[weight].items():
            if _low(t, p):
                self._store(state, name, t, p, arith)
            else:
                state[name] = t

    def _store(
        self, state: dict[str, Any], name: str, new: Tensor, p: Tensor, arith: Arithmetic
    ) -> None:
        second = name in self._second_moments
        storage = arith.strategy.second if second else arith.strategy.first
        dtype = (arith.second_moment if second else arith.stored(storage)).dtype
        assert dtype is not None
        if name not in state or state[name].dtype != dtype:
            state[name] = torch.empty_like(p, dtype=dtype)
        value = values.exact(new)
        state[name].copy_(values.rounded(value, dtype))
        if storage.has_low:
            rest = values.less(value, state[name])
            state[f"{name}_lo"] = values.rounded(rest, dtype)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state made by `state_dict`; every state keeps its own dtype.

        Raises:
            ValueError: when the groups, their sizes or precisions are others.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        saved = state_dict["param_groups"]
        mine = [(len(g["params"]), g["precision"]) for g in self.param_groups]
        theirs = [(len(g["params"]), g.get("precision")) for g in saved]
        if mine != theirs:
            raise ValueError(
                f"state_dict has groups of (parameters, precision) {theirs}; the optimizer {mine}"
            )
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        for group, other in zip(self.param_groups, saved, strict=True):
            for key, p in zip(other["params"], group["params"], strict=True):
                for name, value in state_dict["state"].get(key, {}).items():
                    moved = isinstance(value, Tensor) and value.dim() > 0
                    state[p][name] = (
                        value.detach().to(p.device, copy=True) if moved else copy.deepcopy(value)
                    )
        for group, other in zip(self.param_groups, saved, strict=True):
            group.update(copy.deepcopy({k: v for k, v in other.items() if k != "params"}))
        self.state = state
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """What pickling and copying keep."""
        own = ("_class", "_options", "_compute_dtype", "_second_moments")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    @torch.no_grad()
    def master_weight(self, p: Tensor) -> Tensor:
        """The value that is stored for a parameter, in float32 (float64 for float64)."""
        wide = torch.promote_types(torch.float32, p.dtype)
        return _value(p, self.state.get(p, {}), wide).clone()


def _check_state(where: str, p: Tensor, state: Mapping[str, Any], arith: Arithmetic) -> None:
    """What further numbers a parameter's value has, if it made a step, are those of its storage."""
    storage = arith.strategy.param
    wanted = {}
    if storage.has_low:
        wanted["param_lo"] = p.dtype
    if storage is Storage.WIDE:
        wanted["master_param"] = torch.float32
    if storage.bits is not None and storage.bits.dtype is not None:
        wanted["param_bits"] = storage.bits.dtype
    found = {k: t for k, t in state.items() if k in ("param_lo", "master_param", "param_bits")}
    if not state or (
        {k: t.dtype for k, t in found.items()} == wanted
        and all(t.shape == p.shape for t in found.values())
    ):
        return
    given = {k: (t.dtype, list(t.shape)) for k, t in found.items()}
    raise ValueError(
        f"state of {where} has {given}; a parameter of dtype {p.dtype} and shape {list(p.shape)} "
        f"needs {wanted} (was the parameter changed after its state was made?)"
    )


def _low(t: Any, p: Tensor) -> bool:
    """Whether a state is stored in a format of the strategy."""
    return isinstance(t, Tensor) and t.dim() > 0 and t.shape == p.shape and t.is_floating_point()


def _value(high: Tensor, state: Mapping[str, Any], wide: torch.dtype) -> Tensor:
    """A stored number in a wide register: its components' sum, rounded once."""
    master: Tensor | None = state.get("master_param")
    if master is not None:
        return master.detach().to(wide)
    if state.get("param_bits") is not None:
        return values.join(high, state["param_bits"]).to(wide)
    value: Tensor = high.detach().to(wide)
    low: Tensor | None = state.get("param_lo")
    return value if low is None else value + low.to(wide)


def _store_param(
    p: Tensor, state: dict[str, Any], arith: Arithmetic, old: Tensor, new: Tensor
) -> None:
    """Give a stored parameter its new value, or the update where it is an expansion."""
    storage = arith.strategy.param
    if storage.has_low:
        if "param_lo" not in state:
            state["param_lo"] = torch.zeros_like(p)
        change = (new - old).to(arith.component.register.dtype)
        rows = [[p, state["param_lo"], change]]
        update.update_(kernel(arith.component), rows, torch.zeros(1, 0, dtype=torch.float64))
        return
    value = values.exact(new)
    if storage is Storage.WIDE:
        state["master_param"].copy_(values.rounded(value, torch.float32))
        value = values.exact(state["master_param"])
    if storage.bits is not None:
        assert storage.bits.dtype is not None
        high, state["param_bits"] = values.split(value, storage.bits.dtype)
        p.copy_(high)
        return
    p.copy_(values.rounded(value, p.dtype))


@functools.cache
def kernel(fmt: Format) -> Elementwise:
    """Adds an update in registers' format to a parameter of two 16-bit components."""
    assert fmt not in (FP32, FP64)
    return update.registered(
        Elementwise(
            name=f"apply_{fmt.name}",
            function=accumulation.kahan,
            results=("hi", "lo"),
            fields=(
                Field("hi", fmt, written=True),
                Field("lo", fmt, written=True),
                Field("update", fmt.register),
            ),
            stores=(("hi", "hi"), ("lo", "lo")),
            arithmetic=fmt.register,
            roundings=(("rc", fmt),),
            rounded=("hi",),
        )
    )
