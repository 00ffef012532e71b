"""Options of `examples/pretrain.py` for models of any size on any number of processes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pretraining.arguments import Unset, integer
from pretraining.scaling import Mesh
from pretraining.shapes import SHAPES, Shape, gpt

if TYPE_CHECKING:
    from pretraining.options import Options

PARALLEL = ("none", "ddp", "fsdp", "hsdp", "tp", "fsdp+tp")
REDUCE = ("engine", "float32", "exact")
FIELDS = frozenset(
    {
        "model",
        "parallel",
        "shards",
        "tensor",
        "sequence_parallel",
        "reduce",
        "micro_batch",
        "dry_run",
        "devices",
    }
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    group = parser.add_argument_group(
        "scale",
        "one strategy (split16_sr) of one model, by the processes that torchrun starts: torchrun "
        "--standalone --nproc-per-node 2 examples/pretrain.py --parallel fsdp --model llama-1m",
    )
    # fmt: off
    group.add_argument(
        "--model", choices=tuple(SHAPES), metavar="NAME",
        help="a published shape in the place of --layers, --width, --heads: " + ", ".join(SHAPES)
        + "; its context is --context's default, its vocabulary the data's",
    )
    group.add_argument(
        "--parallel", choices=PARALLEL, default="none", metavar="HOW",
        help="how processes share the work: " + ", ".join(PARALLEL),
    )
    group.add_argument(
        "--shards", type=integer(2), metavar="N",
        help="hsdp: processes that share one copy; without it: those of one machine",
    )
    group.add_argument(
        "--tensor", type=integer(2), default=2, metavar="N",
        help="fsdp+tp: processes that share a matrix; tp: all do",
    )
    group.add_argument(
        "--sequence-parallel", action="store_true",
        help="tp, fsdp+tp: those that share a matrix share the sequences between two (norms, "
        "residual stream)",
    )
    group.add_argument(
        "--reduce", choices=REDUCE, default="engine", metavar="HOW",
        help="sums of gradients: the engine's in bf16, float32, or exact, which have the same bits "
        "for any number of processes that share a batch in micro-batches of one size",
    )
    group.add_argument(
        "--micro-batch", type=integer(1), metavar="N",
        help="windows of a forward pass; divides --batch-size, which is that of all processes; "
        "without it: one micro-batch a process",
    )
    group.add_argument(
        "--dry-run", action="store_true",
        help="print parameters and bytes per device under each strategy, and train nothing",
    )
    group.add_argument(
        "--devices", type=integer(1, 2**20), metavar="N",
        help="of --dry-run; without it: those of torchrun, or 8",
    )
    # fmt: on


def resolve(parser: argparse.ArgumentParser, values: dict[str, Any]) -> None:
    """Put a model's shape in the place of what was not given."""
    given = [k for k in ("layers", "width", "heads") if not isinstance(values[k], Unset)]
    if values["model"] is not None:
        if given:
            parser.error(f"argument --{given[0]}: --model {values['model']} has its own")
        shape = SHAPES[values["model"]]
        for key in ("layers", "width", "heads", "context"):
            if isinstance(values[key], Unset):
                values[key] = getattr(shape, key)
    for key in ("layers", "width", "heads", "context"):
        values[key] = int(values[key])


def check(parser: argparse.ArgumentParser, options: Options) -> None:
    """Refuse what does not go together; `mesh` refuses what the number of processes decides."""
    size = options.micro_batch
    if size is not None and options.batch_size % size:
        parser.error(
            f"argument --micro-batch: {size} does not divide --batch-size {options.batch_size}"
        )
    if options.shards is not None and options.parallel != "hsdp" and not options.dry_run:
        parser.error("argument --shards: needs --parallel hsdp")
    if options.sequence_parallel:
        if options.parallel not in ("tp", "fsdp+tp") and not options.dry_run:
            parser.error("argument --sequence-parallel: needs --parallel tp or fsdp+tp")
        if options.reduce != "engine":
            parser.error(
                f"argument --reduce: {options.reduce} does not go with --sequence-parallel, whose "
                "norms have gradients that the engine sums over sequences; allowed is engine"
            )


def strategy(options: Options) -> str:
    """Return the one strategy that is trained: split16_sr, unless one was named."""
    return options.strategies[0] if len(options.strategies) == 1 else "split16_sr"


def shape(options: Options) -> Shape:
    """The model's shape."""
    if options.model is None:
        return gpt(options.layers, options.width, options.heads, options.context)
    found = SHAPES[options.model]
    return Shape(**{**vars(found), "context": options.context})


def mesh(options: Options, devices: int, machine: int) -> Mesh | str:
    """The mesh of a run, or what is wrong with it.

    Args:
        options: the checked options.
        devices: how many processes there are.
        machine: how many of them are on one machine.
    """
    how, tensor = options.parallel, options.tensor
    shards = options.shards or machine
    if how == "none":
        found = Mesh()
        if devices > 1:
            return f"--parallel: none is for one process, and there are {devices}"
    elif how == "hsdp":
        if devices % shards or devices == shards:
            return f"--shards: {shards} does not divide {devices} processes into several copies"
        found = Mesh(devices // shards, shards)
    elif how == "fsdp+tp":
        if devices % tensor:
            return f"--tensor: {tensor} does not divide {devices} processes"
        found = Mesh(1, devices // tensor, tensor, options.sequence_parallel)
    elif how == "tp":
        found = Mesh(1, 1, devices, options.sequence_parallel)
    else:
        found = {"ddp": Mesh(devices), "fsdp": Mesh(1, devices)}[how]
    model = shape(options)
    if found.sequence and model.context % found.tensor:
        return (
            f"--sequence-parallel: {found.tensor} processes cannot share a --context of "
            f"{model.context} tokens"
        )
    if model.groups % found.tensor or model.hidden % found.tensor:
        return (
            f"--parallel: {how} of {found.tensor} processes cannot share {model.groups} heads of "
            f"keys and an MLP of {model.hidden}"
        )
    size = options.micro_batch or max(1, options.batch_size // found.data)
    if options.batch_size % (size * found.data):
        return (
            f"--batch-size: {options.batch_size} is no multiple of {found.data} processes' "
            f"micro-batches of {size}"
        )
    return found
