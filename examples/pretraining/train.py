"""Training of one model under one strategy with one seed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from mcf.optim import AdamW
from pretraining import checkpoint, console, data, files, measure, model, report
from pretraining.errors import InputError, RunError
from pretraining.interrupt import Interrupt
from pretraining.options import Options

# The others store what only float32 registers can compute.
_WITH_BF16_ARITHMETIC = ("plain", "kahan", "light", "plus")
_METRICS = ("edq", "update_norm", "edq_ratio", "lost_param", "lost_exp_avg_sq")


@dataclass(frozen=True)
class Job:
    """One training: what `run` needs to know besides the options and the data.

    Attributes:
        training: which one, and where its checkpoints are.
        device: where it runs.
        versions: of what computes, for its checkpoints.
        label: shown before the progress bar.
    """

    training: checkpoint.Training
    device: torch.device
    versions: Mapping[str, str]
    label: str


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
    chooses = strategy in _WITH_BF16_ARITHMETIC
    try:
        return AdamW(
            groups,
            lr=options.lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            precision=strategy,
            compute_dtype=getattr(torch, options.compute_dtype if chooses else "float32"),
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
    state: dict[str, Any] | None,
    log: files.Log,
    interrupt: Interrupt,
) -> dict[str, Any]:
    """Train and return the finished state.

    Args:
        options: the checked options.
        corpus: the data.
        job: which training this is.
        state: an unfinished checkpoint to go on from, or None.
        log: gets a line per logged step, after those that `state` holds.
        interrupt: asks to stop.

    Returns:
        The content of the last checkpoint: "step", "seconds", "model", "metrics" (this training's
        lines of metrics.jsonl) and "result".

    Raises:
        Stopped: when asked to, after writing a checkpoint to go on from.
    """
    gpt = model.build(options, corpus.vocab_size, job.training.seed, job.device)
    optimizer = make_optimizer(gpt.parameters(), job.training.strategy, options, track_metrics=True)
    torch.manual_seed(job.training.seed)
    done, before, lines = 0, 0.0, []
    if state is not None:
        done, before, lines = _take(state, gpt, optimizer, job)
        del state
    held_out = _held_out(options, corpus, job.device)

    bar = tqdm(
        total=options.steps,
        initial=done,
        desc=f"{job.label} {job.training.name}",
        unit="step",
        # A log file gets a line now and then, a terminal a moving bar.
        mininterval=0.1 if sys.stderr is not None and sys.stderr.isatty() else 15,
        dynamic_ncols=True,
        file=None if sys.stderr is None else console.Lenient(sys.stderr),
        disable=sys.stderr is None,
    )
    start = time.perf_counter()
    with bar, interrupt.patience():
        for step in range(done + 1, options.steps + 1):
            last = step == options.steps
            row = _step(options, corpus, job, gpt, optimizer, step)
            validated = last or step % options.eval_every == 0
            if validated:
                row["val_loss"] = evaluate(gpt, held_out, options.batch_size)
            if validated or step % options.log_every == 0:
                metrics = optimizer.metrics()
                lines.append(report.to_line(row | {key: metrics[key] for key in _METRICS}))
                log.append(lines[-1])
            bar.set_postfix_str(f"loss {row['train_loss']:.3f}", refresh=False)
            bar.update()
            stop = interrupt.asked is not None
            if not (last or stop or step % options.checkpoint_every == 0):
                continue
            saved = {"step": step, "seconds": before + time.perf_counter() - start}
            saved |= {"model": gpt.state_dict(), "metrics": "".join(lines), "result": None}
            if last:
                saved["result"] = {
                    "parameters": sum(w.numel() for w in gpt.parameters()),
                    "stored_bytes": measure.stored_bytes(optimizer),
                    "val_loss": row["val_loss"],
                    "seconds": saved["seconds"],
                }
            else:
                saved |= {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            checkpoint.save(job.training, saved, job.versions)
            if stop and not last:
                break
    interrupt.check()
    return saved


def _step(
    options: Options,
    corpus: data.Corpus,
    job: Job,
    gpt: model.GPT,
    optimizer: Optimizer,
    step: int,
) -> dict[str, Any]:
    """Take one step and return the beginning of its line."""
    windows = _batch(options, corpus, job.training.seed, step, job.device)
    rate = learning_rate(step, options)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    train_loss = model.loss(gpt, windows)
    train_loss.backward()
    nn.utils.clip_grad_norm_(gpt.parameters(), options.clip)
    optimizer.step()
    row = {"strategy": job.training.strategy, "seed": job.training.seed, "step": step}
    return row | {"train_loss": train_loss.item(), "lr": rate}


def _take(
    state: dict[str, Any], gpt: model.GPT, optimizer: Optimizer, job: Job
) -> tuple[int, float, list[str]]:
    """Restore everything from a checkpoint; return its step, seconds and lines."""
    try:
        gpt.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"].cpu())
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        # Its digest and its options fit: another version of the library wrote it.
        raise RunError(
            f"{job.training.path} does not fit this version of the library "
            f"({str(error).splitlines()[0]})"
        ) from None
    return state["step"], state["seconds"], state["metrics"].splitlines(keepends=True)
