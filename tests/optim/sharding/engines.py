"""PyTorch's engines, each with the model that it trains and what it asks of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mcf.optim.sharding.shards import local, part
from tests.optim.sharding import model as models
from tests.optim.sharding.layouts import digest, whole

BF16, FP32 = torch.bfloat16, torch.float32


class Engine:
    """A model under an engine, and one process's part of each pass."""

    def __init__(self, model: nn.Module, data: tuple[int, int] = (0, 1), mean: bool = True) -> None:
        """Take a model that the engine has wrapped.

        Args:
            model: the wrapped model.
            data: process and number of processes among which samples are divided.
            mean: whether gradients are divided by that number.
        """
        self.model, self.data = model, data
        self.factor = float(data[1]) if mean else 1.0
        self.rows = self.columns = (0, 1)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters, by the names of the plain model."""
        return list(self.model.named_parameters())

    def samples(self, part: int = 0, parts: int = 1) -> tuple[int, int]:
        """The samples of this process, or of one of its micro-batches."""
        rank, size = self.data
        count = models.SAMPLES // size // parts
        first = (rank * parts + part) * count
        return first, first + count

    def backward(self, step: int, part: int = 0, parts: int = 1, scale: float = 1.0) -> Tensor:
        """Gradients of a step's samples; the loss."""
        models.HERE = models.Place(
            step, self.samples(part, parts), self.rows, self.columns, self.factor * scale
        )
        loss = models.loss_of(self.model)
        (loss * (self.factor * scale)).backward()
        return loss

    def train(self, optimizer: Any, steps: Any) -> None:
        """Make steps of some numbers."""
        for t in steps if not isinstance(steps, int) else range(steps):
            optimizer.zero_grad()
            self.backward(t)
            optimizer.step()

    def digests(self, optimizer: Any) -> dict[str, str]:
        """Return digests of all weights and states, by the names of the plain model."""
        found = {}
        for name, p in self.named():
            own = plain_name(name)
            found[own] = digest(whole(p.detach()))
            for key, value in sorted(optimizer.state.get(p, {}).items()):
                found[f"{own} {key}"] = digest(whole(value))
        return found


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers add."""
    for added in ("_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(added, "")
    return name.removeprefix("module.")


def _world() -> tuple[int, int]:
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def _mesh(shape: tuple[int, ...], *names: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def plain(dtype: torch.dtype = BF16) -> Engine:
    """One process, and no engine."""
    return Engine(models.made(dtype))


def ddp(**options: Any) -> Engine:
    """DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    made = DistributedDataParallel(models.made(), find_unused_parameters=True, **options)
    return Engine(made, _world())


def _shard(model: Any, **options: Any) -> Any:
    """`fully_shard` of a block, and of the rest."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.block, **options)
    return fully_shard(model, **options)


def fsdp(dtype: torch.dtype = BF16, **options: Any) -> Engine:
    """`fully_shard` over all processes."""
    return Engine(_shard(models.made(dtype), **options), _world())


def fsdp_policy(dtype: torch.dtype = BF16, **policy: Any) -> Engine:
    """`fully_shard` with a policy for mixed precision."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp(dtype, mp_policy=MixedPrecisionPolicy(**policy))


def fsdp_offload() -> Engine:
    """`fully_shard` with parameters on the CPU."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp(offload_policy=CPUOffloadPolicy(pin_memory=False))


def fsdp_ignored() -> Engine:
    """`fully_shard` next to plain parameters, whose gradients are summed by hand."""
    from torch import distributed

    model = models.made()
    ignored = {model.scale, model.block.norm.weight}
    made = Engine(_shard(model, ignored_params=ignored), _world())
    mine = made.backward

    def backward(*args: Any, **kwargs: Any) -> Tensor:
        loss = mine(*args, **kwargs)
        for p in ignored:
            distributed.all_reduce(p.grad)
            p.grad /= made.factor
        return loss

    made.backward = backward  # type: ignore[method-assign]
    return made


def fsdp_meta() -> Engine:
    """`fully_shard` of a model that was made on the meta device."""
    with torch.device("meta"):
        model = models.Model().to(BF16)
    _shard(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, p in model.named_parameters():
            local(p).copy_(part(p, models.start(name, tuple(p.shape), p.dtype)))
    return Engine(model, _world())


def fsdp_checkpointing() -> Engine:
    """`fully_shard` with the block's activations computed again."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = models.made()
    model.block = checkpoint_wrapper(model.block)
    return Engine(_shard(model), _world())


def fsdp_compiled() -> Engine:
    """`fully_shard` with a compiled forward pass."""
    model = _shard(models.made())
    return Engine(torch.compile(model, backend="aot_eager"), _world())


def hsdp(shape: tuple[int, int]) -> Engine:
    """Replicas of shards."""
    return fsdp(mesh=_mesh(shape, "replicas", "shards"))


def _plan(sequence: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    if not sequence:
        return {"block.up": ColwiseParallel(), "block.down": RowwiseParallel()}
    return {
        # Sequences are cut where the block begins, and whole where it ends.
        "block": PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)
        ),
        "block.norm": SequenceParallel(use_local_output=True),
        "block.up": ColwiseParallel(input_layouts=Shard(1)),
        "block.down": RowwiseParallel(output_layouts=Shard(1)),
        "block.out": _gathered(),
    }


def _gathered() -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleOutput

    return PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))


def tensor_parallel(sequence: bool = False) -> Engine:
    """Columns of the first layer, rows of the second; with `sequence` the norm on pieces."""
    from torch.distributed.tensor.parallel import parallelize_module

    rank, size = _world()
    model = parallelize_module(models.made(), _mesh((size,), "tensor"), _plan(sequence))
    made = Engine(model, mean=False)
    made.columns = (rank, size)
    if sequence:
        made.rows = (rank, size)
    return made


def fsdp_tensor_parallel(shape: tuple[int, int], sequence: bool = False) -> Engine:
    """`fully_shard` of what tensor parallelism has cut."""
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = _mesh(shape, "data", "tensor")
    model = parallelize_module(models.made(), mesh["tensor"], _plan(sequence))
    data, tensor = ((mesh[n].get_local_rank(), mesh[n].size()) for n in ("data", "tensor"))
    made = Engine(_shard(model, mesh=mesh["data"]), data)
    made.columns = tensor
    if sequence:
        made.rows = tensor
    return made


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore torch's warnings about itself."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trained(
    engine: str,
    options: dict[str, Any],
    several: list[tuple[str, dict[str, Any]]],
    steps: int = 3,
    look: Callable[..., Any] | None = None,
) -> list[Any]:
    """Digests under an engine, for several optimizers."""
    import mcf.optim

    found = []
    with quiet():
        for make, given in several:
            made = globals()[engine](**options)
            optimizer = getattr(mcf.optim, make)(made.named(), **given)
            made.train(optimizer, steps)
            found.append(made.digests(optimizer) if look is None else look(made, optimizer))
    return found
