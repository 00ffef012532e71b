"""Pretrain a small GPT in pure bf16 under every precision strategy, and compare them.

    python examples/pretrain.py                          # six strategies, one seed, a few minutes
    python examples/pretrain.py --seeds 0 1 2 3 4        # a mean and a spread for each
    python examples/pretrain.py --data 'texts/**/*.txt'  # your own text
    python examples/pretrain.py --data train.bin --val-data val.bin --vocab-size 50304
    python examples/pretrain.py --dry-run --model llama-7b --devices 64
    torchrun --standalone --nproc-per-node 2 examples/pretrain.py --parallel fsdp --model llama-1m

The strategies are those of `mcf.optim.AdamW`; see `--help` for the options. Results go to
`runs/<name>`: metrics.jsonl (a line per step), summary.csv and summary.txt (the table), loss.png,
edq.png, and checkpoints/ with the trained weights. `--resume` goes on with an interrupted run.
`pretraining/__init__.py` describes the folder.

Exit codes: 0; 1 where files or the machine do not let a run go on (a full disk, another process in
its folder, damaged checkpoints); 2 for wrong options or data; 129, 130, 143 after SIGHUP, SIGINT,
SIGTERM. Each but 0 comes with one line on stderr.
"""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from pretraining import console
from pretraining.errors import InputError, RunError, Stopped
from pretraining.interrupt import Interrupt
from pretraining.options import Options, parse

if TYPE_CHECKING:
    import torch
    from pretraining.checkpoint import Training
    from pretraining.data import Corpus, Part
    from pretraining.folder import RunFolder
    from pretraining.world import World

Costs = dict[str, dict[str, Any]]


