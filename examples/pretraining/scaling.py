"""What a training on many devices holds and moves, on paper: the formulae of docs/scaling.md.

Bytes and numbers are those of one device and one update; parameters and gradients are bf16.
Gibibytes and the like are made of them where they are printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretraining.shapes import Shape

# Of a bf16 parameter, a bf16 gradient, a float64 sum.
WORD, SUM = 2, 8


@dataclass(frozen=True)
class Mesh:
    """Processes in three dimensions.

    Attributes:
        replicas: have the same shards (DDP: of whole parameters).
        shards: FSDP's, which cut all parameters.
        tensor: tensor parallel processes, which cut the matrices of the blocks.
        sequence: whether each of these keeps its part of every sequence alone between matrices.
    """

    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    sequence: bool = False

    @property
    def data(self) -> int:
        """Processes with batches of their own."""
        return self.replicas * self.shards

    @property
    def devices(self) -> int:
        """All processes."""
        return self.data * self.tensor


def strategies(devices: int, tensor: int, shards: int, sequence: bool = False) -> dict[str, Mesh]:
    """The mesh of each strategy on so many devices, of those that divide them."""
    found = {"ddp": Mesh(devices), "fsdp": Mesh(1, devices)}
    if devices % shards == 0 and 1 < shards < devices:
        found["hsdp"] = Mesh(devices // shards, shards)
    found["tp"] = Mesh(1, 1, devices, sequence)
    if devices % tensor == 0 and 1 < tensor < devices:
        found["fsdp+tp"] = Mesh(1, devices // tensor, tensor, sequence)
    return found


@dataclass(frozen=True)
class Work:
    """What is trained.

    Attributes:
        shape: of the model.
        vocabulary: number of tokens.
        windows: of a micro-batch on one process.
        micro_batches: of an update on one process.
        state_bytes: of the optimizer, for a parameter; 6 for "split16_sr".
        recompute: whether blocks are computed again in the backward pass.
    """

    shape: Shape
    vocabulary: int
    windows: int = 1
    micro_batches: int = 1
    state_bytes: float = 6.0
    recompute: bool = True


def matrices(shape: Shape) -> int:
    """Parameters of a block that tensor parallelism cuts."""
    return shape.block() - 2 * shape.norm()


def held(work: Work, mesh: Mesh) -> float:
    """Parameters of which a device keeps the states: its share of blocks and of the rest."""
    shape = work.shape
    block = matrices(shape) / mesh.tensor + 2 * shape.norm()
    return (shape.layers * block + shape.rest(work.vocabulary)) / mesh.shards


def memory(work: Work, mesh: Mesh, reduce: str = "engine") -> dict[str, float]:
    """Bytes on a device at the fullest moment, by what holds them.

    parameters, gradients: WORD for each one `held`; states: `state_bytes`.
    gathered (FSDP): two blocks' parameters (one is used, one is on its way) or those outside the
    blocks, whichever are more, and as many gradients on their way.
    sums: of the reduction, for each element of the piece that the device owns.
    activations: `activations`, of all blocks or, recomputed, of one and the others' inputs.
    logits: bf16, and float32 with its gradient.
    """
    shape, mine = work.shape, held(work, mesh)
    found = {"parameters": WORD * mine, "gradients": WORD * mine, "states": work.state_bytes * mine}
    if mesh.shards > 1:
        block = matrices(shape) / mesh.tensor + 2 * shape.norm()
        rest = shape.rest(work.vocabulary)
        found["gathered"] = WORD * (max(2 * block, rest) + max(block, rest))
    if reduce != "engine":
        found["sums"] = (SUM if reduce == "exact" else SUM / 2) * mine / mesh.replicas
    one = activations(work, mesh)
    tokens = work.windows * shape.context
    inputs = WORD * tokens * shape.width / (mesh.tensor if mesh.sequence else 1)
    found["activations"] = one + shape.layers * inputs if work.recompute else shape.layers * one
    found["logits"] = (WORD + 8) * tokens * work.vocabulary
    return found


def activations(work: Work, mesh: Mesh) -> float:
    """Bytes that one block keeps for its backward pass in 16 bits, the attention fused.

    s b h (10 + 24 / t) (Korthikanti et al. 2022, arXiv:2205.05198, equation 2 without its attention
    term), for an MLP of 4 h, scaled to the hidden size of another. With sequence parallelism
    s b h (4 + 30 / t): torch keeps what it gathered for attention and MLP, 2 s b h each, where the
    paper gathers it again (34 / t, equation 4).
    """
    shape = work.shape
    each = work.windows * shape.context * shape.width
    wide = (3 if shape.llama else 2) * shape.hidden / (8 * shape.width)
    whole = 4 if mesh.sequence else 10
    return each * (whole + (10 - whole + 8 + 16 * wide) / mesh.tensor)


def traffic(work: Work, mesh: Mesh, reduce: str = "engine") -> dict[str, float]:
    """Bytes that a device sends in an update, by what sends them; it receives as many.

    An all-gather or reduce-scatter of n bytes over p devices sends n (p - 1) / p, an all-reduce
    twice that (Patarasu and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002), an all-to-all as the first.

    FSDP, for each micro-batch: the blocks' parameters twice (forward, backward), those outside once
    (they stay until backward), all gradients once.
    Replicas: gradients all-reduced, once (DDP with `no_sync`) or in each micro-batch (HSDP, and
    exact or float32 sums in DDP); those of HSDP exchange sums once instead, and then the means.
    Tensor: four all-reduces of activations in a block and micro-batch. Sequence parallelism: each
    is a reduce-scatter and an all-gather, as many bytes; besides, the last norm's inputs are
    gathered, and the gradient of the first block's; gradients of the blocks' norms are all-reduced.
    """
    shape, k = work.shape, work.micro_batches
    gathered = WORD * held(work, mesh) * mesh.shards
    found: dict[str, float] = {}
    if mesh.shards > 1:
        again = gathered - WORD * shape.rest(work.vocabulary)
        found["parameters"] = k * (gathered + again) * _share(mesh.shards)
        found["gradients"] = k * gathered * _share(mesh.shards)
    if mesh.replicas > 1:
        shard, share = gathered / mesh.shards, _share(mesh.replicas)
        if reduce == "engine":
            times = 2 * (k if mesh.shards > 1 else 1)
        elif mesh.shards > 1:
            # The engine's all-reduce carries zeros until the last micro-batch.
            times = 2 * k + (4 if reduce == "exact" else 2)
        else:
            times = k + 1
        found["replicas"] = times * shard * share
    if mesh.tensor > 1:
        tokens = work.windows * shape.context
        each = WORD * tokens * shape.width
        found["tensor"] = 4 * 2 * k * shape.layers * each * _share(mesh.tensor)
        if mesh.sequence:
            # FSDP asks for sums in each micro-batch.
            norms = WORD * 2 * shape.layers * shape.norm() * (k if mesh.shards > 1 else 1)
            found["tensor"] += 2 * (k * each + norms) * _share(mesh.tensor)
    return found


def _share(processes: int) -> float:
    return (processes - 1) / processes


def flops(work: Work, mesh: Mesh) -> float:
    """Operations of a device in an update: 6 for each parameter and token, attention's besides.

    (Chowdhery et al. 2022, arXiv:2204.02311, appendix B.) 8 in place of 6 where blocks are
    computed again.
    """
    shape = work.shape
    tokens = work.windows * shape.context * work.micro_batches
    passes = 8 if work.recompute else 6
    used = shape.parameters(work.vocabulary) - (shape.width * work.vocabulary if shape.llama else 0)
    # Scores and their sums of values, of which causal attention needs half.
    attention = 2 * shape.layers * shape.width * shape.context / 2
    return passes * tokens * (used + attention) / mesh.tensor
