"""Hints to memory: any address is as good as another."""

from __future__ import annotations

from array import array

import torch

import mcf
from mcf.kernels import registry
from mcf.optim.descriptions import Descriptions, _addresses


def test_no_address_faults() -> None:
    fetch = registry.prefetch(torch.device("cpu"))
    assert fetch is not None
    lines = array("Q", [0, 1, 64, 2**47 - 64, 2**63, 2**64 - 1])
    table = array("Q", lines.buffer_info())
    fetch(table.buffer_info()[0])
    table[1] = 0
    fetch(table.buffer_info()[0])


def test_the_lines_are_those_of_the_objects() -> None:
    t, other = torch.zeros(3), {"a": 1}
    lines = {a // 64 for a in _addresses([t], [other])}
    found = (id(t), id(other), t.data_ptr(), t._cdata, t.untyped_storage()._cdata)
    assert {a // 64 for a in found} <= lines


def test_executors_without_it() -> None:
    with mcf.executor("torch"):
        assert registry.prefetch(torch.device("cpu")) is None
        Descriptions([torch.zeros(1)], []).fetch()
