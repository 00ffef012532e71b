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

from mcf.optim import PRECISIONS, AdamW, Precision

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
        weights: dtype of the parameters.
        rate: the learning rate is multiplied by it.
    """

    name: str
    family: str
    make: Make
    hardest: bool = False
    weights: torch.dtype = torch.bfloat16
    rate: float = 1.0


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


def ours() -> list[Variant]:
    """Every precision, and two of them with low words that are rounded stochastically."""
    # With float32 registers `kahan` is `light`, bit for bit.
    found = [Variant(p, "ours", _ours(p)) for p in PRECISIONS if p != "kahan"]
    for p in ("light", "plus"):
        found.append(Variant(f"{p}, low=stochastic", "ours", _ours(p, "stochastic")))
    return found


def composed(precision: str) -> Variant:
    """Return AdamW under a precision given as the parts of a `Precision` joined by "_".

    Raises:
        ValueError: for a name that is no precision.
    """
    return Variant(str(Precision.of(precision)), "ours", _ours(precision))


def theirs() -> list[Variant]:
    """Other projects' optimizers, whether they are installed and run here or not."""
    return [
        Variant("torch bf16", "torch", _theirs("torch.optim", "AdamW")),
        Variant("torch fp32", "torch", _theirs("torch.optim", "AdamW"), weights=torch.float32),
        Variant("optimi Kahan", "optimi", _theirs("optimi", "AdamW", kahan_sum=True)),
        Variant("torchao bf16 stochastic", "torchao",
                _theirs("torchao.optim.adam", "_AdamW", bf16_stochastic_round=True)),
        Variant("torchao 8 bit stochastic", "torchao",
                _theirs("torchao.optim", "AdamW8bit", bf16_stochastic_round=True)),
        Variant("torchao 4 bit stochastic", "torchao",
                _theirs("torchao.optim", "AdamW4bit", bf16_stochastic_round=True)),
        Variant("heavyball bf16+16", "heavyball",
                _theirs("heavyball", "AdamW", storage_dtype="bfloat16", param_ecc="bf16+16",
                        compile_step=False)),
        # It has no CPU path: "Quantization requires a CUDA device".
        Variant("flashoptim", "flashoptim", _theirs("flashoptim", "FlashAdamW")),
        # Both for GPUs alone.
        Variant("TransformerEngine", "TransformerEngine",
                _theirs("transformer_engine.pytorch.optimizers", "FusedAdam", master_weights=True,
                        master_weight_dtype=torch.float32)),
        Variant("apex", "apex", _theirs("apex.optimizers", "FusedAdam", master_weights=True,
                                        capturable=True)),
    ]  # fmt: skip


def lacks(variant: Variant, device: torch.device) -> str:
    """Why a variant cannot run here, found by a step; nothing where it can."""
    if variant.family == "flashoptim" and device.type != "cuda":
        return "it needs a GPU"
    try:
        weight = torch.nn.Parameter(torch.ones(8, 8, dtype=variant.weights, device=device))
        weight.grad = torch.ones_like(weight)
        variant.make([{"params": [weight], "weight_decay": 0.1}], 1e-3, 0.999, 0).step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def faster(variant: Variant, rate: float) -> Variant:
    """Return a variant whose learning rates are multiplied by a factor."""
    if rate == 1:
        return variant
    return dataclasses.replace(variant, name=f"{variant.name}, rate * {rate:g}", rate=rate)


def find(names: Iterable[str], device: torch.device) -> Iterator[Variant]:
    """Yield the variants of these names that run on a device; print why another is left out.

    Args:
        names: of `ours` and `theirs`, or parts of a `Precision` joined by "_"; each may have a
            factor of the rate behind it, as in "master, rate * 1.0001".
        device: where they run.
    """
    known = {v.name: v for v in (*ours(), *theirs())}
    for name in names:
        plain, _, factor = name.partition(", rate * ")
        try:
            variant = faster(known.get(plain) or composed(plain), float(factor or 1))
        except ValueError as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        if reason := lacks(variant, device):
            print(f"{name} is left out: {reason}", flush=True)
        else:
            yield variant


def variants(device: torch.device) -> list[Variant]:
    """Return all variants that run on a device, those of other projects for the largest beta2."""
    found = find([v.name for v in (*ours(), *theirs())], device)
    return [v if v.family == "ours" else dataclasses.replace(v, hardest=True) for v in found]


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
