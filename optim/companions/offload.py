"""States in the CPU's memory, stepped by the CPU while gradients and weights are copied."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from mcf.optim.companions import reducers
from mcf.optim.companions.release import SingleSteps
from mcf.optim.companions.transit import Copies, Transfers, Travelling
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.step import interrupts, rewritten, shared_memory


def check_arguments(optimizer_class: Any, offload_gradients: Any, minimal_size: Any) -> None:
    """Raise TypeError or ValueError for invalid arguments."""
    known = isinstance(optimizer_class, type) and issubclass(optimizer_class, LowPrecisionOptimizer)
    if not known or hasattr(optimizer_class, "eval"):
        raise TypeError(
            f"optimizer_class is {optimizer_class!r}; allowed are those of mcf.optim without train "
            "and eval modes, which write weights"
        )
    if not isinstance(offload_gradients, bool):
        raise TypeError(f"offload_gradients must be True or False, got {offload_gradients!r}")
    if isinstance(minimal_size, bool) or not isinstance(minimal_size, int) or minimal_size < 0:
        raise ValueError(
            f"Invalid minimal_size: {minimal_size!r}; allowed are whole numbers from 0"
        )


def listed(params: Any) -> list[Any]:
    """Return the parameters of a group as a list."""
    return [params] if isinstance(params, Tensor) else list(params)


_DDP = (
    "CPUOffloadOptimizer does not go with DistributedDataParallel, which averages gradients after "
    "they have begun to travel; step on the CPU's copies of one process, or shard with fully_shard "
    "and an optimizer on the device"
)


class CPUOffloadOptimizer(Optimizer):
    """An optimizer of this package whose states are in the CPU's memory and stepped there.

        optimizer = CPUOffloadOptimizer(model.parameters(), mcf.optim.AdamW, lr=1e-3)

    The accelerator keeps parameters and gradients: for `AdamW` under `"plus"` 4 of 12 bytes per
    parameter, 2 with `offload_gradients`. The CPU has a pinned copy of each parameter (2 bytes) and
    of its gradient (2), and all states. Each gradient is copied when backward has computed it, in
    parallel with the rest of backward. `step()` steps the parameters in the order in which
    gradients arrive, and sends each one back while the next one is stepped.

    The bits are those of the optimizer on the accelerator, random numbers included; Muon's matrix
    products have the CPU's bits. With `max_grad_norm`, `nonfinite="skip"` or `"raise"`, metrics, or
    under a GradScaler, a step waits for all gradients before it steps the first parameter;
    otherwise an infinity or NaN affects only its parameter, as in `GradientRelease`. Signals are
    deferred until a step is done.

    Names and arguments are those of torchao's class; unlike in torchao, gradients can be
    accumulated with `offload_gradients` too, and the next step begins with the values that a user
    writes into weights.

    Args:
        params: parameters, named parameters or groups, as in torch. Parameters on a CPU are stepped
            in place, as are frozen ones.
        optimizer_class: a class of this package, without train and eval modes.
        offload_gradients: free each gradient on the accelerator as soon as it was copied.
            Gradients of further backward passes are added up on the CPU, with the accelerator's
            bits. `clip_grad_norm_` then finds none: use `max_grad_norm`.
        minimal_size: parameters of fewer elements stay on the accelerator with their states.
        options: options of the optimizer class.

    Attributes:
        optimizer: the optimizer of the CPU's copies, whose checkpoints `state_dict` returns.
        grad_norm: see `mcf.optim.AdamW`.

    Raises:
        TypeError: for another class, for DTensors and expansion tensors.
        ValueError: for `capturable=True` and a `minimal_size` below 0.
        RuntimeError: with a `DistributedDataParallel`, whichever of the two is created second; from
            a step with a closure, and under a GradScaler with `offload_gradients`.
    """

    # Tests replace it by other ways to copy.
    _transfers_class: Callable[[], Transfers] = Transfers

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[LowPrecisionOptimizer],
        *,
        offload_gradients: bool = False,
        minimal_size: int = 4096,
        **options: Any,
    ) -> None:
        check_arguments(optimizer_class, offload_gradients, minimal_size)
        self.minimal_size = minimal_size
        self._transfers = type(self)._transfers_class()
        self._gradients = Travelling(self._transfers, offload_gradients)
        self._copies = Copies(self._transfers, minimal_size)
        self._handles: dict[Tensor, RemovableHandle] = {}
        # Parameters whose copies are a step ahead, after an error: the gradient of that step, its
        # version.
        self._ahead: dict[Tensor, tuple[Tensor, int]] = {}
        given: list[Any] = list([params] if isinstance(params, dict) else params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        groups = [{**g, "params": listed(g["params"])} for g in groups]
        inner = [{**g, "params": [self._copies.stepped(p) for p in g["params"]]} for g in groups]
        self.optimizer = optimizer_class(inner, **options)
        if any(group["capturable"] for group in self.optimizer.param_groups):
            raise ValueError(
                "capturable=True: a CUDA graph cannot contain steps on the CPU; allowed is False"
            )
        reducers.check(self._managed(), _DDP)
        self._made, self._together = False, False
        super().__init__(groups, dict(self.optimizer.defaults))
        self._made = True
        self._settle_groups(len(self.param_groups))
        self._watch()
        self._refusal = reducers.refuse(weakref.WeakMethod(self._managed), _DDP)

    def remove(self) -> None:
        """Stop copying gradients; the parameters may then be used by others."""
        for handle in (*self._handles.values(), self._refusal):
            handle.remove()
        self.zero_grad()

    # -- the interface of torch's optimizers --------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as `torch.optim.Optimizer.add_param_group` does."""
        if not getattr(self, "_made", False):
            super().add_param_group(param_group)
            return
        group = {**param_group, "params": listed(param_group["params"])}
        before = {*self._copies.of}
        try:
            inner = {**group, "params": [self._copies.stepped(p) for p in group["params"]]}
            self.optimizer.add_param_group(inner)
        except BaseException:
            self._copies.drop(before)
            raise
        super().add_param_group(group)
        self._settle_groups(1)
        self._watch()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients, including those on their way."""
        self._gradients.forget()
        self._ahead.clear()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of `optimizer`, which loads with or without offloading."""
        self._tell()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = self.optimizer.state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of the optimizer class, made with or without offloading."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        # The copies may belong to other weights by now.
        self._copies.follow(self._copies.of)
        self.optimizer.load_state_dict(state_dict)
        self._settle_groups(len(self.param_groups))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> NoReturn:
        """Raise, because pickling would lose the copies."""
        raise TypeError("CPUOffloadOptimizer is neither pickled nor copied; use state_dict()")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return True

    @property
    def grad_norm(self) -> Any:
        """The norm of all gradients before clipping; see `max_grad_norm`."""
        return self.optimizer.grad_norm

    def metrics(self, *, flat: bool = False) -> dict[str, Any]:
        """Return the metrics of the last step, as the optimizer class does."""
        return self.optimizer.metrics(flat=flat)

    @torch.no_grad()
    def master_weight(self, p: Tensor) -> Tensor:
        """Return the value that is stored for a parameter, on the parameter's device."""
        self._copies.follow([p] if p in self._copies.of else [])
        found = self.optimizer.master_weight(self._copies.of.get(p, p))
        assert isinstance(found, Tensor)
        return found.to(p.device)

    @torch.no_grad()
    def reload_model_params(self) -> None:
        """Adopt the current values of all weights after other code wrote them through `p.data`."""
        self._copies.follow(self._copies.of, anyway=True)
        self.optimizer.reload_model_params()

    # -- the step ----------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        if closure is not None:
            raise RuntimeError(
                "step(closure): gradients travel as backward makes them, once for each step; "
                "allowed is loss.backward() before step()"
            )
        self._tell()
        inner, scaled = self.optimizer, getattr(self, "found_inf", None) is not None
        if scaled:
            self._unscale_later()
        for p in self._copies.of:
            self._gradients.update(p)
        moving = self._gradients.params
        self._copies.follow(moving)
        whole = scaled or inner._track_metrics or inner.max_grad_norm is not None
        whole = whole or inner.nonfinite != "torch"
        if whole != self._together:
            # Cached steps were made for the other mode.
            inner._steps.forget()
            vars(self).pop("_single", None)
            self._together = whole
        try:
            # An interrupt in between would leave copies that are a step ahead of their parameters.
            with interrupts.Deferred():
                self._step(moving, whole)
        finally:
            for host in self._copies.of.values():
                host.grad = None
            vars(inner).pop("found_inf", None)
            vars(inner).pop("grad_scale", None)
            self._transfers.join()

    def _step(self, moving: list[Tensor], whole: bool) -> None:
        """Take a step with these gradients; `whole` means that all are needed at once.

        After an error the next one skips parameters whose copies have made the step on the same
        gradient.
        """
        left = [p for p in moving if not self._is_ahead(p)]
        if whole and (left or not self._ahead):
            for p in left:
                self._arrive(p)
            self.optimizer.step()
            for p in left:
                self._stepped(p)
        for p in moving:
            if not self._is_ahead(p):
                self._arrive(p)
                self._single.step(self._copies.of[p])
                self._stepped(p)
            self._copies.send_back(p)
        if not whole:
            # Step the parameters without a copy.
            self.optimizer.step()
        for p in moving:
            self._gradients.used(p)
        self._ahead.clear()

    def _stepped(self, p: Tensor) -> None:
        """Record that the copy of a parameter has made a step on its present gradient."""
        grad = self._gradients.arrived(p)
        self._ahead[p] = grad, rewritten.version(grad)
        self._copies.of[p].grad = None

    def _is_ahead(self, p: Tensor) -> bool:
        if p not in self._ahead:
            return False
        grad, version = self._ahead[p]
        return self._gradients.arrived(p) is grad and rewritten.version(grad) == version

    @functools.cached_property
    def _single(self) -> SingleSteps:
        return SingleSteps(self.optimizer)

    def _unscale_later(self) -> None:
        """Pass the GradScaler's request on to the optimizer, and copy the gradients again."""
        if self._gradients.freed:
            raise RuntimeError(
                "offload_gradients=True under a GradScaler, which looks for infinities in "
                "gradients that are gone; allowed is False"
            )
        self._gradients.forget()
        for name in ("found_inf", "grad_scale"):
            value = getattr(self, name, None)
            setattr(self.optimizer, name, value.cpu() if isinstance(value, Tensor) else value)

    def _arrive(self, p: Tensor) -> None:
        """Give the copy of a parameter its gradient, once it has arrived."""
        host, grad = self._copies.of[p], self._gradients.arrived(p)
        if grad.dtype != host.dtype:
            host.grad_dtype = grad.dtype
        host.grad = grad

    # -- groups ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the gradients of new copies sent, after all checks of both sides."""
        names = [where for _, where, _ in self.optimizer._all_named()]
        params = [p for group in self.param_groups for p in group["params"]]
        uses = [shared_memory.Use(w, p, True) for w, p in zip(names, params, strict=True)]
        # The copies share no memory.
        shared_memory.check([use for use in uses if use.tensor.requires_grad])
        for p in self._copies.of:
            if p not in self._handles:
                hook = self._gradients.hook
                self._handles[p] = p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _managed(self) -> list[Tensor]:
        """Return the parameters whose gradients are copied."""
        return list(self._copies.of)

    def _settle_groups(self, last: int) -> None:
        """Copy the options of the optimizer's last groups to this one's, and share its states."""
        vars(self).pop("_single", None)
        inner = self.optimizer.param_groups
        for mine, theirs in zip(self.param_groups[-last:], inner[-last:], strict=True):
            mine.update({k: v for k, v in theirs.items() if k != "params"})
        self.state = self.optimizer.state

    def _tell(self) -> None:
        """Give the optimizer the options of groups, which schedules write."""
        for mine, theirs in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            theirs.update({k: v for k, v in mine.items() if k != "params"})
