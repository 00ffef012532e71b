"""Trainings by several processes, called in each of them, with accidents of every kind."""

from __future__ import annotations

import contextlib
import io
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.examples.tiny import torch_restored

TINY = [
    "--layers=1", "--width=16", "--heads=2", "--context=16", "--batch-size=4", "--micro-batch=1",
    "--steps=6", "--eval-every=3", "--eval-windows=4", "--checkpoint-every=2", "--device=cpu",
    "--threads=1", "--reduce=exact",
]  # fmt: skip


def train(folder: str, *arguments: str, accident: str = "", rank: int = -1) -> tuple[int, str]:
    """Run `pretrain.py` in this process of some; its exit code and what it said on stderr.

    Args:
        folder: has `texts`, and gets `runs`.
        arguments: besides those of the smallest run.
        accident: the name of a function below, which is entered meanwhile.
        rank: the one process that it happens to; all, if -1.
    """
    from pretrain import main
    from torch import distributed

    size, mine = distributed.get_world_size(), distributed.get_rank()
    where = {"RANK": str(mine), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    base = [*TINY, f"--data={folder}/texts/*.txt", f"--out={folder}/runs"]
    said = io.StringIO()
    happens = accident and rank in (-1, mine)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, where))
        stack.enter_context(torch_restored())
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        if happens:
            name, *words = accident.split()
            stack.enter_context(globals()[name](*map(int, words)))
        code = main([*base, *arguments])
    lines = [x for x in said.getvalue().replace("\r", "\n").split("\n") if x and "step/s" not in x]
    assert "Traceback" not in said.getvalue()
    return code, "\n".join(lines)


def train_named(folder: str, words: list[str], accidents: dict[str, Any]) -> tuple[int, str]:
    """`train`, of arguments that can be sent."""
    return train(folder, *words, **accidents)


@contextlib.contextmanager
def asked_to_stop(step: int) -> Iterator[None]:
    """A SIGTERM comes during an update."""
    from pretraining.together import _Training

    update = _Training._update

    def wrapped(self: Any, number: int, interrupt: Any) -> Any:
        if number == step:
            interrupt.asked = 15
        return update(self, number, interrupt)

    with mock.patch.object(_Training, "_update", wrapped):
        yield


@contextlib.contextmanager
def wrong_loss(step: int) -> Iterator[None]:
    """The loss of an update is NaN."""
    with _backward(step, lambda parallel, value: torch.nan):
        yield


@contextlib.contextmanager
def wrong_gradient(step: int) -> Iterator[None]:
    """A gradient of an update is NaN, the loss is not."""

    def spoil(parallel: Any, value: float) -> float:
        with torch.no_grad():
            grad = next(p for _, p in parallel.named_parameters() if p.grad is not None).grad
            getattr(grad, "_local_tensor", grad).view(-1)[:1] = torch.nan
        return value

    with _backward(step, spoil):
        yield


@contextlib.contextmanager
def _backward(step: int, change: Any) -> Iterator[None]:
    from pretraining.parallel import Parallel

    backward, calls = Parallel.backward, [0]

    def wrapped(self: Any, windows: Any, number: int) -> float:
        value = backward(self, windows, number)
        calls[0] += number == self._micro_batches - 1
        return change(self, value) if calls[0] == step else value

    with mock.patch.object(Parallel, "backward", wrapped):
        yield


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow above so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def newest(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((folder / "checkpoints").glob("step-*[0-9]"), reverse=True)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's newest checkpoint, put together."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    file = folder / "whole.pt"
    dcp_to_torch_save(newest(folder)[0], file)
    state = torch.load(file, weights_only=True)
    found: dict[str, torch.Tensor] = {}

    def take(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                take(f"{prefix}/{key}", inner)
        elif isinstance(value, torch.Tensor):
            found[prefix] = value

    take("", state)
    return found


# A shape for counting bytes: sizes that small meshes divide.
SMALL = (True, 3, 32, 4, 2, 64, 16, 40)


def held(how: str, sizes: tuple[Any, ...]) -> dict[str, float]:
    """Bytes of what this process has, and of what it sends in an update, counted."""
    from pretraining.parallel import Parallel
    from pretraining.scaling import Mesh
    from pretraining.shapes import Shape
    from torch import distributed

    import mcf.optim
    from mcf.optim.sharding.shards import local

    sent = {"gather": 0.0, "scatter": 0.0, "reduce": 0.0}

    def counted(name: str, size: Any) -> Any:
        original = getattr(distributed, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            key, amount = size(*args, **kwargs)
            group = kwargs.get("group")
            p = distributed.get_world_size(group)
            sent[key] += amount * (p - 1) / p
            return original(*args, **kwargs)

        return mock.patch.object(distributed, name, wrapped)

    def total(t: torch.Tensor) -> float:
        return t.numel() * t.element_size()

    small = Shape(*SMALL)
    parallel = Parallel(small, 40, 0, torch.device("cpu"), Mesh(*sizes), how, "engine", 1)
    optimizer = mcf.optim.AdamW(parallel.named_parameters(), precision="split16_sr")
    windows = torch.arange(2 * (small.context + 1)).view(2, -1) % 40
    gather = getattr(distributed, "all_gather_single", None)
    name = "all_gather_single" if gather is not None else "all_gather_into_tensor"
    scatter = "reduce_scatter_single" if gather is not None else "reduce_scatter_tensor"
    with contextlib.ExitStack() as stack:
        for each in {name, "all_gather_into_tensor"}:
            stack.enter_context(
                counted(each, lambda output_tensor, *a, **k: ("gather", total(output_tensor)))
            )
        for each in {scatter, "reduce_scatter_tensor"}:
            if hasattr(distributed, each):
                stack.enter_context(
                    counted(each, lambda output, input, *a, **k: ("scatter", total(input)))
                )
        stack.enter_context(counted("all_reduce", lambda t, *a, **k: ("reduce", 2 * total(t))))
        with Functional(sizes[2]) as tensor:
            parallel.backward(windows, 0)
    with tensor:
        optimizer.step()
    params = [local(p) for _, p in parallel.named_parameters()]
    grads = [local(p.grad) for _, p in parallel.named_parameters()]
    states = [
        local(t)
        for p in optimizer.state.values()
        for t in p.values()
        if isinstance(t, torch.Tensor) and t.dim()
    ]
    found = {"parameters": params, "gradients": grads, "states": states}
    sent["tensor"] = tensor.sent
    return {k: sum(map(total, v)) for k, v in found.items()} | sent


class Functional(TorchDispatchMode):
    """Bytes that tensor parallelism sends, by operators of its own, as if all numbers had 16 bits.

    On a CPU activations are float32, and gradients of norms are not.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self.sent = size, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "functional" in str(func):
            p = self._size
            whole = {"all_reduce": 2, "all_gather": p, "reduce_scatter": 1}
            times = next((n for name, n in whole.items() if name in str(func)), 0)
            self.sent += 2 * times * args[0].numel() * (p - 1) / p if times else 0.0
        return func(*args, **(kwargs or {}))
