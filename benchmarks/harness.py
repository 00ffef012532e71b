"""Time variants in turn, so that noise of the machine meets all alike, and record the results."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call over the rounds of one run."""

    seconds: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """The value below which a share of the rounds lies, by the nearest rank."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def median(self) -> float:
        """The median round."""
        return statistics.median(self.seconds)


def in_turn(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    device: torch.device,
    steady: bool = False,
    on_call: Callable[[str], object] = lambda name: None,
) -> dict[str, Timing]:
    """Call every variant once a round, in the same order.

    Args:
        variants: what to time; each is called once before, to warm up.
        rounds: the largest number of rounds.
        seconds: a variant that has used this much time skips rounds, but makes at least three.
        device: waited for before and after each call.
        steady: time the second of two calls, after a sweep of the caches. What one variant leaves
            there to be written the next one would wait for.
        on_call: told of each call, for a progress bar.
    """
    for name, call in variants.items():
        on_call(name)
        call()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            if len(times[name]) >= 3 and sum(times[name]) > seconds:
                continue
            on_call(name)
            if steady:
                _sweep()
                call()
            _wait(device)
            start = time.perf_counter()
            call()
            _wait(device)
            times[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in times.items()}


def queued(
    call: Callable[[], object], device: torch.device, *, rounds: int, seconds: float
) -> tuple[Timing, Timing]:
    """Time up to 20 calls that are queued one after another; return device and host seconds a call.

    On a GPU events around the queue measure the device, so that its wait for the first launch is
    shared by all calls. The host's time is that of queueing, which hides behind the device's where
    it is shorter. Two calls warm up: the second step of an optimizer is another path than the
    first.

    Args:
        call: the function to time.
        device: the device that it works on.
        rounds: the largest number of queues.
        seconds: the time that all queues may take, but for three rounds of one call, or for one
            round of a call that takes longer than that.
    """
    for _ in range(2):
        call()
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, min(20, int(seconds / 3 / once)))
    rounds = max(3 if once < seconds else 1, min(rounds, int(seconds / (calls * once))))
    busy, host = [], []
    for _ in range(rounds):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        host.append((time.perf_counter() - start) / calls)
        if device.type == "cuda":
            end.record()
            end.synchronize()
            busy.append(1e-3 * begin.elapsed_time(end) / calls)
    return Timing(tuple(busy or host)), Timing(tuple(host))


@functools.cache
def _large() -> torch.Tensor:
    return torch.zeros(1 << 24)


def _sweep() -> None:
    """Read what is larger than a core's share of the caches."""
    _large().sum()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def environment(device: torch.device) -> dict[str, str]:
    """Return what a figure depends on: machine, versions, commit, day."""
    versions = {}
    for package in ("torch", "triton", "numba", "torch-optimi", "torchao"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "-"
    return {
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        **versions,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def device_name(device: torch.device) -> str:
    """The model of the GPU or of the processor.

    Virtual machines may tell no more than the maker's name: then family and model stand behind it.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    about: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        about.setdefault(key.strip(), value.strip())
    name = about.get("model name") or platform.processor() or platform.machine()
    if not re.search(r"\d", name) and "cpu family" in about:
        name = f"{name} {about['cpu family']}.{about['model']}"
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def machine(device: torch.device) -> str:
    """The device's name as a part of the names of results' files."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def commit(root: Path = ROOT) -> str:
    """Return the commit of a checkout, or of a copy of one without git.

    The environment variable MCF_COMMIT comes first, then git, then the file .whl/commit, which
    `make gpu-wheels` writes for copies.
    """
    if commit := os.environ.get("MCF_COMMIT"):
        return commit
    # A copy inside another repository must not take that one's commit.
    if (root / ".git").exists():
        return _git("describe", "--always", "--dirty")
    return _read(str(root / ".whl" / "commit")).strip() or "-"


def _git(*arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "-"
    return result.stdout.strip()


def save_csv(path: Path, rows: Sequence[Mapping[str, Any]], comments: Mapping[str, str]) -> None:
    """Write rows below `# key: value` lines, under a temporary name that is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        for key, value in comments.items():
            file.write(f"# {key}: {value}\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


_OTHERS = "; other rows "


def merge_csv(
    path: Path, rows: Sequence[Mapping[str, Any]], comments: Mapping[str, str], key: Sequence[str]
) -> None:
    """Write rows, after those of an existing file that none of them replaces.

    Args:
        path: the file.
        rows: all with the same columns; the file's must be those too.
        comments: as in `save_csv`; where the file's differ, both are kept, each once.
        key: the columns that name a row.
    """
    if not path.exists():
        save_csv(path, rows, comments)
        return
    named = {tuple(str(row[k]) for k in key) for row in rows}
    lines = path.read_text().splitlines()
    old = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if old and list(old[0]) != list(rows[0]):
        raise ValueError(f"{path} has columns {list(old[0])}, these rows {list(rows[0])}")
    kept = [row for row in old if tuple(row[k] for k in key) not in named]
    before = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    if kept:
        told = {k: before.get(k, v) for k, v in comments.items()}
        comments = {
            k: told[k] if v in told[k].split(_OTHERS) else f"{v}{_OTHERS}{told[k]}"
            for k, v in comments.items()
        }
    save_csv(path, [*kept, *rows], comments)


def append_csv(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to an existing file."""
    with path.open("a", newline="") as file:
        csv.DictWriter(file, list(row)).writerow(row)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    body = [[str(row[c]) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[k]) for line in body)) for k, c in enumerate(columns)]
    lines = [list(columns), ["-" * w for w in widths], *body]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
