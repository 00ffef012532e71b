"""Averages of the weights of a training: exponential (EMA) or with equal weights (SWA)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mcf.kernels.algorithms.primitives import ZERO, rn
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FP16, INT8, INT16, Format, format_of
from mcf.kernels.formats import FORMATS as _NUMBERS
from mcf.kernels.tables import table_of
from mcf.optim import validation
from mcf.optim.companions.reducers import Companion
from mcf.optim.conversion.weights import keep_weight, named_weights
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters import expansions
from mcf.optim.sharding.shards import like, local, moved_like
from mcf.optim.step.opaque_operator import registered, update_
from mcf.optim.step.rewritten import version
from mcf.optim.storage import values
from mcf.optim.storage.base import SINGLE, Storage
from mcf.optim.storage.pair import PAIR
from mcf.optim.storage.slots import accumulate, param_components, param_value

# The storage of an average, by the number of its components.
KEPT: dict[int, Storage] = {1: SINGLE, 2: PAIR}


class WeightAverage(Companion):
    r"""An average of all weights of an optimizer, of their stored values, kept as an expansion.

    a <- a + (1 - decay) (w - a) after every step, or with `decay=None` a <- a + (w - a) / n, the
    mean of n weights (Izmailov et al. 2018, arXiv:1803.05407); the first a is w. w is the value
    that the optimizer stores: p + param_lo, p and its further bits, or the master copy.

        average = WeightAverage(optimizer, decay=0.999)
        for batch in data:
            ...
            optimizer.step()  # updates the average, too
        with average.swapped():
            evaluate(model)

    In one bf16 number an average of decay 0.999 ignores a w that differs from a by less than a
    quarter: a thousandth of the difference is below half a unit. Two components (the default)
    reduce this threshold to 2**-9 of it, `dtype=torch.float32` with one component to 2**-16. The
    error of one update is at most 2**-17 |a| for two components of bf16, 2**-22 of fp16, 2**-46 of
    float32, 2**-8, 2**-11, 2**-24 for one of them, plus 2**-22 (1 - decay) (|w| + |a|) from float32
    registers (2**-51 for float64 parameters); fp16 also underflows, by 2**-24.

    Args:
        optimizer: an optimizer of this package. A parameter is averaged from the first update on in
            which it requires gradients, even if it was added later.
        decay: in [0, 1), or None for equal weights; an attribute that may change at any time.
        components: the number of components of the average, 1 or 2, each of the parameter's dtype.
            By default the first of two bf16 numbers is the bf16 average.
        dtype: None, or torch.float32 for float32 components of the averages of 16-bit parameters.
        every: the number of calls of `optimizer.step` between updates; None if only `update()`
            updates the average. Also an attribute.

    Guarantees: the same bits on every executor, for any layout and sharding, and after a resume
    (`state_dict`). Averages of DTensors are DTensors; no process waits for another.

    Raises:
        ValueError, TypeError: for arguments out of range, naming the argument.
        RuntimeError: for an update while a CUDA graph is captured whose replays would repeat the
            factor of this update: with equal weights, and for a parameter's first update.
    """

    def __init__(
        self,
        optimizer: LowPrecisionOptimizer,
        decay: float | None = 0.999,
        *,
        components: int = 2,
        dtype: torch.dtype | None = None,
        every: int | None = 1,
    ) -> None:
        super().__init__(optimizer)
        if isinstance(components, bool) or components not in KEPT:
            raise ValueError(f"Invalid components: {components!r}; allowed are 1 and 2")
        if dtype not in (None, torch.float32):
            raise ValueError(f"Invalid dtype: {dtype}; allowed are None and torch.float32")
        self.decay, self.every = decay, every
        _check(decay, every)
        self._components, self._dtype = components, dtype
        # Per parameter: the number of weights averaged, and the local tensors of the components.
        self._state: dict[Tensor, dict[str, Any]] = {}
        self._calls = 0
        self._swapped = False
        self._handles += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Stop following `optimizer.step`; the average stays, and `update()` works."""
        self._detach()

    @torch.no_grad()
    def update(self) -> None:
        """Add the present weights to the average; check everything before any change."""
        if self._swapped:
            raise RuntimeError("update() inside swapped(): the weights are the averages there")
        _check(self.decay, self.every)
        rows: dict[Any, list[tuple[Tensor, dict[str, Any], list[Tensor]]]] = {}
        for _, where, p in self._optimizer._all_named():
            if p not in self._state and validation.later(p):
                continue
            entry = self._entry(where, p)
            self._check_capture(where, entry)
            weights, tensors = self._optimizer._stored(p)
            read = tensors if weights.visible else tensors[1:]
            component = format_of(self._kind(p), where)
            stored = tuple(FORMATS[t.dtype] for t in read)
            spec = kernel(weights, stored, KEPT[self._components], component)
            kept = [local(entry[n]) for n in self._names()]
            rows.setdefault((spec, p.device), []).append((p, entry, [*kept, *read]))
        for (spec, _), mine in rows.items():
            table = table_of([[self._share(entry["n_averaged"])] for _, entry, _ in mine])
            update_(spec, [row for *_, row in mine], table)
        for mine in rows.values():
            for p, entry, _ in mine:
                entry["n_averaged"] += 1
                self._state[p] = entry

    @torch.no_grad()
    def init_state(self) -> None:
        """Create the averages of all parameters that have none, of no weights yet.

        Use it to fill them in place, as torch.distributed.checkpoint does.
        """
        for _, where, p in self._optimizer._all_named():
            if not validation.later(p):
                self._state[p] = self._entry(where, p)

    # -- averages ------------------------------------------------------------------------------

    @torch.no_grad()
    def weight(self, p: Tensor, *, exact: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Return the average of a parameter; its weight if nothing was averaged yet.

        Args:
            p: one of the optimizer's parameters.
            exact: return the components, whose sum is the average, largest first, not copied.

        Returns:
            As `master_weight` of the optimizer: a new float32 tensor (float64 for a float64
            parameter) in p's shape and layout, or with `exact` a tuple.

        Raises:
            ValueError: if `p` is not a parameter of the optimizer.
        """
        entry = self._state.get(p)
        if entry is None or not entry["n_averaged"]:
            return self._optimizer.master_weight(p, exact=exact)
        kept = tuple(entry[n] for n in self._names())
        if exact:
            return kept
        kind = torch.float64 if p.dtype == torch.float64 else torch.float32
        return like(p, values.rounded(values.exact(*map(local, kept)), kind))

    def float32_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return `mcf.optim.float32_weights` of a model, with averages instead of weights."""
        return named_weights(model, self._optimizer, self.weight)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the averages as weights, rounded to the parameters' dtype, inside a `with` block.

        Afterwards the weights have their previous bits, and training continues unaffected. It needs
        the memory of a second set of parameters.

        Raises:
            RuntimeError: if it is entered twice; from a step or an `update` inside; and afterwards,
                if the weights were written inside, which is undone.
        """
        if self._swapped:
            raise RuntimeError("swapped() inside swapped()")
        mine = [p for p, entry in self._state.items() if entry["n_averaged"]]
        saved = list(map(expansions.copied_components, mine))
        self._swapped = True
        try:
            for p in mine:
                expansions.write_value(p, self._value(p))
            written = list(map(version, mine))
            yield
            if list(map(version, mine)) != written:
                raise RuntimeError(
                    "weights were written inside swapped(), which was undone: they were averages"
                )
        finally:
            self._swapped = False
            for p, before in zip(mine, saved, strict=False):
                expansions.write_components(p, before)

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """Set the weights, and the state stored next to them, to the averages permanently.

        Each is rounded once to what the precision stores. Moments are unchanged.
        """
        if self._swapped:
            raise RuntimeError("copy_to_weights() inside swapped()")
        for p, entry in self._state.items():
            if entry["n_averaged"]:
                keep_weight(self._optimizer, p, self._value(p))

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs for the same bits, without copying tensors.

        States are keyed by the index of their parameter, as in the optimizer's checkpoint.
        """
        own = {"calls": self._calls, "decay": self.decay, "every": self.every}
        state = {
            k: self._state[p]
            for k, p in enumerate(self._optimizer._parameters())
            if p in self._state
        }
        return {**own, "components": self._components, "state": state}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, from any layout of the parameters, including `decay`.

        Raises:
            ValueError, TypeError: for other components, dtypes, shapes or parameters; then nothing
                has changed.
        """
        found = self._checked(state_dict)
        _check(state_dict["decay"], state_dict["every"])
        self._state = {p: {"n_averaged": entry["n_averaged"]} for p, entry in found}
        for p, entry in found:
            for name in self._names():
                here = local(moved_like(p, entry[name].detach())).to(p.device, copy=True)
                self._state[p][name] = like(p, here)
        self.decay, self.every = state_dict["decay"], state_dict["every"]
        self._calls = int(state_dict["calls"])

    def _checked(self, state_dict: Any) -> list[tuple[Tensor, Mapping[str, Any]]]:
        """Return the entries of a checkpoint, each after its parameter."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
        if sorted(state_dict) != sorted(_ENTRIES):
            raise ValueError(f"state_dict has {sorted(state_dict)}; allowed are {list(_ENTRIES)}")
        if state_dict["components"] != self._components:
            raise ValueError(
                f"state_dict has components={state_dict['components']}; this average has "
                f"{self._components}"
            )
        _check_count("calls", state_dict["calls"])
        params, names = list(self._optimizer._parameters()), self._names()
        found = []
        for k, entry in state_dict["state"].items():
            if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(params):
                raise ValueError(
                    f"state_dict has an average of parameter {k!r}; the optimizer has {len(params)}"
                )
            where, p = f"the average of parameter {k}", params[k]
            if sorted(entry) != sorted(("n_averaged", *names)):
                raise ValueError(
                    f"{where} has {sorted(entry)}; allowed are {['n_averaged', *names]}"
                )
            _check_count(f"n_averaged of {where}", entry["n_averaged"])
            for name in names:
                t, dtype = entry[name], self._kind(p)
                if not isinstance(t, Tensor):
                    raise TypeError(f"{name} of {where} is a {type(t).__name__}, not a tensor")
                if t.shape != p.shape or t.dtype != dtype:
                    raise ValueError(
                        f"{name} of {where} has shape {list(t.shape)} and dtype {t.dtype}; its "
                        f"parameter has {list(p.shape)}, and averages here are {dtype}"
                    )
            found.append((p, entry))
        return found

    # -- implementation ------------------------------------------------------------------------

    def _names(self) -> tuple[str, ...]:
        return ("average", "average_lo")[: self._components]

    def _kind(self, p: Tensor) -> torch.dtype:
        """Return the dtype of a parameter's average."""
        return torch.promote_types(p.dtype, self._dtype) if self._dtype else p.dtype

    def _entry(self, where: str, p: Tensor) -> dict[str, Any]:
        """Return a parameter's state; a new one is not stored yet."""
        entry, dtype = self._state.get(p), self._kind(p)
        if entry is None:
            validation.parameter(where, p, True)
            here = expansions.leading(p.detach())
            zero = torch.zeros_like(here, dtype=dtype, memory_format=torch.preserve_format)
            return {"n_averaged": 0, **{n: like(p, zero.clone()) for n in self._names()}}
        kept = entry["average"]
        if kept.shape != p.shape or kept.dtype != dtype or kept.device != p.device:
            raise ValueError(
                f"{where} has shape {list(p.shape)}, dtype {p.dtype} and device {p.device}, its "
                f"average {list(kept.shape)}, {kept.dtype} and {kept.device}: they changed since"
            )
        return entry

    def _check_capture(self, where: str, entry: dict[str, Any]) -> None:
        """Raise if a CUDA graph would freeze the factor that only this update has."""
        if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
            return
        if self.decay is None or not entry["n_averaged"]:
            raise RuntimeError(
                f"update() of {where} while a CUDA graph is captured, whose replays would repeat "
                "the weight of this update; allowed is decay with an update before the capture"
            )

    def _share(self, count: int) -> float:
        """Return c of the formula, after `count` weights."""
        return 1.0 - float(self.decay) if count and self.decay is not None else 1.0 / (count + 1)

    def _value(self, p: Tensor) -> values.Value:
        """Return the exact average of the local part of a parameter."""
        entry = self._state[p]
        return values.exact(*(local(entry[n]) for n in self._names()))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._swapped:
            raise RuntimeError("step() inside swapped(): the weights are the averages there")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._calls += 1
        if self.every is not None and self._calls % self.every == 0:
            self.update()


# The entries of a checkpoint.
_ENTRIES = ("calls", "components", "decay", "every", "state")


def _check(decay: Any, every: Any) -> None:
    if decay is not None:
        validation.number("decay", decay, high=1.0, open_high=True)
    validation.steps("every", every)


def _check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{what} is {value!r}; allowed is a whole number from 0")


# The formats in which weights are stored.
FORMATS: dict[torch.dtype, Format] = {**_NUMBERS, torch.int16: INT16, torch.int8: INT8}


def average(param, param_lo, average, average_lo, weight):
    """a <- a + c (w - a), for a weight w as it is stored.

    c = 1 - decay makes an exponential average, c = 1 / n the mean of n weights, c = 1 a copy.
    """
    hi, lo = param_components(param, param_lo)
    distance = rn(rn(hi - average) + rn(lo - average_lo))
    return accumulate(average, average_lo, rn(weight * distance))


def both_components(hi, lo):
    """Return both components of a parameter, without rounding either away."""
    return hi, lo


def one_component(hi, lo):
    """Return a parameter that is read as one number, and 0."""
    return param_value(hi, lo), ZERO


@functools.cache
def kernel(
    weights: Storage, stored: tuple[Format, ...], averages: Storage, component: Format
) -> Elementwise:
    """Return the kernel of averages of weights with one storage.

    Args:
        weights: the storage of the weights.
        stored: the formats of the tensors that `weights` reads, one or two.
        averages: the storage of the averages.
        component: the format of the averages' components.
    """
    wide = component in (BF16, FP16)
    kept = tuple(averages.moment("average", component))
    read = ("param", "param_lo")[: len(stored)]
    possible = ("average_lo", "param_lo")
    names = [f.name for f in stored]
    return registered(
        Elementwise(
            name="_".join(["average", weights.name, *names, averages.name, component.name]),
            function=average,
            results=("average", "average_lo"),
            fields=(
                *(Field(name, component, written=True) for name in kept),
                *(Field(name, fmt) for name, fmt in zip(read, stored, strict=True)),
            ),
            stores=tuple((name, name) for name in kept),
            arithmetic=max((component, *stored), key=lambda f: f.register.p).register,
            roundings=(("rc", component),),
            scalars=("weight",),
            absent=tuple(n for n in possible if n not in (*kept, *read)),
            rounded=("average",) if averages.split else (),
            slots=(
                ("accumulate", averages.accumulate(not wide, wide, False)),
                ("param_value", weights.loaded(False)),
                ("param_components", both_components if weights.has_low else one_component),
            ),
        )
    )
