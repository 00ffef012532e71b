"""What torch's cache of compiled graphs on disk knows of an expansion tensor."""

from __future__ import annotations

import sys

import pytest
import torch

import mcf


def test_graphs_of_other_operators_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, say: its graphs call operators by names that may be gone."""
    # `mcf.expansions.tensor` is a function.
    module = sys.modules["mcf.expansions.tensor"]
    x = mcf.ones(3)
    before = x._stable_hash_for_caching()
    assert x._stable_hash_for_caching() == before
    names = torch._C._dispatch_get_all_op_names()
    assert any(n.startswith("mcf::") for n in names)
    renamed = [n + "_old" if n.startswith("mcf::") else n for n in names]
    monkeypatch.setattr(torch._C, "_dispatch_get_all_op_names", lambda: renamed)
    module._operators.cache_clear()
    try:
        assert x._stable_hash_for_caching() != before
    finally:
        module._operators.cache_clear()
