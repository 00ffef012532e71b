"""The GPU tests of a GPU day: pytest with its whole log, and a row for each failure.

This file is also the plugin that pytest loads: it writes rows to a pipe as tests end, and the text
of each failure into the log as it happens, so that a run that is cut off keeps its failures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PIPE = "GPU_DAY_PIPE"
# Seconds between two rows of counts.
OFTEN = 5.0


def running(arguments: list[str], log: Path) -> Iterator[tuple[str, str, float | str]]:
    """Run pytest; yield (case, quantity, value) as tests end.

    Args:
        arguments: pytest's arguments.
        log: the file of the log; the JUnit report has the same name with .xml.
    """
    command = [
        sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider",
        "-p", "gpu_tests", f"--junitxml={log.with_suffix('.xml')}", *arguments,
    ]  # fmt: skip
    reading, writing = os.pipe()
    paths = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, PIPE: str(writing), "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with log.open("w") as file:
        run = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment,
            pass_fds=[writing],
        )  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as rows:
            for line in rows:
                case, quantity, value = json.loads(line)
                yield case, quantity, value
        yield "pytest", "exit status", run.wait()


def last_line(text: str) -> str:
    """Return the last line of a failure that says what was wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if re.match(r"E\s", line)]
    return (marked or lines or [""])[-1].removeprefix("E").strip()[:300]


class Reporter:
    """Reports each failure as it happens, and counts at intervals."""

    def __init__(self, config: Any) -> None:
        """Write to the pipe that the environment names, and to pytest's own log."""
        self._config = config
        self._pipe = os.fdopen(int(os.environ[PIPE]), "w")
        self._counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
        self._told = time.monotonic()

    def _tell(self, case: str, quantity: str, value: float | str) -> None:
        self._pipe.write(json.dumps([case, quantity, value]) + "\n")
        self._pipe.flush()

    def _failed(self, case: str, text: str) -> None:
        self._tell(case, "failed", last_line(text))
        writer = self._config.get_terminal_writer()
        writer.line(f"\n{case}\n{text}")
        writer.flush()

    def _tell_counts(self) -> None:
        self._told = time.monotonic()
        for outcome, count in self._counts.items():
            self._tell("pytest", outcome, count)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test that ended; a fixture's failure counts as the test's."""
        if report.when == "call" or report.outcome != "passed":
            self._counts[report.outcome] += 1
        if report.failed:
            self._failed(report.nodeid, report.longreprtext)
        if time.monotonic() - self._told > OFTEN:
            self._tell_counts()

    def pytest_collectreport(self, report: Any) -> None:
        """Tell a file that could not be collected."""
        if report.failed:
            self._counts["failed"] += 1
            self._failed(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        """Tell the last counts."""
        self._tell_counts()


def pytest_configure(config: Any) -> None:
    """Report from the process that collects the results, not from its workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(config))
