"""Training of one model under one strategy with one seed."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from mcf.optim import AdamW
from pretraining import checkpoint, data, measure, model
from pretraining.errors import InputError
from pretraining.options import Options

_METRICS = ("edq", "update_norm", "edq_ratio", "lost_param", "lost_exp_avg_sq")


@dataclass(frozen=True)
class Job:
    """One training: what `run` needs to know besides the options and the data."""

    strategy: str
    seed: int
    device: torch.device
    folder: Path

    @property
    def path(self) -> Path:
        """Its checkpoint."""
        return self.folder / "checkpoints" / f"{self.strategy}-seed{self.seed}.pt"


class Interrupt:
    """Turns the first SIGINT or SIGTERM into a flag, so that training stops between two steps.

    The second one acts as it always does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, self._before[number])


def learning_rate(step: int, options: Options) -> float:
    """Rate of update `step` = 1, 2, ...: linear to `lr`, then a half cosine to `lr` / 10."""
    if step <= options.warmup:
        return options.lr * step / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (0.55 + 0.45 * math.cos(math.pi * done))


def make_optimizer(
    weights: Iterable[nn.Parameter], strategy: str, options: Options, *, track_metrics: bool
) -> Optimizer:
    """Return AdamW in `strategy`; matrices decay, the vectors of the norm layers do not."""
    weights = list(weights)
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    # These two keep float32 states: there is no 16-bit arithmetic to choose for them.
    in_float32 = strategy in ("fp32_states", "master")
    try:
        return AdamW(
            groups,
            lr=options.lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            precision=strategy,
            compute_dtype=torch.float32 if in_float32 else getattr(torch, options.compute_dtype),
            track_metrics=track_metrics,
        )
    except ValueError as error:
        raise InputError(f"{strategy}: {error}") from None


@torch.no_grad()
def evaluate(gpt: model.GPT, windows: Tensor, batch_size: int) -> float:
    """Return the mean loss over windows [N, T + 1], with the visible bf16 weights."""
    total = sum(float(model.loss(gpt, w)) * len(w) for w in windows.split(batch_size))
    return total / len(windows)


def rehearse(options: Options, corpus: data.Corpus, strategy: str, device: torch.device) -> None:
    """Take two steps as `run` does, on a model that is thrown away."""
    seed = options.seeds[0]
    gpt = model.build(options, corpus.vocab_size, seed, device)
    optimizer = make_optimizer(gpt.parameters(), strategy, options, track_metrics=True)
    for step in (1, 2):
        optimizer.zero_grad()
        model.loss(gpt, _batch(options, corpus, seed, step, device)).backward()
        optimizer.step()


def _batch(
    options: Options, corpus: data.Corpus, seed: int, step: int, device: torch.device
) -> Tensor:
    windows = data.batch(
        corpus.train, seed=seed, step=step, size=options.batch_size, length=options.context + 1
    )
    return torch.from_numpy(windows).to(device)


def _held_out(options: Options, corpus: data.Corpus, device: torch.device) -> Tensor:
    windows = data.evenly_spaced(corpus.val, count=options.eval_windows, length=options.context + 1)
    return torch.from_numpy(windows).to(device)


def run(
    options: Options,
    corpus: data.Corpus,
    job: Job,
    label: str,
    state: dict[str, Any] | None,
    offset: int,
    interrupt: Interrupt,
) -> dict[str, Any] | None:
    """Train and return the finished state.

    Args:
        options: the checked options.
        corpus: the data.
        job: which training this is.
        label: shown before the progress bar.
        state: an unfinished checkpoint to go on from, or None.
        offset: length of `metrics.jsonl` before this training's first line; a checkpoint knows
            better.
        interrupt: asks to stop.

    Returns:
        The content of the last checkpoint: "result" (see below), "model", "step" and
        "metrics_offset"; None when interrupted, after writing a checkpoint to go on from.
    """
    gpt = model.build(options, corpus.vocab_size, job.seed, job.device)
    optimizer = make_optimizer(gpt.parameters(), job.strategy, options, track_metrics=True)
    torch.manual_seed(job.seed)
    done, seconds = 0, 0.0
    if state is not None:
        gpt.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"].cpu())
        done, seconds, offset = state["step"], state["seconds"], state["metrics_offset"]
        del state
    held_out = _held_out(options, corpus, job.device)

    bar = tqdm(
        total=options.steps,
        initial=done,
        desc=f"{label} {job.strategy}, seed {job.seed}",
        unit="step",
        # A log file gets a line now and then, a terminal a moving bar.
        mininterval=0.1 if sys.stderr.isatty() else 15,
        dynamic_ncols=True,
    )
    start, before = time.perf_counter(), seconds
    with bar, checkpoint.MetricsLog(job.folder / "metrics.jsonl", offset) as log:
        for step in range(done + 1, options.steps + 1):
            windows = _batch(options, corpus, job.seed, step, job.device)
            rate = learning_rate(step, options)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            train_loss = model.loss(gpt, windows)
            train_loss.backward()
            nn.utils.clip_grad_norm_(gpt.parameters(), options.clip)
            optimizer.step()

            last = step == options.steps
            row = {"strategy": job.strategy, "seed": job.seed, "step": step}
            row |= {"train_loss": train_loss.item(), "lr": rate}
            validated = last or step % options.eval_every == 0
            if validated:
                row["val_loss"] = evaluate(gpt, held_out, options.batch_size)
            if validated or step % options.log_every == 0:
                metrics = optimizer.metrics()
                log.write(row | {key: metrics[key] for key in _METRICS})
            bar.set_postfix_str(f"loss {row['train_loss']:.3f}", refresh=False)
            bar.update()
            seconds = before + time.perf_counter() - start
            saved = {"step": step, "seconds": seconds, "model": gpt.state_dict()}
            if last:
                result = {
                    "parameters": sum(w.numel() for w in gpt.parameters()),
                    "stored_bytes": measure.stored_bytes(optimizer),
                    "val_loss": row["val_loss"],
                    "seconds": seconds,
                }
                saved |= {"result": result, "metrics_offset": log.flush()}
                checkpoint.save(job.path, saved)
                return saved
            if interrupt.asked or step % options.checkpoint_every == 0:
                saved |= {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
                # The log is flushed first: a checkpoint never promises lines that are not there.
                saved |= {"result": None, "metrics_offset": log.flush()}
                checkpoint.save(job.path, saved)
                if interrupt.asked:
                    return None
    raise AssertionError("the last step returns")
