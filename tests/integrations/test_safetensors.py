"""safetensors holds expansions, modules and optimizers by way of `mcf.flatten_state`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import mcf
from mcf.optim import CollageAdamW
from tests.helpers import assert_all_same_bits
from tests.integrations.packages import package

safetensors = package("safetensors")
files = package("safetensors", "safetensors.torch")


def test_a_training_goes_on_from_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "training.safetensors")
    net = nn.Linear(4, 3).to(torch.bfloat16)
    net.register_buffer("third", mcf.tensor("1/3", 3))
    optimizer = CollageAdamW(net.parameters(), lr=1e-3, mode="plus")
    net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    files.save_file(*mcf.flatten_state(state)[:1], path, mcf.flatten_state(state)[1])
    with safetensors.safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    again = mcf.unflatten_state(files.load_file(path), metadata)
    other = nn.Linear(4, 3).to(torch.bfloat16)
    other.register_buffer("third", mcf.zeros((), terms=3))
    other.load_state_dict(again["model"])
    resumed = CollageAdamW(other.parameters(), lr=1e-3, mode="plus")
    resumed.load_state_dict(again["optimizer"])
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        q.grad = p.grad
    optimizer.step()
    resumed.step()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    assert_all_same_bits(other.third.components, net.third.components, "third")
