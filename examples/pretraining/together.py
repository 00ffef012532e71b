"""Training of one model by all processes of a run, or by one in the same way."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from mcf.optim import AdamW, NonFiniteGradientError
from pretraining import console, data, files, identity, report, scale_options
from pretraining.errors import InputError, RunError, Stopped
from pretraining.folder import RunFolder
from pretraining.interrupt import Interrupt
from pretraining.options import Options
from pretraining.parallel import Parallel
from pretraining.scaling import Mesh
from pretraining.shards import Shards
from pretraining.train import learning_rate
from pretraining.world import World, told


def run(
    options: Options, world: World, device: torch.device, interrupt: Interrupt, opened: list[Any]
) -> None:
    """Train, keeping checkpoints and metrics; the first process reports.

    Args:
        options: the checked options.
        world: the processes, not started.
        device: this process's.
        interrupt: asks to stop.
        opened: gets the folder, as soon as there is something to go on with.
    """
    machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    mesh = scale_options.mesh(options, world.size, machine)
    if isinstance(mesh, str):
        raise told(InputError(mesh))
    world.start(device)
    try:
        corpus = data.load(options)
    except InputError as error:
        raise told(error) from None
    versions = identity.versions(device)

    def open_folder() -> str:
        folder = RunFolder(options, device.type, corpus.digest, versions)
        opened.append(folder)
        return folder.digest

    try:
        digest = world.once(open_folder)
        if not opened:
            opened.append(options.folder)
        shards = Shards(world, options.folder, digest, versions)
        _Training(options, world, device, mesh, corpus).run(shards, interrupt)
    finally:
        if opened and isinstance(opened[0], RunFolder):
            opened[0].close()


class _Training:
    """One model, its optimizer, its data."""

    def __init__(
        self,
        options: Options,
        world: World,
        device: torch.device,
        mesh: Mesh,
        corpus: data.Corpus,
    ) -> None:
        self._options, self._world, self._device = options, world, device
        self._mesh, self._corpus = mesh, corpus
        self._size = options.micro_batch or options.batch_size // mesh.data
        self._micro = options.batch_size // (self._size * mesh.data)
        # Processes that share matrices have the same batches.
        self._index = world.rank // mesh.tensor
        seed = options.seeds[0]
        self._parallel = Parallel(
            scale_options.shape(options), corpus.vocab_size, seed, device, mesh,
            options.parallel, options.reduce, self._micro,
        )  # fmt: skip
        named = self._parallel.named_parameters()
        groups = [
            {"params": [x for x in named if x[1].dim() >= 2], "weight_decay": options.weight_decay},
            {"params": [x for x in named if x[1].dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = AdamW(
            groups,
            lr=options.lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            precision=scale_options.strategy(options),
            max_grad_norm=options.clip,
            nonfinite="raise",
        )

    def run(self, shards: Shards, interrupt: Interrupt) -> None:
        """All updates that are left."""
        options, world = self._options, self._world
        done, text = shards.restore(self._parallel.module, self._optimizer)
        lines = text.splitlines(keepends=True)
        log: list[files.Log] = []

        def begin() -> None:
            log.append(files.Log(options.folder / "metrics.jsonl", text))

        world.once(begin)
        held_out = self._held_out()
        bar = tqdm(
            total=options.steps, initial=done, desc=scale_options.strategy(options), unit="step",
            mininterval=0.1 if sys.stderr is not None and sys.stderr.isatty() else 15,
            dynamic_ncols=True,
            file=None if sys.stderr is None else console.Lenient(sys.stderr),
            disable=sys.stderr is None or not world.first,
        )  # fmt: skip
        start = time.perf_counter()
        with bar, interrupt.patience():
            for step in range(done + 1, options.steps + 1):
                last = step == options.steps
                loss, stop = self._update(step, interrupt)
                row = {"strategy": scale_options.strategy(options), "seed": options.seeds[0]}
                row |= {"step": step, "train_loss": loss, "lr": learning_rate(step, options)}
                validated = last or step % options.eval_every == 0
                if validated:
                    row["val_loss"] = self._evaluate(held_out)
                if validated or step % options.log_every == 0:
                    lines.append(report.to_line(row))
                    for file in log:
                        file.append(lines[-1])
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                bar.update()
                if last or stop or step % options.checkpoint_every == 0:
                    shards.save(step, self._parallel.module, self._optimizer, "".join(lines))
                if stop and not last:
                    break
            else:
                stop = None
        if stop:
            raise told(Stopped(stop))
        self._report(lines, time.perf_counter() - start, options.steps - done)

    def _update(self, step: int, interrupt: Interrupt) -> tuple[float, int]:
        """Take one update; return the mean loss, and the signal that any process was sent."""
        options = self._options
        windows = data.batch(
            self._corpus.train, seed=options.seeds[0], step=step,
            size=options.batch_size, length=options.context + 1,
        )  # fmt: skip
        batches = torch.from_numpy(windows).to(self._device).split(self._size)
        mine = batches[self._index * self._micro : (self._index + 1) * self._micro]
        rate = learning_rate(step, options)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        losses = [self._parallel.backward(batch, k) for k, batch in enumerate(mine)]
        rows = self._world.gather([float(interrupt.asked or 0), *losses], self._device)
        stop = int(max(row[0] for row in rows))
        for rank, row in enumerate(rows):
            if not all(map(math.isfinite, row[1:])):
                bad = next(x for x in row[1:] if not math.isfinite(x))
                raise told(RunError(f"update {step}: the loss is {bad} in process {rank}"))
        try:
            self._optimizer.step()
        except NonFiniteGradientError as error:
            raise told(RunError(f"update {step}: {str(error).splitlines()[0]}")) from None
        # Of processes with the same batches one counts; sums of any order are the same.
        counted = [x for row in rows[:: self._mesh.tensor] for x in row[1:]]
        return math.fsum(counted) / len(counted), stop

    def _held_out(self) -> list[Tensor]:
        options = self._options
        windows = data.evenly_spaced(
            self._corpus.val, count=options.eval_windows, length=options.context + 1
        )
        return list(torch.from_numpy(windows).to(self._device).split(self._size))

    def _evaluate(self, batches: list[Tensor]) -> float:
        """The mean loss over the windows that are held out, each computed by one process."""
        data_size = self._mesh.data
        mine = self._parallel.losses(batches, lambda k: k % data_size == self._index)
        flat = [math.nan] * len(batches)
        for k, value in mine.items():
            flat[k] = value
        rows = self._world.gather(flat, self._device)[:: self._mesh.tensor]
        found = [rows[k % data_size][k] * len(batch) for k, batch in enumerate(batches)]
        return math.fsum(found) / sum(len(batch) for batch in batches)

    def _report(self, lines: list[str], seconds: float, steps: int) -> None:
        if not self._world.first:
            return
        options = self._options
        last = report.read_lines(lines[-1])[0]
        text = (
            f"{scale_options.strategy(options)}, {options.parallel} on {self._world.size} "
            f"process(es), gradients reduced {options.reduce}: val loss {last['val_loss']:.4f} "
            f"after {options.steps} updates"
        )
        if steps:
            tokens = steps * options.batch_size * options.context
            text += f"; {tokens / seconds:,.0f} tokens a second"
        files.write_atomically(options.folder / "summary.txt", text + "\n")
        console.say(f"{text}\nwritten to {options.folder}: metrics.jsonl, summary.txt, checkpoints")
