"""torch's mixed-precision recipe, and the same training in pure float16 and pure bfloat16.

    python examples/amp.py                # the four loops side by side
    python examples/amp.py --only fp16 --steps 500

`amp` is torch's: float32 parameters, `torch.autocast`, a GradScaler, gradients unscaled and clipped
before the step. `fp16` and `bf16` hold 16-bit parameters and gradients only and need no autocast;
`plus` keeps what a 16-bit weight loses. float16 keeps the GradScaler, whose scale, search for
infinities and clipping are part of the step; bfloat16 has float32's range and needs none.

Exit codes: 0; 1 where memory is lacking or stdout cannot be written; 2 for wrong options; 129, 130,
143 after SIGHUP, SIGINT, SIGTERM. Each but 0 comes with one line on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Iterator

import torch
from pretraining import console
from pretraining.arguments import Help, Parser, integer
from pretraining.errors import Stopped
from pretraining.interrupt import Interrupt
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


def batches(width: int, steps: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Seeded inputs, and a smooth function of them to learn."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(64, width, generator=generator)
        yield x.to(device), x[:, :4].sum(1, keepdim=True).sin().to(device)


def train(recipe: str, steps: int = 200, width: int = 64, device: str = "cpu") -> Outcome:
    """Train one way; the loop is the same but for what the recipe needs.

    Raises:
        ValueError: for an unknown recipe, and where `steps` or `width` is below 1.
    """
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}; known are {', '.join(RECIPES)}")
    for name, value in (("steps", steps), ("width", width)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
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


def usable_device(text: str) -> str:
    """Return the name of a device that is here; an argument's type."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    here = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        here += [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
    named = device is not None and device.index is not None
    wanted = None if device is None else str(device) if named else device.type
    if wanted not in here and wanted not in {name.split(":")[0] for name in here}:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device here; {', '.join(here)} are")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Train each way, print a table, and return the exit code."""
    parser = Parser(
        prog="amp.py", allow_abbrev=False, formatter_class=Help,
        description="torch's mixed-precision recipe, and the same training in pure float16 and "
        "pure bfloat16, side by side.",
    )  # fmt: skip
    parser.add_argument("--only", choices=RECIPES, metavar="NAME", help="one of the recipes")
    parser.add_argument(
        "--steps", type=integer(1, 10**6), default=200, metavar="N", help="updates of each recipe"
    )
    parser.add_argument(
        "--width", type=integer(1, 8192), default=64, metavar="N", help="size of the two layers"
    )
    parser.add_argument(
        "--device", type=usable_device, metavar="NAME", help="where to train",
        default="cuda" if torch.cuda.is_available() else "cpu",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    code, message = 1, ""
    try:
        with Interrupt():
            _table((given.only,) if given.only else RECIPES, given)
        code = 0
    except (Stopped, KeyboardInterrupt) as stop:
        number = signal.Signals(stop.number if isinstance(stop, Stopped) else signal.SIGINT)
        code, message = 128 + number, f"interrupted by {number.name}"
    except (MemoryError, RuntimeError) as error:
        lacking = console.lacks_memory(error)
        if lacking is None:
            raise
        message = f"error: {lacking}"
    unread = console.lost()
    if not code and unread is not None:
        code, message = 1, f"error: cannot write to stdout: {unread}"
    if code:
        console.tell(f"amp.py: {message}")
    return code


def _table(recipes: tuple[str, ...], given: argparse.Namespace) -> None:
    header = f"{'recipe':8}{'first loss':>12}{'last losses':>13}{'skipped':>9}{'bytes/param':>13}"
    console.say(header)
    for recipe in recipes:
        out = train(recipe, given.steps, given.width, given.device)
        last = out.losses[-max(1, given.steps // 10) :]
        console.say(
            f"{recipe:8}{out.losses[0]:12.4f}{sum(last) / len(last):13.4f}{out.skipped:9}"
            f"{out.bytes_per_parameter:13.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
