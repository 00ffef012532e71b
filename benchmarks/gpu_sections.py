"""Run one section of a GPU day: a line of JSON for each row, as soon as it is known.

python benchmarks/gpu_sections.py steps --small
"""

# The paths of the checkout come first.
# ruff: noqa: E402

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import gpu_cases
import gpu_compile
import gpu_tests
import torch
from gpu_measure import FULL, SMALL, Row

import mcf
import mcf.report


def bits() -> Iterator[Row]:
    """Compare the results of every executor with the recorded ones."""
    for work, executor, found, same in mcf.report.bits():
        wrong = found if found.startswith("error") else "OTHER BITS"
        yield Row(f"{work}, {executor}", "bits", "as recorded" if same else wrong)


def tests(small: bool, slow: bool, folder: Path) -> Iterator[Row]:
    """Run the GPU tests; in small, a few tests of Triton's interpreter."""
    chosen = ["-k", "interpreted and two_sum", "tests/kernels/test_triton_gpu.py"]
    if not small:
        chosen = ["@tests/gpu.args", f"-m=gpu and {'' if slow else 'not '}slow and not nightly"]
    log = folder / ("pytest-slow.log" if slow else "pytest.log")
    for row in gpu_tests.running(chosen, log):
        yield Row(*row)


def rows(name: str, device: torch.device, given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a section."""
    size = SMALL if given.small else FULL
    if name == "compile":
        yield from gpu_compile.compiling(given.compile, device)
    elif name == "bits":
        yield from bits()
    elif name in ("tests", "slow tests"):
        yield from tests(given.small, name == "slow tests", given.folder)
    else:
        interpreted = device.type == "cpu" and importlib.util.find_spec("triton") is not None
        with mcf.executor("triton") if interpreted else contextlib.nullcontext():
            yield from gpu_cases.run(name, device, size)


def main() -> None:
    """Run the section that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("section")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--compile", nargs="*", default=())
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for row in rows(given.section, device, given):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
