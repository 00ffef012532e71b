"""An interrupted run, resumed, gives the bits of one that ran through.

Mutants these tests catch: optimizer state or batch position not restored, metrics not cut back,
a finished training run again.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from pretraining import plots, train
from pretraining.options import Options

from tests.examples.tiny import EXAMPLES, TINY

TWO = ["--strategies", "plus", "master"]


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all else here, and has its own test."""
    for name in ("loss", "edq"):
        monkeypatch.setattr(plots, name, lambda path, metrics: None)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The final weights of all trainings of a run."""
    found = {}
    for path in sorted((folder / "checkpoints").glob("*.pt")):
        state = torch.load(path, weights_only=True)
        assert state["result"] is not None, path
        found |= {f"{path.stem}/{name}": weight for name, weight in state["model"].items()}
    return found


def assert_same_bits(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name].view(torch.int16), b[name].view(torch.int16)), name


class PowerFailure(Exception):
    pass


Broken = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def power_failure() -> Broken:
    """A context in which the `update`-th update of the process raises, before it is made."""

    @contextmanager
    def broken(update: int) -> Iterator[None]:
        original, updates = train.learning_rate, itertools.count(1)

        def failing(step: int, options: Options) -> float:
            if next(updates) == update:
                raise PowerFailure
            return original(step, options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "learning_rate", failing)
            yield

    return broken


@pytest.mark.parametrize(
    ("dtype", "update"),
    [("float32", 2), ("float32", 5), ("float32", 9), ("float32", 13), ("bfloat16", 7)],
)
def test_resume_after_a_failure_gives_the_same_bits(pretrain, power_failure, dtype, update):
    """Updates 1 to 7 are the first training's, 8 to 14 the second's; checkpoints at 3 and 6."""
    arguments = [*TWO, f"--compute-dtype={dtype}"]
    assert pretrain(*arguments, name="through")[0] == 0
    with power_failure(update), pytest.raises(PowerFailure):
        pretrain(*arguments, name="broken")
    code, folder = pretrain(*arguments, "--resume", name="broken")
    assert code == 0
    assert_same_bits(folder, folder.parent / "through")


def test_the_seed_decides_the_bits(pretrain):
    """Guards the comparison above: it can tell two runs apart."""
    one = pretrain(*TWO, "--seeds=0", name="one")[1]
    other = pretrain(*TWO, "--seeds=1", name="other")[1]
    with pytest.raises(AssertionError):
        assert_same_bits(one, other)


def test_finished_trainings_are_not_run_again(pretrain, power_failure, monkeypatch, capsys):
    with power_failure(9), pytest.raises(PowerFailure):
        pretrain(*TWO)
    seen, original = [], train.run

    def watched(options, corpus, job, *rest):
        seen.append(job)
        return original(options, corpus, job, *rest)

    monkeypatch.setattr(train, "run", watched)
    code, folder = pretrain(*TWO, "--resume")
    assert [job.strategy for job in seen] == ["master"]
    before = (folder / "metrics.jsonl").read_bytes(), (folder / "summary.txt").read_text()
    capsys.readouterr()
    code, _ = pretrain(*TWO, "--resume")
    assert code == 0
    assert len(seen) == 1
    assert ((folder / "metrics.jsonl").read_bytes(), (folder / "summary.txt").read_text()) == before
    assert before[1] in capsys.readouterr().out


def test_resume_starts_a_run_that_is_not_there(pretrain):
    assert pretrain("--strategies=plus", "--resume")[0] == 0


def test_a_lost_checkpoint_is_trained_again_with_all_after_it(pretrain):
    _, folder = pretrain(*TWO, name="through")
    _, other = pretrain(*TWO, name="lost")
    (other / "checkpoints" / "plus-seed0.pt").unlink()
    assert pretrain(*TWO, "--resume", name="lost")[0] == 0
    assert_same_bits(folder, other)


def refusal(capsys: pytest.CaptureFixture[str], result: tuple[int, Path]) -> str:
    text = capsys.readouterr().err
    assert result[0] == 2
    lines = [line for line in text.splitlines() if line.startswith("pretrain.py: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in text
    return lines[0]


def test_resume_refuses_other_options_and_data(pretrain, capsys, texts: Path):
    pretrain("--strategies=plus")
    changed = refusal(capsys, pretrain("--strategies=plus", "--resume", "--lr=0.5", "--seeds=7"))
    assert "--lr is 0.5 and was 0.001" in changed
    assert "--seeds is [7] and was [0]" in changed
    assert "steps" not in changed
    # Where and how often to save does not change the result.
    assert pretrain("--strategies=plus", "--resume", "--checkpoint-every=1")[0] == 0
    capsys.readouterr()
    with (texts / "03.txt").open("a") as file:
        file.write("!")
    assert "the data has changed" in refusal(capsys, pretrain("--strategies=plus", "--resume"))


def test_an_earlier_run_is_replaced_only_on_demand(pretrain, capsys):
    _, folder = pretrain("--strategies=plus")
    before = (folder / "metrics.jsonl").read_bytes()
    assert "holds an earlier run; add --resume" in refusal(capsys, pretrain("--strategies=plus"))
    assert (folder / "metrics.jsonl").read_bytes() == before
    # `make pretrain ARGS=--overwrite` gives both; the last one counts.
    assert pretrain("--strategies=plus", "--resume", "--overwrite", "--seeds=5")[0] == 0
    assert (folder / "metrics.jsonl").read_bytes() != before


def test_damaged_files_are_one_clear_line(pretrain, capsys):
    _, folder = pretrain("--strategies=plus")
    path = folder / "checkpoints" / "plus-seed0.pt"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"text"):
        path.write_bytes(damaged)
        text = refusal(capsys, pretrain("--strategies=plus", "--resume"))
        assert "plus-seed0.pt is not a readable checkpoint" in text
    path.unlink()
    (folder / "run.json").write_text("{")
    text = refusal(capsys, pretrain("--strategies=plus", "--resume"))
    assert "run.json is not readable" in text


def test_control_c_saves_and_says_how_to_go_on(texts: Path, tmp_path: Path, pretrain):
    """In a real process; the signal comes once there are metrics, wherever that is."""
    command = [sys.executable, str(EXAMPLES / "pretrain.py"), *TINY, f"--data={texts}/*.txt",
               f"--out={tmp_path / 'runs'}", "--name=stopped", "--strategies", "plus",
               "--steps=300", "--checkpoint-every=5", "--eval-every=300"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    checkpoint = tmp_path / "runs" / "stopped" / "checkpoints" / "plus-seed0.pt"
    limit = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Interrupted. Go on from the last checkpoint with: " in errors
    assert errors.rstrip().endswith("--resume")
    state = torch.load(checkpoint, weights_only=True)
    assert 5 <= state["step"] < 300
    assert state["result"] is None
    rest = ["--strategies=plus", "--steps=300", "--eval-every=300", "--resume"]
    code, folder = pretrain(*rest, name="stopped")
    assert code == 0
    assert pretrain(*rest, name="through")[0] == 0
    assert_same_bits(folder, folder.parent / "through")
