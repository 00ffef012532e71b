"""The AMP tutorial's three networks under float32, autocast, pure bf16 and Collage; underflow.

    python examples/papers/amp_tutorial.py              # half a minute on one thread
    python examples/papers/amp_tutorial.py --steps 2000 --seeds 8

A feed-forward network, a small U-Net and a small transformer learn made data under
- "fp32": float32 all through;
- "amp": float32 weights, `torch.autocast` in bf16, which needs no scaler;
- "bf16": bf16 weights, gradients and states, rounded to nearest (`plain`);
- "Collage": bf16 with weights and second moments as pairs (`plus`).
Bytes are counted: weights, gradients and states per parameter, and what the graph keeps for the
backward pass. Of the float32 gradients, the share that float16 would round to 0 is told for some
scales of the loss. Last, a float16 training goes on from a checkpoint, with its scaler's state and
without.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# It finds the other examples.
import parts  # noqa: F401
import torch
from amp import network, storage
from parts import paper
from parts.paper import Row
from pretraining.model import GPT
from torch import Tensor, nn
from torch.nn import functional as F

import mcf.optim

RECIPES = ("fp32", "amp", "bf16", "Collage")
SCALES = (-16, -8, 0, 8)
Batch = tuple[Tensor, Tensor]


class UNet(nn.Module):
    """Two sizes of images with a bridge between them; [B, 1, H, W] -> [B, 1, H, W]."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.inner = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.last = nn.Conv2d(2 * channels, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of each pixel."""
        wide = F.relu(self.first(x))
        deep = F.relu(self.inner(F.relu(self.down(wide))))
        return self.last(torch.cat([wide, F.relu(self.up(deep))], 1))


def rows_of_integers(draw: torch.Generator) -> Batch:
    """Inputs and a smooth function of four of them."""
    x = torch.randint(-8, 9, (64, 64), generator=draw).float() / 4
    return x, x[:, :4].sum(1, keepdim=True).sin()


def squares(draw: torch.Generator) -> Batch:
    """Noisy images with a bright square, and which pixels are in it."""
    corner = torch.randint(0, 10, (2, 8, 1), generator=draw)
    near = [(torch.arange(16) >= c) & (torch.arange(16) < c + 6) for c in corner]
    inside = (near[0][:, :, None] & near[1][:, None, :]).float()[:, None]
    return inside + torch.randint(-16, 17, (8, 1, 16, 16), generator=draw) / 8, inside


def counting(draw: torch.Generator) -> Batch:
    """Sequences that go on by their own step, with a tenth of the tokens at random."""
    begin, step = torch.randint(0, 32, (2, 16, 1), generator=draw)
    tokens = (begin + step * torch.arange(17)) % 32
    noise = torch.randint(0, 32, tokens.shape, generator=draw)
    tokens = torch.where(torch.randint(0, 10, tokens.shape, generator=draw) == 0, noise, tokens)
    return tokens[:, :-1], tokens[:, 1:]


