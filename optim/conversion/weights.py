"""Stored values of all weights of a model, whole and in plain tensors, for other software."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mcf.kernels.formats import FORMATS
from mcf.optim import validation
from mcf.optim.conversion.optimizers import Report, Rounded, rounding
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.parameters import expansions
from mcf.optim.parameters.randomness import unwrapped
from mcf.optim.sharding.shards import is_sharded, local, moved_like
from mcf.optim.step.bucket import new_state
from mcf.optim.storage import values
from mcf.optim.storage.values import Value


def float32_weights(model: nn.Module, optimizer: LowPrecisionOptimizer) -> dict[str, Tensor]:
    """Return a model's state dict in which each trained weight has the value that is stored.

        weights = mcf.optim.float32_weights(model, optimizer)  # on every process
        if distributed.get_rank() == 0:
            safetensors.torch.save_file(weights, "model.safetensors")

    `load_float32_weights` is the inverse.

    Args:
        model: also under DistributedDataParallel, `fully_shard` or tensor parallelism; all
            processes that share its parameters call this.
        optimizer: the optimizer of its parameters.

    Returns:
        Contiguous tensors on the CPU, by the names of the plain model (without prefixes of
        wrappers), of which no two share memory. Parameters of the optimizer are p + param_lo, p and
        its further bits, or the master copy, rounded to float32 (float64 for float64 parameters):
        only a pair of two numbers that are further apart than 24 bits is rounded. Other parameters
        and buffers are unchanged. For bf16 weights use `model.state_dict()`.
    """
    return named_weights(model, optimizer, optimizer.master_weight)


@torch.no_grad()
def named_weights(
    model: nn.Module, optimizer: LowPrecisionOptimizer, weight: Callable[[Tensor], Any]
) -> dict[str, Tensor]:
    """Return `float32_weights` with a function's value for each parameter of the optimizer."""
    mine = {id(p) for p in optimizer._parameters()}
    found = {}
    for name, value in _tensors(model):
        stored: Any = weight(value) if id(value) in mine else value.detach()
        if is_sharded(stored):
            stored = stored.full_tensor()
        found[name] = stored.to("cpu", copy=True).contiguous()
    return found


@torch.no_grad()
def load_float32_weights(
    model: nn.Module, optimizer: LowPrecisionOptimizer, weights: Mapping[str, Tensor]
) -> Report:
    """Set weights to the values of a float32 model, with all bits that the precision stores.

        weights = model.state_dict()  # float32
        optimizer = CollageAdamW(model.to(torch.bfloat16).parameters(), mode="light")
        report = mcf.optim.load_float32_weights(model, optimizer, weights)

    `model.to(torch.bfloat16)` alone drops the lower 16 bits of every weight, and an optimizer
    created afterwards starts from the rest.

    Each value is stored in the parameter and the state next to it (a low word, further bits, a
    master copy; created if there is none), rounded once to what both hold: exactly under
    `"split16"` and `"master"`, to 16 bits or more under `"light"`, `"plus"` and `"split8"`. Moments
    and step counts are unchanged. Frozen parameters, parameters of other optimizers and buffers are
    copied, as by `load_state_dict`.

    Args:
        model: the model of the optimizer's parameters; also under wrappers and with DTensors, for
            which all processes call this.
        optimizer: the optimizer of all or some of its parameters.
        weights: by the names of the plain model, as `float32_weights`, a float32 model's
            `state_dict()` or a safetensors file have them: plain tensors of any floating-point
            dtype, or DTensors. One name of a shared parameter is enough.

    Returns:
        A report of what was rounded, by name.

    Raises:
        ValueError, TypeError: for missing or unknown names, other shapes, and unsupported dtypes;
            before anything is changed.
    """
    mine = {id(p) for p in optimizer._parameters()}
    given = {unwrapped(name): t for name, t in weights.items() if isinstance(t, Tensor)}
    own = _tensors(model)
    there = {id(t) for name, t in own if name in given}
    missing = [name for name, t in own if name not in given and id(t) not in there]
    unknown = sorted(given.keys() - {name for name, _ in own})
    if missing or unknown:
        raise ValueError(
            f"weights lack {missing} and have the unknown names {unknown}; allowed are the names "
            "of the model's state dict"
        )
    pairs = [(name, t, given[name]) for name, t in own if name in given]
    for name, t, new in pairs:
        if new.shape != t.shape:
            raise ValueError(
                f"weights[{name!r}] has shape {list(new.shape)}; the model's {list(t.shape)}"
            )
        if id(t) in mine and t.requires_grad:
            validation.parameter(name, t, True)
            if new.dtype not in FORMATS:
                allowed = ", ".join(map(str, FORMATS))
                raise TypeError(f"weights[{name!r}] has dtype {new.dtype}; allowed are {allowed}")
    report: list[Rounded] = []
    for name, t, new in pairs:
        here = local(moved_like(t, new.detach().to(t.device)))
        if id(t) in mine and t.requires_grad:
            value = values.exact(here)
            report += rounding(t, name, "param", value, keep_weight(optimizer, t, value))
        else:
            local(t.detach()).copy_(here)
    return Report(tuple(report))


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers by the names of the plain model.

    Extra state of modules (`get_extra_state`) is no weight.
    """
    found = model.state_dict(keep_vars=True).items()
    return [(unwrapped(name), t) for name, t in found if isinstance(t, Tensor)]


# -- one parameter -----------------------------------------------------------------------------


@torch.no_grad()
def keep_weight(optimizer: LowPrecisionOptimizer, p: Tensor, value: Value) -> Tensor:
    """Set one of an optimizer's parameters to a value, with all bits that its precision stores.

    Args:
        optimizer: the optimizer, in which the parameter's state is created if needed.
        p: the parameter, not frozen.
        value: the value of its local part.

    Returns:
        The rounding error.
    """
    tensors, storage = list(expansions.components(p.detach())), expansions.own_storage(p)
    if not expansions.is_expansion(p):
        group = optimizer._group_of(p)
        arith = optimizer._arithmetic(group, p, "p")
        storage = arith.strategy.param
        if storage.hidden:
            if not optimizer._made(p):
                made = new_state(optimizer._rule(group), arith, p, bool(group["capturable"]))
                optimizer.state[p].update(made)
            tensors.append(local(optimizer.state[p][storage.hidden]))
    left = storage.keep(value, tensors)
    expansions.stepped(p)
    return left
