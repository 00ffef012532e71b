"""A model over the processes of a run: DDP, FSDP2, HSDP, tensor parallel; sums of its gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from mcf.optim import GradientReduction, set_gradient_reduction
from pretraining import decoder
from pretraining.decoder import Block, Decoder
from pretraining.scaling import Mesh
from pretraining.shapes import Shape


class Parallel:
    """A decoder laid out over a mesh.

    Attributes:
        mesh: the sizes.
        model: to be called; its parameters are what an optimizer steps.
        module: the decoder itself.
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: int,
        seed: int,
        device: torch.device,
        mesh: Mesh,
        how: str,
        reduce: str,
        micro_batches: int,
    ) -> None:
        """Build and lay out.

        Args:
            shape: of the model.
            vocabulary: number of tokens.
            seed: of the weights.
            device: this process's.
            mesh: sizes of the mesh, whose product is the number of processes.
            how: "none", "ddp", or any other for what the mesh says.
            reduce: "engine", "float32" or "exact" sums of gradients.
            micro_batches: of an update on each process.
        """
        self.mesh = mesh
        self._micro_batches = micro_batches
        self._engine = reduce == "engine"
        if how == "none":
            self._dims: Any = None
        else:
            sizes = (mesh.replicas, mesh.shards, mesh.tensor)
            names = ("replicas", "shards", "tensor")
            self._dims = init_device_mesh(device.type, sizes, mesh_dim_names=names)
        sharded = how in ("fsdp", "hsdp", "fsdp+tp")
        self.module: Decoder = decoder.build(
            shape, vocabulary, seed, device, lambda part: self._cut(part, sharded)
        )
        self.model: Any = self.module
        self._sums: GradientReduction | None = None
        if how == "ddp":
            self.model = DistributedDataParallel(
                self.module,
                process_group=self._dims["replicas"].get_group(),
                gradient_as_bucket_view=True,
            )
        if self._engine:
            return
        if how == "ddp" or sharded:
            set_gradient_reduction(self.model, reduce, micro_batches=micro_batches)
        else:
            # Nobody has the same parameters but a process with the same batches.
            alone = None if self._dims is None else self._dims["replicas"].get_group()
            self._sums = GradientReduction(self.module.parameters(), alone, reduce)

    def _cut(self, part: nn.Module, sharded: bool) -> None:
        """Lay a part of the model out: a block, or all the rest."""
        if self.mesh.tensor > 1 and isinstance(part, Block):
            # One input for several matrices, so that its gradient is summed over processes once.
            # Between matrices activations are whole, or each process has its part of the sequence.
            stream = Shard(1) if self.mesh.sequence else Replicate()
            whole = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
            plan: dict[str, Any] = {"attention": whole, "mlp": whole}
            if self.mesh.sequence:
                plan |= {name: SequenceParallel() for name in ("norm_attention", "norm_mlp")}
            columns = ("attention.query", "attention.key", "attention.value", "mlp.expand")
            plan |= {name: ColwiseParallel() for name in columns}
            if part.mlp.gate is not None:
                plan["mlp.gate"] = ColwiseParallel()
            for name in ("attention.project", "mlp.contract"):
                plan[name] = RowwiseParallel(output_layouts=stream)
            parallelize_module(part, self._dims["tensor"], plan)
        elif self.mesh.sequence:
            # Of the model: sequences are cut before the first block, and whole behind the last.
            plan = {
                "blocks.0": PrepareModuleInput(
                    input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
                ),
                "norm": PrepareModuleInput(
                    input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
                ),
            }
            parallelize_module(part, self._dims["tensor"], plan)
        if sharded:
            dims = ("replicas", "shards") if self.mesh.replicas > 1 else "shards"
            fully_shard(part, mesh=self._dims[dims])

    def backward(self, windows: Tensor, number: int) -> float:
        """Add micro-batch `number` = 0, 1, ... of this process's; return its loss.

        After the last one the gradients are the mean over all micro-batches of all processes.
        """
        last = number == self._micro_batches - 1
        is_ddp = isinstance(self.model, DistributedDataParallel)
        waits = self._engine and is_ddp and not last
        with self.model.no_sync() if waits else contextlib.nullcontext():
            loss = decoder.loss(self.model, windows)
            (loss / self._micro_batches if self._engine else loss).backward()
        if self._sums is not None:
            self._sums.add()
            if last:
                self._sums.finish()
        return loss.item()

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters by the decoder's own names, which random streams go by."""
        return list(self.module.named_parameters())

    @torch.no_grad()
    def losses(self, batches: list[Tensor], share: Callable[[int], bool]) -> dict[int, float]:
        """The loss of each batch for which `share` is true, by its number.

        FSDP's processes go together: who has nothing left to do computes the last one again.
        """
        size = self.mesh.data
        found: dict[int, float] = {}
        mine = [k for k in range(len(batches)) if share(k)]
        sharded = isinstance(self.module, FSDPModule)
        turns = -(-len(batches) // size) if sharded else len(mine)
        for turn in range(turns):
            k = mine[turn] if turn < len(mine) else len(batches) - 1
            value = decoder.loss(self.module, batches[k]).item()
            if turn < len(mine):
                found[k] = value
        if isinstance(self.module, FSDPModule):
            # The outermost part stays gathered for a backward pass, which does not come.
            self.module.reshard()
        return found
