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
    """What a figure depends on: machine, versions, commit, day."""
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
        "commit": _git("describe", "--always", "--dirty"),
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


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    body = [[str(row[c]) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[k]) for line in body)) for k, c in enumerate(columns)]
    lines = [list(columns), ["-" * w for w in widths], *body]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
