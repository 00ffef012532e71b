"""The scripts of the papers run small, and what they say is what their numbers say."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.examples.tiny import EXAMPLES

Small = Callable[..., tuple[ModuleType, list[dict[str, str]]]]


@pytest.fixture
def small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Small:
    """A function: run a script with --small; its module and the rows that it kept."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "papers"))

    def run(name: str, *options: str) -> tuple[ModuleType, list[dict[str, str]]]:
        script = importlib.import_module(name)
        script.main(["--small", f"--out={tmp_path}", *options])
        table = capsys.readouterr().out
        # The same table and figure from the file alone.
        image = tmp_path / "images" / "papers" / f"{name}.png"
        image.unlink()
        script.main(["--report", f"--out={tmp_path}", *options])
        assert capsys.readouterr().out == table
        assert image.stat().st_size > 10_000
        found = importlib.import_module("paper").read(
            tmp_path / "results" / "papers" / f"{name}.csv"
        )
        return script, found

    return run


@pytest.mark.usefixtures("on_torch")
def test_floor(small: Small) -> None:
    script, rows = small("zamirai_floor")
    # The theorem, for every run at every step; and it is about nearest rounding alone.
    assert script.least(rows, "2^-9") > 1
    others = [{**r, "rounding": "nearest"} for r in rows if r["rounding"] == "Kahan"]
    assert script.least(others, "2^-9") < 1
    floor = min(script.ends(rows, "nearest", "0.125"))
    assert max(script.ends(rows, "Kahan", "0.125")) < floor
    assert max(script.ends(rows, "fp32", "0.125")) < floor / 8


@pytest.mark.usefixtures("on_torch")
def test_ablation(small: Small) -> None:
    script, rows = small("zamirai_ablation", "--models", "embedding-heavy")
    assert len(rows) == 2 * len(script.VARIANTS)
    assert script.gaps(rows, "embedding-heavy", "float32") == [0, 0]
    for variant in script.VARIANTS[1:]:
        assert any(script.gaps(rows, "embedding-heavy", variant))


def test_a_variant_rounds_what_it_names(small: Small) -> None:
    script = importlib.import_module("zamirai_ablation")
    of_model = importlib.import_module("zamirai_models")
    third = torch.tensor([1 / 3])
    rounded = of_model.to_bf16(third)

    def stepped(*rounds: str) -> dict[str, bool]:
        """Whether weight, gradient and state are bf16 numbers after a step."""
        weight = torch.nn.Parameter(third.clone())
        optimizer = torch.optim.SGD([weight], lr=0.3, momentum=0.9)
        weight.grad = third.clone()
        script.round_parts(optimizer, set(rounds), before=True)
        optimizer.step()
        script.round_parts(optimizer, set(rounds), before=False)
        found = (weight.detach(), weight.grad, optimizer.state[weight]["momentum_buffer"])
        names = ("update", "gradient", "state")
        return {n: bool(x == of_model.to_bf16(x)) for n, x in zip(names, found, strict=True)}

    assert stepped() == {"update": False, "gradient": False, "state": False}
    assert stepped("update") == {"update": True, "gradient": False, "state": False}
    assert stepped("state") == {"update": False, "gradient": False, "state": True}
    # The first momentum is the gradient.
    assert stepped("gradient") == {"update": False, "gradient": True, "state": True}

    for forward, backward in ((True, False), (False, True)):
        x = third.clone().requires_grad_()
        y = of_model.Rounding(forward, backward)(x)
        y.backward(third)
        assert y.item() == (rounded if forward else third).item()
        assert x.grad is not None
        assert x.grad.item() == (rounded if backward else third).item()


@pytest.mark.slow
@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("model", ["convolutional", "recurrent"])
def test_ablation_of_the_others(small: Small, model: str) -> None:
    script, rows = small("zamirai_ablation", "--models", model)
    assert all(any(script.gaps(rows, model, v)) for v in script.VARIANTS[1:])
