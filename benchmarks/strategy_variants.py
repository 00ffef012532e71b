"""What `strategies.py` compares: our precisions, and other projects' optimizers of bf16."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mcf.optim import PRECISIONS, AdamW

Make = Callable[..., Optimizer]

# Everything is compared with this one.
TRUTH = "master"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the table.

    Args:
        name: in the table.
        family: whose it is.
        make: makes it from (groups, lr, beta2, seed).
        hardest: whether it runs under the largest beta2 only.
    """

    name: str
    family: str
    make: Make
    hardest: bool = False


def _ours(precision: str, low: str = "nearest") -> Make:
    def make(groups: Any, lr: float, beta2: float, seed: int, track_metrics: bool = False) -> Any:
        return AdamW(
            groups, lr, (0.9, beta2), precision=precision, low=low, seed=seed,
            track_metrics=track_metrics,
        )  # fmt: skip

    return make


def _theirs(module: str, name: str, **options: Any) -> Make:
    def make(groups: Any, lr: float, beta2: float, seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            constructor = getattr(importlib.import_module(module), name)
            return constructor(groups, lr=lr, betas=(0.9, beta2), eps=1e-8, **options)

    return make


def variants(device: torch.device) -> list[Variant]:
    """All that can run here; a line says which of the others' are left out, and why."""
    # With float32 registers `kahan` is `light`, bit for bit.
    found = [Variant(p, "ours", _ours(p)) for p in PRECISIONS if p != "kahan"]
    for p in ("light", "plus"):
        found.append(Variant(f"{p}, low=stochastic", "ours", _ours(p, "stochastic")))
    peers = [
        Variant("torch bf16", "torch", _theirs("torch.optim", "AdamW")),
        Variant("optimi Kahan", "optimi", _theirs("optimi", "AdamW", kahan_sum=True)),
        Variant("torchao bf16 stochastic", "torchao",
                _theirs("torchao.optim.adam", "_AdamW", bf16_stochastic_round=True)),
        Variant("torchao 8 bit stochastic", "torchao",
                _theirs("torchao.optim", "AdamW8bit", bf16_stochastic_round=True)),
        Variant("heavyball bf16+16", "heavyball",
                _theirs("heavyball", "AdamW", storage_dtype="bfloat16", param_ecc="bf16+16",
                        compile_step=False)),
    ]  # fmt: skip
    if device.type == "cuda":
        # It has no CPU path: "Quantization requires a CUDA device".
        peers.append(Variant("flashoptim", "flashoptim", _theirs("flashoptim", "FlashAdamW")))
    for peer in peers:
        try:
            weight = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16, device=device))
            weight.grad = torch.ones_like(weight)
            peer.make([{"params": [weight], "weight_decay": 0.1}], 1e-3, 0.999, 0).step()
        except Exception as error:
            print(f"{peer.name} is left out: {type(error).__name__}: {error}")
        else:
            found.append(dataclasses.replace(peer, hardest=True))
    return found


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give all groups a learning rate; some optimizers keep theirs in a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        parts = getattr(x, "__tensor_flatten__", None)
        if parts is None:
            yield x
        else:
            for name in parts()[0]:
                yield from _tensors(getattr(x, name))
    elif isinstance(x, dict):
        for value in x.values():
            yield from _tensors(value)
    elif isinstance(x, (list, tuple)):
        for value in x:
            yield from _tensors(value)


def stored_bytes(optimizer: Optimizer, weights: Iterable[Tensor]) -> int:
    """Bytes that live from step to step, scalars left out: weights, gradients, all states."""
    held = list(weights)
    # Some optimizers drop the gradient when they have used it; it was there all the same.
    gradients = sum(w.numel() * w.element_size() for w in held)
    for state in optimizer.state.values():
        held += [t for t in _tensors(state) if t.numel() > 1]
    unique = {t.data_ptr(): t for t in held}
    return gradients + sum(t.numel() * t.element_size() for t in unique.values())
