"""`examples/pretrain.py --strategies` takes every precision there is."""

import json
from pathlib import Path

import pytest
from pretraining import options, plots

from mcf.optim import PRECISIONS
from tests.examples.tiny import TINY, torch_restored, write_texts


def test_every_precision_can_be_named() -> None:
    assert {*options.STRATEGIES, *options.OTHERS} == set(PRECISIONS) == plots.STYLE.keys()
    assert options.parse([]).strategies == options.STRATEGIES


@pytest.mark.slow
def test_the_others_train(tmp_path: Path) -> None:
    from pretrain import main

    texts = write_texts(tmp_path / "texts")
    named = ["--strategies", *options.OTHERS, f"--data={texts}/*.txt", f"--out={tmp_path}"]
    with torch_restored():
        assert main([*TINY, *named, "--name=run"]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["strategy"] for line in lines} == set(options.OTHERS)
    assert (tmp_path / "run" / "loss.png").stat().st_size > 0
