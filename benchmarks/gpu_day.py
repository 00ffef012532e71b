"""Everything that wants a GPU, in two commands of four and five minutes.

    python3 benchmarks/gpu_day.py --part 1 --out day.csv   # bits, steps, the GPU tests
    python3 benchmarks/gpu_day.py --part 2 --out day.csv   # training, arithmetic, other projects
    python3 benchmarks/gpu_day.py --small                  # the same in small, on any machine
    python3 benchmarks/gpu_page.py                         # docs/gpu.md from the results

It runs from a checkout or a copy of one, with the Python that is there: nothing is installed.
Wheels in .whl/ (`make gpu-wheels`) are unpacked into a temporary folder. Sections run one after
another, each in a process with a time limit of its own, which takes memory and faults with it. Each
row is appended to the file as it is measured; logs stand next to it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Isolated Python (-I, -P) leaves the folder of the program out.
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

# ruff: noqa: E402
import torch
from harness import append_csv, device_name, machine, merge_csv, table
from harness import environment as described
from tqdm import tqdm

PEERS = ("torch-optimi", "heavyball", "flashoptim", "torchao")
# Values and quantities of rows that tell a failure.
WRONG = ("OTHER BITS", "error", "exit status")


class Section(NamedTuple):
    """When a section runs, and the seconds that it may take; part 0 runs on request alone."""

    part: int
    seconds: float


# The kernels of a part are compiled first. Part 1 decides whether the numbers mean anything: what
# it finds broken can be mended before part 2.
SECTIONS = {
    "bits": Section(1, 30),
    "steps": Section(1, 60),
    "tests": Section(1, 115),
    "training": Section(2, 90),
    "many": Section(2, 20),
    "arithmetic": Section(2, 40),
    "functions": Section(2, 40),
    "products": Section(2, 25),
    "peers": Section(2, 50),
    "slow tests": Section(0, 280),
}
COMPILE = "compile"
COMPILE_SECONDS = 35.0


class Results:
    """The file of results, which holds every row as soon as it is known."""

    def __init__(self, path: Path, comments: Mapping[str, str]) -> None:
        """Write to a path, below comments about the machine and the run."""
        self._path = path
        self._comments = comments

    def begin(self, section: str) -> None:
        """Drop the rows of an earlier run of a section, and say that this one has not ended."""
        row = self._row(section, section, "ended", "cut off")
        merge_csv(self._path, [row], self._comments, ("section",))

    def add(self, section: str, case: str, quantity: str, value: float | str) -> dict[str, str]:
        """Append a row; readers take the last row of a case and quantity."""
        row = self._row(section, case, quantity, value)
        append_csv(self._path, row)
        return row

    @staticmethod
    def _row(section: str, case: str, quantity: str, value: float | str) -> dict[str, str]:
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        return {"section": section, "case": case, "quantity": quantity, "value": shown}


def in_process(
    name: str, command: list[str], seconds: float, log: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, str, float | str]]:
    """Run a section for at most so long; yield its rows as it prints them, and how it ended.

    Args:
        name: the section, which is the case of the last rows.
        command: prints a line of JSON for each row.
        seconds: the time that it may take.
        log: the file that its standard error is appended to.
        environment: its environment variables.
    """
    start = time.perf_counter()
    with log.open("a") as errors:
        begin = errors.tell()
        # The section's workers are in its process group and end with it.
        run = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(environment),
            start_new_session=True,
        )  # fmt: skip
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(run.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    assert run.stdout is not None
    with run:
        for line in run.stdout:
            # Another library may print, and the last line may be cut off.
            try:
                case, quantity, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            yield case, quantity, value
    timer.cancel()
    if run.returncode and not late.is_set():
        said = log.read_text(errors="replace")[begin:].strip().splitlines()
        yield name, "error", said[-1] if said else ""
    status = f"exit status {run.returncode}" if run.returncode else "complete"
    yield name, "ended", "time was up" if late.is_set() else status
    yield name, "seconds", time.perf_counter() - start


class Clocks:
    """Samples of clocks, power and temperature by nvidia-smi while a section runs."""

    QUERY = ("utilization.gpu", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    SHOWN = ("SM MHz", "memory MHz", "W", "degrees C")

    def __init__(self, seconds: float = 0.5) -> None:
        """Ask every so many seconds, where nvidia-smi is."""
        self._seconds = seconds
        self._lines: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        query = f"--query-gpu={','.join(self.QUERY)}"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
        while not self._stop.wait(self._seconds):
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=10)
            except (OSError, subprocess.TimeoutExpired):
                return
            self._lines += run.stdout.splitlines()

    def rows(self) -> Iterator[tuple[str, float]]:
        """Stop; yield the median and the largest value while the GPU was busy."""
        self._stop.set()
        self._thread.join()
        samples = list(busy_samples(self._lines))
        for k, name in enumerate(self.SHOWN):
            values = [sample[k] for sample in samples]
            if values:
                yield f"{name}, median", statistics.median(values)
                yield f"{name}, most", max(values)


def busy_samples(lines: list[str]) -> Iterator[list[float]]:
    """Yield the numbers after the utilization in lines of nvidia-smi, where that is not 0."""
    for line in lines:
        try:
            used, *values = (float(x) for x in line.split(","))
        except ValueError:
            continue
        if used > 0 and len(values) == len(Clocks.SHOWN):
            yield values


def install_peers(folder: Path) -> str:
    """Unpack the wheels of .whl/ into a folder; return what went wrong."""
    wheels = sorted(map(str, (ROOT / ".whl").glob("*.whl")))
    if not wheels:
        return "there is no .whl/"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q",
               "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target",
               str(folder), *wheels]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True)
    said = run.stderr.strip().splitlines()
    return (said[-1] if said else f"exit status {run.returncode}") if run.returncode else ""


def versions(packages: tuple[str, ...]) -> str:
    """Return the versions of those packages that are installed."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found) or "-"


