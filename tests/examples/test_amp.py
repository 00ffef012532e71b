"""The mixed-precision example: every recipe learns, and only float16's scaler skips steps."""

from __future__ import annotations

import functools
import math
import signal

import amp
import pytest
from amp import RECIPES, main, train

# After 60 steps; from one recipe to another it differs by what rounding does to a noisy loss.
STEPS = 60


@functools.cache
def _reference() -> amp.Outcome:
    return train("fp32", STEPS, width=16)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str) -> None:
    reference = _reference()
    out = reference if recipe == "fp32" else train(recipe, STEPS, width=16)
    assert all(math.isfinite(loss) for loss in out.losses)
    for k in range(STEPS):
        assert abs(out.losses[k] - reference.losses[k]) < 0.02
    assert sum(reference.losses[-10:]) < sum(reference.losses[:10])
    # The first scale, 2**20, is too large for float16 gradients.
    assert (out.skipped > 0) == (recipe in ("amp", "fp16"))
    assert math.isclose(
        out.bytes_per_parameter, 12 if recipe in ("fp16", "bf16") else 16, rel_tol=0.1
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "--steps: '0' is not a whole number from 1 to 1000000"),
        (["--steps", "-5"], "--steps: '-5' is not a whole number from 1 to 1000000"),
        (["--width", "99999999999"], "--width: '99999999999' is not a whole number from 1 to 8192"),
        (["--only", "fp8"], "--only: invalid choice: 'fp8'"),
        (["--device", "foo"], "--device: 'foo' is not a device here; cpu"),
        (["--device", "cuda:99"], "--device: 'cuda:99' is not a device here; cpu"),
        (["--device", "meta"], "--device: 'meta' is not a device here; cpu"),
        (["--step", "3"], "unrecognized arguments: --step 3"),
    ],
)
def test_wrong_option(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("amp.py: error: argument " if "argument" not in words else "amp.py: ")
    assert words in error
    assert error.count("\n") == 1


def test_signals_and_lack_of_memory_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(amp, "train", terminated)
    assert main([]) == 143
    assert capsys.readouterr().err == "amp.py: interrupted by SIGTERM\n"

    def no_memory(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")

    monkeypatch.setattr(amp, "train", no_memory)
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("amp.py: error: not enough memory: DefaultCPU")


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "bf16", "--steps", "3", "--width", "8", "--device", "cpu"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "recipe"
    assert row.split()[0] == "bf16"
    with pytest.raises(ValueError, match="unknown recipe 'fp8'; known are fp32, amp, fp16, bf16"):
        train("fp8")
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        train("bf16", 0)
