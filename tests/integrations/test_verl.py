"""verl makes our optimizers from the names in its configuration.

Its configuration class and its constructor run as they are. `verl/__init__.py` does not: it imports
Ray, which these need nothing of.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import mcf.optim
from tests.integrations.packages import package
from tests.integrations.training import Model, assert_equal, kept, tokens

package("omegaconf")


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of verl that makes optimizers."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package verl is not installed (make test-integrations does)")
    parent = types.ModuleType("verl")
    parent.__path__ = list(spec.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "verl", parent)
    path = Path(parent.__path__[0]) / "workers" / "config" / "optimizer.py"
    found = importlib.util.spec_from_file_location("verl_optimizer", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "verl_optimizer", module)
    found.loader.exec_module(module)
    yield module
    for name in [n for n in sys.modules if n.startswith("verl.")]:
        del sys.modules[name]


@pytest.mark.parametrize("precision", ["split16_sr", "bf16_sr", "8bit"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_build_optimizer_makes_ours(verl: Any, precision: str, dtype: torch.dtype) -> None:
    config = verl.FSDPOptimizerConfig(
        optimizer="AdamW", optimizer_impl="mcf.optim", lr=1e-3, betas=(0.9, 0.99),
        override_optimizer_config={"precision": precision, "max_grad_norm": 1.0},
    )  # fmt: skip
    found = []
    for direct in (False, True):
        model = Model(dtype=dtype)
        optimizer = (
            mcf.optim.AdamW(
                model.parameters(), 1e-3, (0.9, 0.99), weight_decay=0.01, precision=precision,
                max_grad_norm=1.0,
            )
            if direct
            else verl.build_optimizer(model.parameters(), config)
        )  # fmt: skip
        assert type(optimizer) is mcf.optim.AdamW
        for _ in range(4):
            optimizer.zero_grad()
            model(tokens(4)).backward()
            optimizer.step()
        found.append(kept(model, optimizer))
    assert_equal(*found)


def test_unknown_precision_is_named(verl: Any) -> None:
    config = verl.FSDPOptimizerConfig(
        optimizer_impl="mcf.optim", override_optimizer_config={"precision": "bf16"}
    )
    with pytest.raises(ValueError, match=r"precision must be one of 'plain'.*, got 'bf16'"):
        verl.build_optimizer(Model().parameters(), config)
