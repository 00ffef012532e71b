"""Fixtures that run `examples/pretrain.py` in its smallest form."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.examples.tiny import TINY, torch_restored, write_texts

if TYPE_CHECKING:
    from pretraining.options import Options


@pytest.fixture(autouse=True)
def _restore_torch() -> Iterator[None]:
    with torch_restored():
        yield


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Signals arrive: a shell starts what runs in its background with SIGINT ignored.

    `nohup` starts what it runs with SIGHUP ignored.
    """
    heard = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if hasattr(signal, "SIGHUP"):
        heard[signal.SIGHUP] = signal.SIG_DFL
    handlers = {number: signal.getsignal(number) for number in heard}
    for number, handler in heard.items():
        signal.signal(number, handler)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of twelve small, different text files."""
    return write_texts(tmp_path / "texts")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without plots and timings, which take longer than all else and have their own tests."""
    import pretrain
    from pretraining import plots

    for name in ("loss", "edq"):
        monkeypatch.setattr(plots, name, lambda path, metrics: None)

    def costs(options: Options, *_: object) -> dict[str, dict[str, float | None]]:
        return {s: {"peak_bytes": None, "step_ns_per_param": 1.0} for s in options.strategies}

    monkeypatch.setattr(pretrain, "_measure_costs", costs)


Pretrain = Callable[..., tuple[int, Path]]


@pytest.fixture
def pretrain(texts: Path, tmp_path: Path) -> Pretrain:
    """A function: run the tiny configuration with more arguments; exit code and run folder."""
    from pretrain import main

    def run(*arguments: str, name: str = "tiny") -> tuple[int, Path]:
        base = [*TINY, f"--data={texts}/*.txt", f"--out={tmp_path / 'runs'}", f"--name={name}"]
        return main([*base, *arguments]), tmp_path / "runs" / name

    return run
