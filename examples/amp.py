"""torch's mixed-precision recipe, and the same training in pure float16 and pure bfloat16.

    python examples/amp.py                # the four loops side by side
    python examples/amp.py --only fp16 --steps 500

`amp` is torch's: float32 parameters, `torch.autocast`, a GradScaler, gradients unscaled and clipped
before the step. `fp16` and `bf16` hold 16-bit parameters and gradients only and need no autocast;
`plus` keeps what a 16-bit weight loses. float16 keeps the GradScaler, whose scale, search for
infinities and clipping are part of the step; bfloat16 has float32's range and needs none.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import Tensor, nn

import mcf.optim

RECIPES = ("fp32", "amp", "fp16", "bf16")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one training went.

    Args:
        losses: the loss at each step, in float32.
        skipped: steps that the GradScaler left out.
        bytes_per_parameter: of parameters, gradients and optimizer states.
    """

    losses: list[float]
    skipped: int
    bytes_per_parameter: float


def network(width: int, dtype: torch.dtype, device: str) -> nn.Module:
    """A small regression network, the same before rounding for every dtype."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1)).to(device, dtype)


def batches(width: int, steps: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Seeded inputs, and a smooth function of them to learn."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(64, width, generator=generator) for _ in range(steps)]
    return [(x.to(device), x[:, :4].sum(1, keepdim=True).sin().to(device)) for x in inputs]


def train(recipe: str, steps: int = 200, width: int = 64, device: str = "cpu") -> Outcome:
    """Train one way; the loop is the same but for what the recipe needs.

    Raises:
        ValueError: for an unknown recipe.
    """
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}; known are {', '.join(RECIPES)}")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(recipe, torch.float32)
    model = network(width, dtype, device)
    # It begins too high, finds infinities, and comes down: such steps change nothing.
    scaler = torch.amp.GradScaler(
        device, init_scale=2.0**20, growth_interval=50, enabled=recipe in ("amp", "fp16")
    )
    optimizer: torch.optim.Optimizer
    if recipe in ("fp32", "amp"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        # Clipping is part of the step; so is unscaling where there is a scaler.
        optimizer = mcf.optim.AdamW(
            model.parameters(), lr=1e-3, precision="plus", max_grad_norm=1.0
        )
    losses, skipped = [], 0
    for x, y in batches(width, steps, device):
        with torch.autocast(device, dtype=torch.float16, enabled=recipe == "amp"):
            out = model(x.to(dtype))
        # The loss in float32, whatever the network computes in.
        loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        if recipe in ("fp32", "amp"):
            # torch's order: unscale, clip, step.
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.is_enabled() and scaler.get_scale() < scale
        held = storage(optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    return Outcome(losses, skipped, held / sum(p.numel() for p in model.parameters()))


def storage(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients and states."""
    tensors = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            tensors += [p, p.grad, *optimizer.state.get(p, {}).values()]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def main(arguments: list[str] | None = None) -> None:
    """Train each way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=RECIPES, help="one of the recipes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    print(f"{'recipe':8}{'first loss':>12}{'last losses':>13}{'skipped':>9}{'bytes/param':>13}")
    for recipe in (given.only,) if given.only else RECIPES:
        out = train(recipe, given.steps, given.width, given.device)
        last = out.losses[-max(1, given.steps // 10) :]
        print(
            f"{recipe:8}{out.losses[0]:12.4f}{sum(last) / len(last):13.4f}{out.skipped:9}"
            f"{out.bytes_per_parameter:13.1f}"
        )


if __name__ == "__main__":
    main()
