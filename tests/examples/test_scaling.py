"""Counts behind docs/scaling.md: parameters of models, bytes held and sent by processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pretrain import main
from pretraining import decoder, scaling
from pretraining.dry_run import amount, state_bytes
from pretraining.scaling import Mesh, Work
from pretraining.shapes import SHAPES, Shape

from mcf.optim import PRECISIONS
from tests.examples import together_cases
from tests.examples.tiny import EXAMPLES
from tests.helpers.everyday import everyday
from tests.helpers.processes import World, world

__all__ = ["world"]


def test_published_sizes() -> None:
    # Of the models' configurations; GPT-2 has biases besides.
    assert SHAPES["llama-7b"].parameters() == 6_738_415_616
    assert SHAPES["llama-70b"].parameters() == 68_976_648_192
    assert SHAPES["llama-405b"].parameters() == 405_853_388_800


@pytest.mark.parametrize("name", ["gpt-124m", "llama-110m", "llama-7b"])
def test_parameters_are_those_of_the_model(name: str) -> None:
    with torch.device("meta"):
        model = decoder.Decoder(SHAPES[name], 300)
    assert sum(p.numel() for p in model.parameters()) == SHAPES[name].parameters(300)


MESHES = [("fsdp", (1, 2, 1)), ("tp", (1, 1, 2))]
# Sequences cut between matrices.
MORE = [("tp", (1, 1, 2, True)), ("fsdp+tp", (1, 2, 2, True))]
MORE += [("ddp", (2, 1, 1)), ("hsdp", (2, 2, 1)), ("fsdp", (1, 4, 1)), ("fsdp+tp", (1, 2, 2))]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "sizes"), everyday([*MESHES, *MORE], MESHES))
def test_bytes_held_and_sent_are_those_on_paper(world: World, how: str, sizes: Any) -> None:
    mesh = Mesh(*sizes)
    work = Work(Shape(*together_cases.SMALL), 40, windows=2, micro_batches=1)
    held, sent = scaling.memory(work, mesh), scaling.traffic(work, mesh)
    for found in world.run(mesh.devices, together_cases.held, how, sizes):
        for key in ("parameters", "gradients", "states"):
            assert found[key] == held[key]
        assert found["gather"] == sent.get("parameters", 0)
        assert found["scatter"] == sent.get("gradients", 0)
        # DDP reduces below Python, where nobody counts.
        assert found["reduce"] == (sent.get("replicas", 0) if how != "ddp" else 0)
        assert found["tensor"] == sent.get("tensor", 0)


def test_bytes_of_states_are_counted() -> None:
    expected = {"plain": 4, "kahan": 6, "light": 6, "plus": 8, "fp32_states": 8, "master": 12}
    expected["split16_sr"] = Work.state_bytes
    assert {name: state_bytes(name) for name in expected} == expected
    assert set(expected) <= set(PRECISIONS)


@pytest.mark.parametrize("reduce", ["engine", "float32", "exact"])
def test_dry_run(capsys: pytest.CaptureFixture[str], reduce: str) -> None:
    arguments = ["--dry-run", "--model=llama-7b", "--devices=64", "--batch-size=1024"]
    assert main([*arguments, "--micro-batch=1", f"--reduce={reduce}"]) == 0
    text = capsys.readouterr().out
    assert "6,738,415,616 parameters" in text
    assert "; split16_sr on 64" in text
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows[2:6]] == ["ddp", "fsdp", "hsdp", "fsdp+tp"]
    work = Work(SHAPES["llama-7b"], 32000, 1, 16)
    fsdp = scaling.memory(work, Mesh(1, 64), reduce)
    assert amount(fsdp["states"]) in text
    assert amount(sum(fsdp.values())) in text


def test_sequences_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs of blocks are a part for each process, and so is half of what a block keeps whole."""
    arguments = ["--dry-run", "--model=llama-405b", "--devices=4096", "--tensor=8"]
    assert main([*arguments, "--batch-size=512", "--micro-batch=1", "--sequence-parallel"]) == 0
    (row,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("fsdp+tp"))
    shape = SHAPES["llama-405b"]
    work = Work(shape, shape.vocabulary, 1, 1)
    whole, cut = (scaling.memory(work, Mesh(1, 512, 8, s))["activations"] for s in (False, True))
    assert amount(cut) in row
    tokens = shape.context * shape.width
    inputs = 2 * shape.layers * tokens
    assert whole - cut == inputs * 7 / 8 + 6 * tokens * 7 / 8


def test_the_page_has_the_table() -> None:
    import scaling as page

    text = (EXAMPLES.parent / "docs" / "scaling.md").read_text()
    begin, end = "<!-- scaling: begin -->\n", "\n<!-- scaling: end -->"
    shown = text.split(begin)[1].split(end)[0].splitlines()
    # The page has the rows of one model.
    rows = page.table().splitlines()
    assert shown == rows[:2] + [row for row in rows[2:] if row.startswith("| llama-70b |")]


def test_fsdp_hides_behind_so_many_tokens() -> None:
    """6 F / (8 B), as the page has it, whatever the size, but for attention and embedding."""
    import scaling as page

    tokens = 6 * page.OPERATIONS * page.USED / (8 * page.OUTSIDE)
    assert 5900 < tokens < 5950
    for name in page.MODELS:
        shape = SHAPES[name]
        work = Work(shape, shape.vocabulary, 1, 1)
        computing, _, outside = page.seconds(work, Mesh(1, 4096), "engine")
        assert 1.0 < (computing / outside) / (shape.context / tokens) < 1.2


def test_amounts() -> None:
    assert [amount(x) for x in (0, 1023, 1024, 1.5 * 2**30, 2.0**50)] == [
        "0 B", "1023 B", "1.00 KiB", "1.50 GiB", "1024.00 TiB",
    ]  # fmt: skip
