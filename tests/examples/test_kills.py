"""Kill the processes of one training at random moments, again and again, and compare its end.

    python -m tests.examples.test_kills --kills 50              # some minutes on two cores
    python -m tests.examples.test_kills --kills 4 --torchrun    # by torchrun --max-restarts

A run of two processes is killed by SIGKILL, one of them or both, while it starts, trains or writes
checkpoints, and gone on with by the same command with --resume, or by torchrun itself. Its metrics
and the tensors of its last checkpoint have to be those of a run that nobody killed.

Processes are forked from one that has imported all, unless torchrun starts them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.examples.tiny import EXAMPLES, write_texts
from tests.examples.together_cases import newest, tensors

TINY = [
    "--layers=1", "--width=16", "--heads=2", "--context=16", "--batch-size=4", "--micro-batch=1",
    "--eval-every=50", "--eval-windows=4", "--checkpoint-every=3", "--device=cpu",
    "--threads=1", "--reduce=exact", "--strategies=plus",
]  # fmt: skip
# The most seconds that a run may take on a busy machine.
PATIENCE = 300.0


class Run:
    """One training in a folder, started as often as it takes.

    Args:
        folder: has `texts`.
        name: of the run.
        steps: updates.
        torchrun: whether it starts the processes, with one restart.
    """

    def __init__(self, folder: Path, name: str, steps: int, torchrun: bool = False) -> None:
        self.path = folder / "runs" / name
        self._arguments = [
            *TINY, f"--steps={steps}", f"--data={folder}/texts/*.txt", f"--out={folder}/runs",
            f"--name={name}", "--parallel=fsdp", "--resume",
        ]  # fmt: skip
        self._torchrun = torchrun
        self._log = folder / f"{name}.log"

    def start(self) -> Life:
        """Begin or go on."""
        self._log.write_bytes(b"")
        return (
            Torchrun(self._arguments, self._log)
            if self._torchrun
            else Forked(self._arguments, self._log)
        )

    @property
    def said(self) -> str:
        """The output of the last life."""
        return self._log.read_text(errors="replace")

    @property
    def done(self) -> int:
        """The number of updates of which there is a line."""
        with contextlib.suppress(OSError):
            return (self.path / "metrics.jsonl").read_bytes().count(b"\n")
        return 0


class Forked:
    """A life of two forked processes."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        self._running = [
            _fork(arguments, log, {**where, "MASTER_PORT": str(port), "RANK": str(rank)})
            for rank in range(2)
        ]
        self._codes: list[int] = []

    def workers(self) -> list[int]:
        """The processes that run."""
        for pid in list(self._running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._running.remove(pid)
                self._codes.append(os.waitstatus_to_exitcode(status))
        return list(self._running)

    def code(self) -> int | None:
        """None while any runs, 0 if all ended well."""
        return None if self.workers() else max(map(abs, self._codes))

    def end(self) -> None:
        """End what is left."""
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        while self.workers():
            time.sleep(0.01)


def _fork(arguments: list[str], log: Path, where: dict[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(where, OMP_NUM_THREADS="1")
        from pretrain import main

        code = main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


class Torchrun:
    """A life of two processes of torchrun, which restarts them once."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, str(EXAMPLES / "pretrain.py"), *arguments],
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """torchrun's own."""
        return self._process.pid

    def workers(self) -> list[int]:
        """The processes that run."""
        with contextlib.suppress(OSError):
            here = Path(f"/proc/{self._process.pid}/task").glob("*/children")
            found = [int(x) for p in here for x in p.read_text().split()]
            return [pid for pid in found if _is_worker(pid)]
        return []

    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End what is left."""
        for pid in [*self.workers(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


Life = Forked | Torchrun


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"pretrain.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def wait_for(life: Life, ready: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Wait until something is so; whether it is before the life ends."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if ready():
            return True
        if life.code() is not None:
            return False
        time.sleep(0.005)
    return False


def kill(run: Run, draw: random.Random) -> str:
    """One life, killed once; what was killed and when."""
    before = run.done
    life = run.start()
    try:
        if draw.random() < 0.2:
            time.sleep(draw.uniform(0.0, 1.0))
            when = "at its start"
        else:
            wanted = before + draw.randint(1, 6)
            wait_for(life, lambda: run.done >= wanted)
            time.sleep(draw.uniform(0.0, 0.2))
            when = f"after {run.done} updates"
        found = life.workers()
        chosen = found if draw.random() < 0.5 else draw.sample(found, min(1, len(found)))
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if isinstance(life, Torchrun) and chosen:
            wanted = run.done + 4
            went_on = wait_for(life, lambda: run.done >= wanted)
            when += "; torchrun went on" if went_on else "; torchrun did not go on"
        elif len(chosen) < len(found):
            # The other one ends by itself, unless it waits for one that it has never met.
            ended = wait_for(life, lambda: not life.workers(), 10.0)
            when += f"; the other {'ended' if ended else 'waited, and was ended as by torchrun'}"
        return f"{len(chosen)} of {len(found)} processes {when}"
    finally:
        life.end()


def finish(run: Run) -> None:
    """Let a run come to its end."""
    life = run.start()
    try:
        if not wait_for(life, lambda: life.code() is not None) or life.code():
            raise SystemExit(f"{run.path.name} failed:\n{run.said[-3000:]}")
    finally:
        life.end()


def compare(one: Path, other: Path) -> list[str]:
    """Return the names of files and tensors that differ between two finished runs."""
    found = []
    if (one / "metrics.jsonl").read_bytes() != (other / "metrics.jsonl").read_bytes():
        found.append("metrics.jsonl")
    a, b = tensors(one), tensors(other)
    if a.keys() != b.keys():
        return [*found, "the names of tensors"]
    for name in a:
        x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a[name], b[name]))
        if not torch.equal(x, y):
            found.append(name)
    return found


def strange(text: str) -> list[str]:
    """Lines of a life that only a mistake would say: a worker's traceback, an unusable file."""
    wanted = r"\[rank\d\]:|^Traceback|unusable|damaged|lost __"
    return [x for x in text.splitlines() if re.search(wanted, x) and "torchrun" not in x]


def killed(folder: Path, kills: int, seed: int, steps: int, torchrun: bool, say: Any) -> list[str]:
    """Return what differs between a run that was killed so often and one that was not."""
    import pretrain  # noqa: F401
    from pretraining import together  # noqa: F401

    import mcf.optim  # noqa: F401

    torch.set_num_threads(1)
    draw = random.Random(seed)
    write_texts(folder / "texts")
    run = Run(folder, "killed", steps, torchrun)
    for number in range(1, kills + 1):
        say(f"{number}: {kill(run, draw)}")
        if not torchrun:
            for line in strange(run.said):
                say(f"   said: {line}")
    say(f"{run.done} of {steps} updates after {kills} kills")
    finish(Run(folder, "killed", steps))
    undisturbed = Run(folder, "undisturbed", steps)
    finish(undisturbed)
    assert newest(undisturbed.path)
    return compare(run.path, undisturbed.path)


def main() -> None:
    """Kill, go on, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of moments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="updates (default: %(default)s)")
    parser.add_argument("--torchrun", action="store_true", help="let torchrun restart")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        different = killed(
            Path(name), options.kills, options.seed, options.steps, options.torchrun,
            lambda text: print(text, flush=True),
        )  # fmt: skip
    end = f"other bits in {', '.join(different)}" if different else "an undisturbed run's bits"
    print(f"{options.kills} kills: {end}")
    sys.exit(bool(different))


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--kills=5", "--steps=60"], marks=pytest.mark.slow, id="5"),
        pytest.param(["--kills=50"], marks=pytest.mark.nightly, id="50"),
        pytest.param(
            ["--kills=4", "--steps=80", "--torchrun"], marks=pytest.mark.nightly, id="torchrun"
        ),
    ],
)
def test_kills(arguments: list[str]) -> None:
    # In a process of its own, which may fork.
    command = [sys.executable, "-m", "tests.examples.test_kills", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("kills: an undisturbed run's bits\n")
    assert "said:" not in done.stdout
    assert "did not go on" not in done.stdout


@pytest.mark.nightly
def test_torchrun_is_asked_to_stop(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    run = Run(tmp_path, "stopped", 60, torchrun=True)
    life = run.start()
    assert isinstance(life, Torchrun)
    try:
        assert wait_for(life, lambda: run.done >= 5)
        os.kill(life.pid, signal.SIGTERM)
        assert not wait_for(life, lambda: False)
        assert life.code() != 0
    finally:
        life.end()
    lines = [x for x in run.said.splitlines() if "pretrain.py: " in x]
    assert len(lines) == 1
    assert "interrupted by SIGTERM; go on from the last checkpoint with: torchrun" in lines[0]
    finish(run)
    other = Run(tmp_path, "undisturbed", 60, torchrun=True)
    finish(other)
    assert compare(run.path, other.path) == []


if __name__ == "__main__":
    main()
