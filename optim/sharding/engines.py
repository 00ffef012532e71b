"""Reductions of gradients inside torch's own engines: DDP's hook, FSDP2's reduce-scatter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mcf.optim.sharding.gradient_reduction import Sums, check
from mcf.optim.sharding.processes import Group


class EngineReduction:
    """The reduction that `set_gradient_reduction` installed in a model.

    Attributes:
        micro_batches: the number of backward passes per update, equal on every process. Set it only
            between updates.
    """

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self._parts: list[_Part] = []

    def reset(self) -> None:
        """Discard the backward passes of an abandoned update."""
        for part in self._parts:
            part.reset()


class _Part:
    """The sums of one hook, and the number of passes that each of its tensors has had."""

    def __init__(self, owner: EngineReduction, group: Group, how: str) -> None:
        self._owner = owner
        self._group = group
        self._sums = Sums(group, how)
        self._passes: dict[Any, int] = {}
        owner._parts.append(self)

    def reset(self) -> None:
        self._sums.reset()
        self._passes.clear()

    def _last(self, key: Any) -> bool:
        """Count a pass; return whether it is the last one of an update."""
        self._passes[key] = self._passes.get(key, 0) + 1
        if self._passes[key] < self._owner.micro_batches:
            return False
        del self._passes[key]
        return True


class _Bucket(_Part):
    """A communication hook of DistributedDataParallel."""

    @torch.no_grad()
    def run(self, bucket: Any) -> Any:
        buffer: Tensor = bucket.buffer()
        check(buffer, "a bucket of gradients")
        # By parameter, because buckets are rebuilt after the first backward pass.
        params, grads = bucket.parameters(), bucket.gradients()
        self._sums.add(params, grads)
        done = [self._last(p) for p in params]
        if all(done):
            self._sums.means(params, grads, self._owner.micro_batches * self._group.size)
        else:
            # The next pass adds to it.
            buffer.zero_()
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future


class _Scatter(_Part):
    """FSDP2's reduce-scatter: the last pass returns a mean, earlier ones return zeros.

    The engine adds the result to the existing gradient. If several processes have a shard (HSDP),
    each rounds its own piece of it and has zeros elsewhere, and the engine's sum over them joins
    the pieces.
    """

    def __init__(self, owner: EngineReduction, group: Group, how: str, replicas: Group) -> None:
        super().__init__(owner, group, how)
        self._replicas = replicas
        self._whole = Sums(replicas, how)

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: Any = None
    ) -> None:
        check(input_tensor, "what FSDP reduces (reduce_dtype)")
        rows = self._group.all_to_all(input_tensor.view(self._group.size, -1))
        for row in rows:
            self._sums.add_here([None], [row])
        self._finish(output_tensor)

    @torch.no_grad()
    def alone(self, reduce_output: Tensor) -> None:
        """Run as an all-reduce hook, if one process has all of the shard."""
        check(reduce_output, "what FSDP reduces (reduce_dtype)")
        self._sums.add_here([None], [reduce_output])
        self._finish(reduce_output)

    def _finish(self, output: Tensor) -> None:
        output.zero_()
        if not self._last(None):
            return
        count = self._owner.micro_batches * self._group.size * self._replicas.size
        if self._replicas.size == 1:
            output.copy_(self._sums.mean(None, output.dtype, count))
            return
        terms = self._sums.terms(None)
        most = self._replicas.largest([len(terms)], output.device)[0]
        terms = terms + [torch.zeros_like(terms[0])] * (most - len(terms))
        size, rank = self._replicas.size, self._replicas.rank
        length = self._replicas.piece(output.numel())
        for term in terms:
            rows = term.new_zeros(size * length)
            rows[: term.numel()] = term
            for row in self._replicas.all_to_all(rows.view(size, length)):
                self._whole.add_here([None], [row])
        self._sums.reset()
        piece = self._whole.mean(None, output.dtype, count)
        here = output[rank * length : (rank + 1) * length]
        here.copy_(piece[: here.numel()])


def _hook(state, bucket):  # type: ignore[no-untyped-def]
    # No annotations: DDP compares them with types and not with their names.
    return state.run(bucket)


def set_gradient_reduction(
    model: nn.Module, how: str = "exact", *, micro_batches: int = 1
) -> EngineReduction:
    """Let DDP or FSDP2 reduce a model's gradients with exact or float32 sums.

    After every `micro_batches` backward passes each parameter's `.grad` is the mean over the
    gradients of all processes, as in `GradientReduction`: with "exact" the same bits for any number
    of processes and any split of the micro-batches among them, rounded once to `reduce_dtype`.
    After earlier passes `.grad` is zero. Do not use `no_sync` or divide the loss. Every parameter
    must take part in every pass, and gradients must be None or zero before the first.

    Each pass moves what the engine's own reduction moves in the gradients' dtype; HSDP moves 8
    bytes ("float32": 4) per element of a shard between its replicas in the last pass.

    Args:
        model: a `DistributedDataParallel`, or a module after `fully_shard`, on one mesh dimension
            or two (HSDP); further tensor parallel dimensions are unaffected.
        how: "exact" or "float32".
        micro_batches: the number of backward passes per update on each process.

    Returns:
        The object that holds the sums; its `reset()` discards the passes of an abandoned update.

    Raises:
        TypeError: for another model.
        ValueError: for another `how` or number, and for HSDP whose shards are whole parameters.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise ValueError(f"micro_batches must be a whole number from 1, got {micro_batches!r}")
    made = EngineReduction(micro_batches)
    if isinstance(model, DistributedDataParallel):
        state = _Bucket(made, Group(model.process_group), how)
        model.register_comm_hook(state, _hook)
        return made
    modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
    if not modules:
        raise TypeError(
            f"model is a {type(model).__name__}; allowed are DistributedDataParallel and modules "
            "after fully_shard. GradientReduction takes the parameters of any other"
        )
    _install(modules, made, how)
    return made


def _install(modules: list[Any], made: EngineReduction, how: str) -> None:
    parts = []
    for module in modules:
        state = module._get_fsdp_state()
        # Versions before about 2.12 have a single group, under another name.
        groups = getattr(state, "_fsdp_param_groups", None)
        groups = [state._fsdp_param_group] if groups is None else groups
        groups = [g for g in groups if g is not None]
        if len(groups) > 1:
            raise ValueError("model has a module whose parameters are sharded over several meshes")
        for group in groups:
            shard = Group(group._reduce_scatter_process_group)
            replicas = Group(group._all_reduce_process_group) if group._is_hsdp else _alone()
            if shard.size == 1 and replicas.size > 1:
                raise ValueError(
                    "model is sharded over a mesh dimension of 1 and replicated over another, "
                    "which is DDP; use that, or a one-dimensional mesh"
                )
            parts.append((module, shard, replicas))
    for module, shard, replicas in parts:
        scatter = _Scatter(made, shard, how, replicas)
        if shard.size == 1:
            module.set_all_reduce_hook(scatter.alone)
        else:
            module.set_custom_reduce_scatter(scatter)
        # The mean is computed here: the engine must neither divide nor average.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _alone() -> Group:
    made = Group.__new__(Group)
    made.group, made.size, made.rank = None, 1, 0
    return made