def environment_of(peers: Path) -> dict[str, str]:
    """Return the environment of sections: the peers' folder, and one cache for all kernels."""
    paths = [str(peers), *filter(None, [os.environ.get("PYTHONPATH")])]
    cache = str(Path(tempfile.gettempdir()) / "mcf-gpu-day" / "triton")
    return {
        "TRITON_CACHE_DIR": cache,
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def day(
    sections: list[str], small: bool, path: Path, comments: Mapping[str, str], peers: Path
) -> bool:
    """Run sections after the compilation of their kernels; return whether anything failed."""
    results = Results(path, comments)
    environment = environment_of(peers)
    failed = False
    for section in [COMPILE, *sections]:
        compiling = section == COMPILE
        # Two commands that write one file compile for other sections each.
        name = f"compile for {sections[0]}" if compiling else section
        seconds = COMPILE_SECONDS if compiling else SECTIONS[section].seconds
        # A rehearsal waits for the compiler and the interpreter.
        seconds *= 20 if small else 1
        command = [sys.executable, str(HERE / "gpu_sections.py"), section, "--folder",
                   str(path.parent.resolve()), *(["--small"] if small else [])]  # fmt: skip
        command += ["--compile", *sections] if compiling else []
        results.begin(name)
        shown: dict[tuple[str, str], dict[str, str]] = {}
        clocks = Clocks() if torch.cuda.is_available() else None
        log = path.parent / "stderr.log"
        with tqdm(desc=name, file=sys.stderr, leave=False, unit="row", disable=None) as bar:
            for case, quantity, value in in_process(name, command, seconds, log, environment):
                shown[case, quantity] = results.add(name, case, quantity, value)
                bar.set_description(f"{name}: {case}")
                bar.update()
        for quantity, value in clocks.rows() if clocks else ():
            shown[name, quantity] = results.add(name, name, quantity, value)
        print(table(shown.values(), ["section", "case", "quantity", "value"]) + "\n", flush=True)
        failed |= any(
            r["value"].startswith(WRONG) or r["quantity"] in ("error",) for r in shown.values()
        )
        failed |= any(r["quantity"] == "failed" and r["value"] != "0" for r in shown.values())
    return failed


def main() -> int:
    """Parse the options, run the sections; return 1 where something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="little work, on a CPU too")
    parser.add_argument("--part", type=int, choices=(1, 2), help="sections of 4 or 5 minutes")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, help="these instead of a part")
    parser.add_argument(
        "--out",
        type=Path,
        help="the CSV; by default named after the GPU, or runs/gpu-day-small.csv",
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.small:
        parser.error("there is no GPU here; --small does the same work in small on a CPU")
    path = options.out or Path("runs/gpu-day-small.csv")
    if not (options.out or options.small):
        path = HERE / "results" / f"gpu-day-{machine(device)}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = (options.part,) if options.part else (1, 2)
    sections = options.sections or [n for n, s in SECTIONS.items() if s.part in parts]
    command = " ".join(["python3 benchmarks/gpu_day.py", *sys.argv[1:]])
    print(f"{device_name(device)}: {', '.join(sections)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        missing = install_peers(Path(folder))
        sys.path.append(folder)
        comments = {"command": command, **described(device), "numpy": versions(("numpy",))}
        comments["peers"] = missing or versions(PEERS)
        failed = day(sections, options.small, path, comments, Path(folder))
    print(f"saved {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
