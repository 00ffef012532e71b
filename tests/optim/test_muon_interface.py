"""Muon: its signature, what it refuses, and what it is converted from and to."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim import Muon
from tests.helpers import assert_same_bits
from tests.optim.helpers import BF16, FP32, parameter, steps, value

pytestmark = pytest.mark.usefixtures("on_torch")

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"lr": -1.0}, ValueError, "learning rate: -1.0"),
    ({"momentum": -0.1}, ValueError, "momentum value: -0.1; allowed is"),
    ({"momentum": 1.5}, ValueError, "momentum value: 1.5; allowed is"),
    ({"weight_decay": -0.1}, ValueError, "weight_decay value: -0.1"),
    ({"eps": -1e-7}, ValueError, "epsilon value: -1e-07"),
    ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
    ({"ns_coefficients": (1.0, 2.0)}, ValueError, "ns_coefficients: .*; allowed are three"),
    ({"ns_coefficients": (1.0, 2.0, "3")}, TypeError, r"ns_coefficients\[2\] must be a number"),
    ({"ns_steps": 100}, ValueError, r"ns_steps: 100; allowed is \[0, 100\)"),
    ({"ns_steps": 5.0}, TypeError, "ns_steps must be an int, got float"),
    ({"adjust_lr_fn": "arbitrary"}, ValueError, "function arbitrary is not supported; allowed are"),
    ({"precision": "plus"}, ValueError, "precision='plus' stores a second"),
]


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_hyperparameters(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Muon([parameter((3, 4), BF16)], **options)


def test_only_matrices() -> None:
    good = parameter((3, 4), BF16)
    for shape, size in (((2, 3, 4), r"\(2, 3, 4\)"), ((5,), r"\(5,\)"), ((), r"\(\)")):
        with pytest.raises(
            ValueError, match=rf"Muon only supports 2D .* size: {size}, params\[1\]"
        ):
            Muon([good, parameter(shape, BF16)])
    optimizer = Muon([good])
    with pytest.raises(
        ValueError, match=r"Muon only supports 2D .*params\[0\] of param_groups\[1\]"
    ):
        optimizer.add_param_group({"params": parameter(5, BF16)})
    assert len(optimizer.param_groups) == 1


def test_signature_begins_as_torchs() -> None:
    mine, torchs = (
        list(inspect.signature(m).parameters.values())[:9] for m in (Muon, torch.optim.Muon)
    )
    assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in torchs]


def test_precisions_without_a_second_moment() -> None:
    for precision, nesterov in itertools.product(Muon.precisions, (False, True)):
        p = parameter((3, 4), BF16)
        optimizer = Muon([p], precision=precision, nesterov=nesterov)
        steps(optimizer, 1)
        names = {"param_lo", "param_bits", "master_param", "momentum_buffer", "step"}
        assert set(optimizer.state[p]) <= names


def test_converted() -> None:
    # From torch's on float32 and between strategies that hold all bits: the same numbers.
    p = parameter((4, 5), FP32, 1)
    theirs = torch.optim.Muon([p], 0.02)
    steps(theirs, 2)
    buffer = theirs.state[p]["momentum_buffer"].clone()
    ours, _ = mcf.optim.convert(theirs, precision="master")
    assert isinstance(ours, Muon)
    assert ours.param_groups[0]["lr"] == 0.02
    assert_same_bits(ours.state[p]["momentum_buffer"], buffer)
    q = parameter((4, 5), BF16, 2)
    source = Muon([q], 0.02, precision="split16")
    steps(source, 2)
    before = value(source, q)
    master, report = mcf.optim.convert(source, precision="master")
    assert report.exact
    assert torch.equal(value(master, q), before)
    steps(master, 1)
