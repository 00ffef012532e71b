"""Pretrain a small GPT in pure bf16 under every precision strategy, and compare them.

    python examples/pretrain.py                          # six strategies, one seed, a few minutes
    python examples/pretrain.py --seeds 0 1 2 3 4        # a mean and a spread for each
    python examples/pretrain.py --data 'texts/**/*.txt'  # your own text
    python examples/pretrain.py --data train.bin --val-data val.bin --vocab-size 50304

The strategies are those of `mcf.optim.AdamW`; see `--help` for the options. Results go to
`runs/<name>`: metrics.jsonl (a line per step), summary.csv and summary.txt (the table), loss.png,
edq.png, and checkpoints/ with the trained weights. `--resume` goes on with an interrupted run.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretraining.errors import InputError
from pretraining.options import Options, flag, parse

if TYPE_CHECKING:
    import torch
    from pretraining.data import Corpus, Part


def main(argv: list[str] | None = None) -> int:
    """Run and return the exit code: 0, 2 after bad input, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    try:
        if _compare(options):
            return 0
    except KeyboardInterrupt:
        pass
    except InputError as error:
        print(f"pretrain.py: error: {error}", file=sys.stderr)
        return 2
    again = [word for word in argv if word not in ("--resume", "--overwrite")]
    command = shlex.join([_here(sys.executable), _here(__file__), *again, "--resume"])
    print(f"\nInterrupted. Go on from the last checkpoint with: {command}", file=sys.stderr)
    return 130


def _here(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _compare(options: Options) -> bool:
    """Train all, report all; False when interrupted."""
    # Data first: it needs no torch, so that a wrong file name is answered at once.
    from pretraining import data

    corpus = data.load(options)
    device = _prepare_torch(options)
    from pretraining import checkpoint, plots, report, train

    settings = _open_folder(options, corpus, device)
    print(
        f"data: {corpus.origin}: {_count(corpus.train)} to train on, {_count(corpus.val)} to "
        f"validate on\nrun: {len(options.strategies)} strategies x {len(options.seeds)} seed(s) x "
        f"{options.steps} steps on {device.type}, into {options.folder}"
    )
    jobs = [
        train.Job(strategy, seed, device, options.folder)
        for seed in options.seeds
        for strategy in options.strategies
    ]
    results: dict[tuple[str, int], dict[str, Any]] = {}
    offset = 0
    with train.Interrupt() as interrupt:
        for number, job in enumerate(jobs, 1):
            state = checkpoint.load(job.path, device)
            if state is None or state["result"] is None:
                # Their lines come later in the log and are cut off with it.
                for later in jobs[number:]:
                    later.path.unlink(missing_ok=True)
                label = f"[{number}/{len(jobs)}]"
                state = train.run(options, corpus, job, label, state, offset, interrupt)
            if state is None:
                return False
            results[job.strategy, job.seed] = state["result"]
            offset = state["metrics_offset"]

    if "costs" not in settings:
        settings["costs"] = _measure_costs(options, corpus, device)
        _write_settings(options, settings)
    metrics = list(checkpoint.read_metrics(options.folder / "metrics.jsonl"))
    table = report.rows(options, results, metrics, settings["costs"])
    text = report.to_text(table)
    checkpoint.write_atomically(options.folder / "summary.csv", report.to_csv(table))
    checkpoint.write_atomically(options.folder / "summary.txt", text)
    plots.loss(options.folder / "loss.png", metrics)
    plots.edq(options.folder / "edq.png", metrics)
    print(f"\n{text}\nwritten to {options.folder}: summary.csv, summary.txt, loss.png, edq.png")
    return True


def _measure_costs(
    options: Options, corpus: Corpus, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Peak memory and time of the optimizer's step for each strategy, measured after training."""
    from pretraining import measure, model, train

    peaks = {}
    for strategy in options.strategies:
        work = functools.partial(train.rehearse, options, corpus, strategy, device)
        # Thread pools and compiled kernels of the first call are not the strategy's memory; the
        # least of three leaves out most of what the process itself does meanwhile.
        work()
        found = [measure.peak_bytes(work, device) for _ in range(3)]
        peaks[strategy] = None if None in found else min(found)
    gpt = model.build(options, corpus.vocab_size, options.seeds[0], device)
    makers = {
        strategy: functools.partial(
            train.make_optimizer, strategy=strategy, options=options, track_metrics=False
        )
        for strategy in options.strategies
    }
    times = measure.step_nanoseconds(gpt, makers)
    return {
        strategy: {"peak_bytes": peaks[strategy], "step_ns_per_param": times[strategy]}
        for strategy in options.strategies
    }


def _count(part: Part) -> str:
    return f"{part.tokens:,} tokens in {len(part.files):,} file(s)"


def _prepare_torch(options: Options) -> torch.device:
    # cuBLAS reads this when it starts; without it, it is not deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch

        import mcf.optim  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error}; set the project up first: `make pretrain` does") from None
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise InputError("--device: cuda is not available here; cpu and auto are")
    return torch.device("cuda" if has_gpu and options.device != "cpu" else "cpu")


def _open_folder(options: Options, corpus: Corpus, device: torch.device) -> dict[str, Any]:
    """Make the run's folder, or check that what is there may be resumed; return its settings."""
    import torch

    path = options.folder / "run.json"
    settings: dict[str, Any] = {
        "options": {**options.fixed(), "device": device.type},
        "data": corpus.digest,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if path.exists() and options.existing == "refuse":
        raise InputError(
            f"--name: {options.folder} holds an earlier run; add --resume to go on with it, "
            "--overwrite to replace it, or choose another --name"
        )
    if path.exists() and options.existing == "resume":
        saved = _read_settings(path)
        _refuse_changes(saved, settings, options.folder)
        return saved
    # The new settings last: until then the folder does not look like a run of theirs.
    if options.folder.exists():
        for old in (path, *(options.folder / "checkpoints").glob("*.pt")):
            old.unlink(missing_ok=True)
    _write_settings(options, settings)
    return settings


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise InputError(f"--resume: {path} is not readable; use --overwrite") from None


def _write_settings(options: Options, settings: dict[str, Any]) -> None:
    from pretraining.checkpoint import write_atomically

    try:
        write_atomically(options.folder / "run.json", json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"--out: cannot write {options.folder}: {error.strerror}") from None


def _refuse_changes(saved: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    was, given = saved["options"], now["options"]
    changed = [key for key in given if given[key] != was.get(key)]
    if changed:
        differences = "; ".join(
            f"{flag(key)} is {given[key]} and was {was.get(key)}" for key in changed
        )
        raise InputError(
            f"--resume: {folder} was started with other options: {differences}; use those, "
            "--overwrite or another --name"
        )
    if now["data"] != saved["data"]:
        raise InputError(
            f"--resume: the data has changed since {folder} was started; use --overwrite or "
            "another --name"
        )
    for tool in ("python", "torch"):
        if now[tool] != saved[tool]:
            print(f"note: {tool} {saved[tool]} then, {now[tool]} now: the last bits may differ")


if __name__ == "__main__":
    sys.exit(main())