def main(argv: list[str] | None = None) -> int:
    """Run and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    # What has been opened; until then there is nothing to go on with.
    opened: list[Any] = []
    code, message = 1, ""
    # Of a run by several processes; the first one says what all found.
    worlds: list[World] = []
    failed: BaseException | None = None
    try:
        with Interrupt() as interrupt:
            if options.dry_run:
                _prepare_torch(options)
                from pretraining import dry_run

                dry_run.run(options)
            elif options.together:
                _together(options, interrupt, opened, worlds)
            else:
                _compare(options, interrupt, opened)
        code = 0
    except (Stopped, KeyboardInterrupt) as stop:
        number = signal.Signals(stop.number if isinstance(stop, Stopped) else signal.SIGINT)
        code = 128 + number
        message, failed = f"interrupted by {number.name}", stop
    except InputError as error:
        code, message, failed = 2, f"error: {error}", error
    except (RunError, OSError) as error:
        message, failed = f"error: {error}", error
    except (MemoryError, RuntimeError) as error:
        lacking = console.lacks_memory(error) or console.lost_process(error)
        if lacking is None:
            raise
        message = f"error: {lacking}"
    unread = console.lost()
    several = bool(worlds) and worlds[0].size > 1
    if code and several and not worlds[0].first and getattr(failed, "everywhere", False):
        return code
    if code:
        if several:
            message = f"process {worlds[0].rank}: {message}" if not worlds[0].first else message
        if opened:
            message += f"; go on from the last checkpoint with: {_again(argv, worlds)}"
        console.tell(f"pretrain.py: {message}")
    elif unread is not None:
        console.tell(
            f"pretrain.py: error: cannot write to stdout: {unread}; the results are complete in "
            f"{options.folder}"
        )
        code = 1
    return code


def _again(argv: list[str], worlds: list[World]) -> str:
    """The command that goes on with this run."""
    words = [word for word in argv if word not in ("--resume", "--overwrite")]
    python = [_here(sys.executable)]
    if "LOCAL_WORLD_SIZE" in os.environ and worlds:
        each = os.environ["LOCAL_WORLD_SIZE"]
        python = ["torchrun", "--standalone", "--nproc-per-node", each]
    return shlex.join([*python, _here(__file__), *words, "--resume"])


def _here(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _compare(options: Options, interrupt: Interrupt, opened: list[RunFolder]) -> None:
    """Train all, report all."""
    # Data first: it needs no torch, so that a wrong file name is answered at once.
    from pretraining import data

    corpus = data.load(options)
    device = _prepare_torch(options)
    from pretraining import checkpoint, files, identity, train
    from pretraining.folder import RunFolder

    _try_all(options, corpus, device)
    versions = identity.versions(device)
    with RunFolder(options, device.type, corpus.digest, versions) as folder:
        opened.append(folder)
        console.say(
            f"data: {corpus.origin}: {_count(corpus.train)} to train on, {_count(corpus.val)} to "
            f"validate on\nrun: {len(options.strategies)} strategies x {len(options.seeds)} seed(s)"
            f" x {options.steps} steps on {device.type}, into {options.folder}"
        )
        trainings = [
            checkpoint.Training(strategy, seed, folder.digest, folder.path)
            for seed in options.seeds
            for strategy in options.strategies
        ]
        results: dict[Training, dict[str, Any]] = {}
        lines: dict[Training, str] = {}
        for number, training in enumerate(trainings, 1):
            interrupt.check()
            state = checkpoint.restore(training, device)
            if state is None or state["result"] is None:
                label = f"[{number}/{len(trainings)}]"
                job = train.Job(training, device, versions, label)
                known = "".join(lines.values()) + (state["metrics"] if state else "")
                with files.Log(folder.path / "metrics.jsonl", known) as log:
                    state = train.run(options, corpus, job, state, log, interrupt)
            results[training], lines[training] = state["result"], state["metrics"]
        _report(options, corpus, device, folder, results, lines)


def _together(
    options: Options, interrupt: Interrupt, opened: list[Any], worlds: list[World]
) -> None:
    """Train one strategy by all processes that torchrun started."""
    device = _prepare_torch(options)
    import torch
    from pretraining import together
    from pretraining.world import World

    world = World()
    worlds.append(world)
    if device.type == "cuda":
        device = torch.device("cuda", world.local)
        torch.cuda.set_device(device)
    try:
        together.run(options, world, device, interrupt, opened)
    finally:
        world.stop()


def _try_all(options: Options, corpus: Corpus, device: torch.device) -> None:
    """Build what will be trained, so that what cannot be is refused before anything is changed."""
    from pretraining import measure, model, train

    # The least: parameters and states, logits and their gradient, validation windows.
    windows = min(options.eval_windows, corpus.val.windows(options.context + 1))
    need = 16 * model.parameters(options, corpus.vocab_size)
    need += 8 * options.batch_size * options.context * corpus.vocab_size
    need += 8 * windows * (options.context + 1)
    have = measure.machine_bytes(device)
    if have is not None and need > have:
        raise InputError(
            f"--layers {options.layers}, --width {options.width}, --context {options.context}, "
            f"--batch-size {options.batch_size}, --eval-windows {options.eval_windows}: a model "
            f"of {model.parameters(options, corpus.vocab_size):,} parameters needs {need >> 20:,} "
            f"MiB at least, and there are {have >> 20:,}"
        )
    gpt = model.build(options, corpus.vocab_size, options.seeds[0], device)
    for strategy in options.strategies:
        train.make_optimizer(gpt.parameters(), strategy, options, track_metrics=True)


def _report(
    options: Options,
    corpus: Corpus,
    device: torch.device,
    folder: RunFolder,
    results: dict[Training, dict[str, Any]],
    lines: dict[Training, str],
) -> None:
    """Write metrics, table and plots, and print the table."""
    from pretraining import files, plots, report

    text = "".join(lines.values())
    files.write_atomically(folder.path / "metrics.jsonl", text)
    costs = folder.read("costs.json")
    if costs is None:
        costs = _measure_costs(options, corpus, device)
        folder.write("costs.json", costs)
    metrics = report.read_lines(text)
    named = {(training.strategy, training.seed): found for training, found in results.items()}
    table = report.rows(options, named, metrics, costs)
    summary = report.to_text(table)
    files.write_atomically(folder.path / "summary.csv", report.to_csv(table))
    files.write_atomically(folder.path / "summary.txt", summary)
    plots.loss(folder.path / "loss.png", metrics)
    plots.edq(folder.path / "edq.png", metrics)
    console.say(
        f"\n{summary}\nwritten to {folder.path}: summary.csv, summary.txt, loss.png, edq.png"
    )


def _measure_costs(options: Options, corpus: Corpus, device: torch.device) -> Costs:
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
        import filelock  # noqa: F401
        import matplotlib  # noqa: F401
        import torch
        import tqdm  # noqa: F401

        import mcf.optim  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error}; set the project up first: `make pretrain` does") from None
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise InputError("--device: cuda is not available here; cpu and auto are")
    return torch.device("cuda" if has_gpu and options.device != "cpu" else "cpu")


if __name__ == "__main__":
    sys.exit(main())
