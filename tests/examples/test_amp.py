"""The mixed-precision example: every recipe learns, and only float16's scaler skips steps."""

from __future__ import annotations

import math

import pytest
from amp import RECIPES, main, train

# After 60 steps; from one recipe to another it differs by what rounding does to a noisy loss.
STEPS = 60


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str) -> None:
    out = train(recipe, STEPS, width=16)
    reference = train("fp32", STEPS, width=16)
    assert all(math.isfinite(loss) for loss in out.losses)
    for k in range(STEPS):
        assert abs(out.losses[k] - reference.losses[k]) < 0.02
    assert sum(reference.losses[-10:]) < sum(reference.losses[:10])
    # The first scale, 2**20, is too large for float16 gradients.
    assert (out.skipped > 0) == (recipe in ("amp", "fp16"))
    assert math.isclose(
        out.bytes_per_parameter, 12 if recipe in ("fp16", "bf16") else 16, rel_tol=0.1
    )


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "bf16", "--steps", "3", "--width", "8", "--device", "cpu"])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "recipe"
    assert row.split()[0] == "bf16"
    with pytest.raises(ValueError, match="unknown recipe 'fp8'; known are fp32, amp, fp16, bf16"):
        train("fp8")