def class_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross entropy over all places."""
    return F.cross_entropy(logits.flatten(0, 1), classes.flatten())


# Each: the network, its data, its loss, its rate.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Batch], Any, float]] = {
    "feed-forward": (lambda: network(64, torch.float32, "cpu"), rows_of_integers, F.mse_loss, 2e-3),
    "U-Net": (UNet, squares, F.binary_cross_entropy_with_logits, 3e-3),
    "transformer": (
        lambda: GPT(32, layers=1, width=32, heads=2, context=16), counting, class_loss, 3e-3
    ),
}  # fmt: skip


def build(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    """A network whose first weights bf16 holds; vectors stay, matrices follow their inputs."""
    made = NETWORKS[name][0]()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for w in made.parameters():
            if w.dim() > 1:
                w.normal_(0, w[0].numel() ** -0.5, generator=draw)
    return made.bfloat16().to(dtype)


def underflow(gradients: list[Tensor], scale: float, dtype: torch.dtype = torch.float16) -> float:
    """The share of gradients, of those that are not 0, that become 0 in `dtype` after scaling."""
    flat = torch.cat([g.flatten() for g in gradients])
    lost = ((flat * scale).to(dtype) == 0) & (flat != 0)
    return float(lost.sum() / (flat != 0).sum())


def loss_of(name: str, made: nn.Module, batch: Batch, dtype: torch.dtype, cast: bool) -> Tensor:
    """The loss in float32."""
    x = batch[0].to(dtype) if batch[0].is_floating_point() else batch[0]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
        out = made(x)
    loss: Tensor = NETWORKS[name][2](out.float(), batch[1])
    return loss


def train(name: str, recipe: str, seed: int, steps: int) -> Row:
    """One training; a row of the results."""
    dtype = torch.float32 if recipe in ("fp32", "amp") else torch.bfloat16
    made, rate = build(name, seed, dtype), NETWORKS[name][3]
    optimizer: torch.optim.Optimizer
    if dtype == torch.float32:
        optimizer = torch.optim.AdamW(made.parameters(), lr=rate)
    else:
        precision = "plus" if recipe == "Collage" else "plain"
        optimizer = mcf.optim.AdamW(made.parameters(), lr=rate, precision=precision)
    draw = torch.Generator().manual_seed(seed)
    kept: dict[int, int] = {}
    losses, seconds, small = [], [], []
    for step in range(steps):
        batch = NETWORKS[name][1](draw)
        done = (step + 1) / steps
        optimizer.param_groups[0]["lr"] = rate * min(1, 10 * done, 2.1 - 2 * done)
        start = time.process_time()
        if step == 0:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: keep(t, kept), lambda t: t):
                loss = loss_of(name, made, batch, dtype, recipe == "amp")
        else:
            loss = loss_of(name, made, batch, dtype, recipe == "amp")
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
        if recipe == "fp32" and step % 10 == 0:
            found = [w.grad for w in made.parameters() if w.grad is not None]
            small.append([underflow(found, 2.0**k) for k in SCALES])
        held = storage(optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    shares = [f"{statistics.fmean(s):.5f}" for s in zip(*small, strict=True)] or [""] * len(SCALES)
    count = sum(w.numel() for w in made.parameters())
    weights = {w.untyped_storage().data_ptr() for w in made.parameters()}
    return {
        "network": name, "recipe": recipe, "seed": seed, "parameters": count,
        "loss": statistics.fmean(losses[-max(1, steps // 5) :]),
        "bytes_per_param": held / count,
        "kept_kib": sum(n for at, n in kept.items() if at not in weights) / 1024,
        "cpu_ms": f"{1e3 * statistics.median(seconds):.3f}",
        **{f"underflow_{k}": share for k, share in zip(SCALES, shares, strict=True)},
    }  # fmt: skip


def keep(t: Tensor, kept: dict[int, int]) -> Tensor:
    """Note the memory of a tensor that the graph keeps, once for each piece of memory."""
    kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return t


def resumed(steps: int, with_scaler: bool | None) -> tuple[list[float], int]:
    """Losses of a float16 training and how many steps were skipped.

    Args:
        steps: of the whole.
        with_scaler: whether the second half, which begins from a checkpoint, takes the scaler's
            state from there; None for no checkpoint at all.
    """
    draw, losses, skipped = torch.Generator().manual_seed(0), [], 0
    made, optimizer, scaler = _half()
    for step in range(steps):
        if step == steps // 2 and with_scaler is not None:
            file = io.BytesIO()
            parts = {"model": made, "optimizer": optimizer, "scaler": scaler}
            torch.save({n: x.state_dict() for n, x in parts.items()}, file)
            file.seek(0)
            saved = torch.load(file)
            made, optimizer, scaler = _half()
            made.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            if with_scaler:
                scaler.load_state_dict(saved["scaler"])
        loss = loss_of("feed-forward", made, rows_of_integers(draw), torch.float16, False)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, skipped


def _half() -> tuple[nn.Module, Any, Any]:
    made = build("feed-forward", 0, torch.float16)
    optimizer = mcf.optim.AdamW(made.parameters(), lr=2e-3, precision="plus")
    return made, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=50)


def measure(given: argparse.Namespace) -> list[Row]:
    """All trainings; recipes in turn for each network and seed."""
    rows = [
        train(name, recipe, seed, given.steps)
        for name in NETWORKS for seed in range(given.seeds) for recipe in RECIPES
    ]  # fmt: skip
    whole = resumed(given.steps // 2, None)
    for kept, label in ((True, "fp16, resumed with scaler"), (False, "fp16, resumed without")):
        losses, skipped = resumed(given.steps // 2, kept)
        same = sum(a == b for a, b in zip(losses, whole[0], strict=True))
        rows.append(
            {**dict.fromkeys(rows[0], ""), "network": "feed-forward", "recipe": label,
             "loss": f"{same} of {len(losses)} losses have the same bits, {skipped} steps skipped "
                     f"({whole[1]} without a break)"}
        )  # fmt: skip
    return rows


def report(rows: list[Row], image: Path) -> None:
    """Tables and figure."""
    told = [r for r in rows if r["recipe"] not in RECIPES]
    rows = [r for r in rows if r["recipe"] in RECIPES]
    lines = []
    for name in NETWORKS:
        truth = paper.values(rows, "loss", network=name, recipe="fp32")
        for recipe in RECIPES:
            mine = paper.values(rows, "loss", network=name, recipe=recipe)
            of = [r for r in rows if (r["network"], r["recipe"]) == (name, recipe)]
            gap = [a - b for a, b in zip(mine, truth, strict=True)]
            lines.append({
                "network": f"{name} ({int(of[0]['parameters']):,})", "recipe": recipe,
                "loss": paper.spread(mine),
                "- fp32": "" if recipe == "fp32" else paper.spread(gap, "+.4f"),
                "bytes/param": f"{float(of[0]['bytes_per_param']):.1f}",
                "graph keeps, KiB": f"{float(of[0]['kept_kib']):.0f}",
                "CPU ms/step": f"{min(float(r['cpu_ms']) for r in of):.2f}",
            })  # fmt: skip
    print(paper.table(lines, list(lines[0])))
    shares = {}
    for name in NETWORKS:
        of = [paper.values(rows, f"underflow_{k}", network=name, recipe="fp32") for k in SCALES]
        shares[name] = [statistics.fmean(x) for x in of]
    print("\n" + paper.table(
        [{"gradients that float16 makes 0, scale": name,
          **{f"2^{k}": f"{share:.2%}" for k, share in zip(SCALES, found, strict=True)}}
         for name, found in shares.items()],
        ["gradients that float16 makes 0, scale", *(f"2^{k}" for k in SCALES)],
    ))  # fmt: skip
    for line in told:
        print(f"\n{line['recipe']}: {line['loss']}")
    made, axes = paper.figure(4)
    colours = (paper.BLACK, paper.COLOURS[2], paper.COLOURS[0], paper.COLOURS[1])
    for place, name in zip(axes[0], NETWORKS, strict=False):
        truth = paper.values(rows, "loss", network=name, recipe="fp32")
        for row, (recipe, colour) in enumerate(zip(RECIPES[1:], colours[1:], strict=True)):
            mine = paper.values(rows, "loss", network=name, recipe=recipe)
            mean, error = paper.mean_error(a - b for a, b in zip(mine, truth, strict=True))
            place.errorbar(mean, row, xerr=2 * error, fmt="o", color=colour, capsize=2)
        place.axvline(0, color=paper.GREY, lw=0.8)
        place.set_yticks(range(3), RECIPES[1:])
        place.set(title=name, xlabel="loss - fp32's", ylim=(2.5, -0.5))
        place.locator_params(axis="x", nbins=4)
    for k, (name, found) in enumerate(shares.items()):
        axes[0, 3].plot(SCALES, [100 * x for x in found], "o-", color=paper.COLOURS[k], label=name)
    axes[0, 3].set(title="gradients that float16 makes 0, %", xlabel="log2(scale of the loss)")
    axes[0, 3].legend(fontsize=10)
    paper.save(made, image)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run."""
    parser = paper.parser(__doc__)
    parser.add_argument("--steps", type=paper.whole(4), default=200)
    parser.add_argument("--seeds", type=paper.whole(1), default=3)
    given = parser.parse_args(arguments)
    if given.small:
        given.steps, given.seeds = 16, 1
    paper.main("amp_tutorial", given, measure, report)


if __name__ == "__main__":
    main()
