"""The AdamW steps that `optimizer_step.py` compares: ours, torch's, others', and option D."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import strategy_variants
import torch
from torch import Tensor

import mcf
from mcf.optim import PRECISIONS, AdamW
from mcf.optim.step.kernel import kernel
from mcf.optim.storage.strategies import STRATEGIES

Step = Callable[[], object]
Make = Callable[[Sequence[torch.Size], torch.device], Step]

_BETAS, _DECAY = (0.9, 0.999), 0.1
HYPER: dict[str, Any] = {"lr": 1e-3, "betas": _BETAS, "weight_decay": _DECAY}

FUSED = "torch fused fp32"
OPTION_D = "option D by hand"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to make a step.

    Args:
        family: "ours", "eager" (ours as plain torch operations), "torch", "optimi" or "torchao".
        make: builds parameters with gradients and returns the step.
        bytes_moved: bytes read and written per parameter by a single pass over its tensors; None
            where the step makes several passes.
        bytes_held: bytes per parameter of parameter, gradient and states.
    """

    name: str
    family: str
    make: Make
    bytes_moved: float | None
    bytes_held: float


def _parameters(
    shapes: Sequence[torch.Size], device: torch.device, dtype: torch.dtype
) -> list[torch.nn.Parameter]:
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for shape in shapes:
        values = torch.randn(shape, generator=generator, device=device)
        p = torch.nn.Parameter((values * 0.02).to(dtype))
        p.grad = (values.flip(0) * 1e-2).to(dtype)
        made.append(p)
    return made


def _ours(
    precision: str,
    compute_dtype: torch.dtype,
    track_metrics: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> Make:
    def make(shapes: Sequence[torch.Size], device: torch.device) -> Step:
        return AdamW(
            _parameters(shapes, device, dtype),
            precision=precision,
            compute_dtype=compute_dtype,
            track_metrics=track_metrics,
            **HYPER,
        ).step

    return make


def _ours_eager(precision: str, compute_dtype: torch.dtype) -> Make:
    """The same step as plain torch operations, the reference executor."""

    def make(shapes: Sequence[torch.Size], device: torch.device) -> Step:
        step = _ours(precision, compute_dtype, False)(shapes, device)

        def eager() -> None:
            with mcf.executor("torch"):
                step()

        return eager

    return make


def _torch(dtype: torch.dtype, **how: bool) -> Make:
    def make(shapes: Sequence[torch.Size], device: torch.device) -> Step:
        return torch.optim.AdamW(_parameters(shapes, device, dtype), **HYPER, **how).step

    return make


def _option_d(shapes: Sequence[torch.Size], device: torch.device) -> Step:
    """bf16 weights and gradients, float32 master weights and states, torch's fused AdamW."""
    weights = _parameters(shapes, device, torch.bfloat16)
    masters = [torch.nn.Parameter(w.detach().float()) for w in weights]
    optimizer = torch.optim.AdamW(masters, fused=True, **HYPER)

    @torch.no_grad()
    def step() -> None:
        for weight, master in zip(weights, masters, strict=True):
            master.grad = _required(weight.grad).float()
        optimizer.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.copy_(master)
            master.grad = None

    return step


def _required(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad


def _optimi(foreach: bool) -> Make:
    def make(shapes: Sequence[torch.Size], device: torch.device) -> Step:
        import optimi

        return optimi.AdamW(
            _parameters(shapes, device, torch.bfloat16),
            kahan_sum=True,
            foreach=foreach,
            triton=False,
            **HYPER,
        ).step

    return make


def _torchao(peer: strategy_variants.Variant) -> Make:
    """torchao compiles its steps at the first call, which is not timed."""

    def make(shapes: Sequence[torch.Size], device: torch.device) -> Step:
        groups = [
            {"params": _parameters(shapes, device, torch.bfloat16), "weight_decay": _DECAY},
        ]
        step: Step = peer.make(groups, HYPER["lr"], _BETAS[1], 0).step
        return step

    return make


def _torchao_bytes(peer: strategy_variants.Variant) -> float:
    """Bytes per parameter, counted on what a step of a matrix of whole blocks leaves."""
    weight = torch.nn.Parameter(torch.ones(256, 256, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    optimizer = peer.make([{"params": [weight]}], HYPER["lr"], _BETAS[1], 0)
    # Nothing is compiled for this one.
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()
    held = strategy_variants.stored_bytes(optimizer, [weight])
    return round(held / weight.numel(), 2)


def _bytes(precision: str) -> tuple[float, float]:
    """Bytes per parameter that a step moves, and that parameter, gradient and states take."""
    optimizer = AdamW([torch.nn.Parameter(torch.zeros(1, 2).bfloat16())], precision=precision)
    group = optimizer.param_groups[0]
    arith = optimizer._arithmetic(group, group["params"][0], "params[0]")
    fields = kernel(optimizer._rule(group), arith, False).fields
    sizes = [f.format.itemsize for f in fields]
    moved = sum(n * (f.read + f.written) for n, f in zip(sizes, fields, strict=True))
    return moved, sum(sizes)


def variants(optimi: bool, torchao: bool = False) -> list[Variant]:
    """All variants; the float32 fused step of torch, which ratios refer to, comes first.

    Args:
        optimi: whether optimi's are among them.
        torchao: the same of torchao's.
    """
    wide, strict = torch.float32, torch.bfloat16
    found = [Variant(FUSED, "torch", _torch(wide, fused=True), 28, 16)]
    found.append(Variant(OPTION_D, "torch", _option_d, None, 16))
    for precision in PRECISIONS:
        moved, held = _bytes(precision)
        found.append(Variant(precision, "ours", _ours(precision, wide, False), moved, held))
    # float32 parameters and gradients move 12 bytes, their moments twice what they hold.
    for precision, moved, held in (("bf16_sr", 20, 12), ("8bit", 16, 10), ("4bit", 15, 9.5)):
        make = _ours(precision, wide, False, wide)
        found.append(Variant(f"{precision}, fp32 parameters", "ours", make, moved, held))
    metrics = _ours("plus", wide, True)
    found.append(Variant("plus, metrics", "ours", metrics, *_bytes("plus")))
    for precision in PRECISIONS:
        if not STRATEGIES[precision].wide:
            name, make = f"{precision}, bf16 arithmetic", _ours(precision, strict, False)
            found.append(Variant(name, "ours", make, *_bytes(precision)))
    metrics = _ours("plus", strict, True)
    name = "plus, bf16 arithmetic, metrics"
    found.append(Variant(name, "ours", metrics, *_bytes("plus")))
    for suffix, compute_dtype in (("", wide), (", bf16 arithmetic", strict)):
        make = _ours_eager("plus", compute_dtype)
        found.append(Variant(f"plus{suffix}, eager torch", "eager", make, None, 12))
    found.append(Variant("torch fused bf16", "torch", _torch(strict, fused=True), 14, 8))
    for how in ("foreach", "for-loop"):
        foreach = how == "foreach"
        for dtype, name, held in ((wide, "fp32", 16), (strict, "bf16", 8)):
            make = _torch(dtype, foreach=foreach)
            found.append(Variant(f"torch {how} {name}", "torch", make, None, held))
        if optimi:
            found.append(Variant(f"optimi {how} bf16 Kahan", "optimi", _optimi(foreach), None, 10))
    peers = [v for v in strategy_variants.theirs() if v.family == "torchao"] if torchao else []
    for peer in peers:
        held = _torchao_bytes(peer)
        found.append(Variant(peer.name, "torchao", _torchao(peer), None, held))
    return found
