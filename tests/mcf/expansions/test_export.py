"""torch.export of modules with expansions: the bits of the module, or an error, as the page says.

Caught mutant: a program that keeps the leading components.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mcf
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]


class Module(nn.Module):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(mcf.tensor([["1/3", "0.2"], ["0.3", "0.4"]], 2))

    def forward(self, y: Any) -> Any:
        return self.function(y, self.weight)


EXPORTED = {
    "layer_norm": lambda y, w: F.layer_norm(F.linear(y, w), (2,)) * 0.1 + 3,
    "exp": lambda y, w: (y @ w).exp().sum(0),
}
MORE = {
    "sort": lambda y, w: (y @ w).sort()[0],
    "rms_norm": lambda y, w: F.rms_norm(y @ w, (2,)),
    "conv1d": lambda y, w: F.conv1d((y @ w)[None], w[None]),
}


def exported_and_loaded(module: nn.Module, y: Any) -> Any:
    program, file = torch.export.export(module, (y,)), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("name", everyday([*EXPORTED, *MORE], EXPORTED))
def test_a_program_has_the_bits_of_the_module(name: str) -> None:
    module, y = Module({**EXPORTED, **MORE}[name]), mcf.tensor([["0.1", "2"], ["3", "0.4"]], 2)
    again = exported_and_loaded(module, y)
    for given in (y, y * 3):
        assert_all_same_bits(again(given).components, module(given).components, name)


@pytest.mark.slow
def test_what_cannot_be_exported_raises() -> None:
    """The day that it does not, the page is to be changed."""
    with pytest.raises(RuntimeError):
        torch.export.export(Module(lambda y, w: F.gelu(y @ w)), (mcf.ones(2, 2),))


@pytest.mark.slow
def test_a_program_may_leave_the_type() -> None:
    module = Module(lambda y, w: (y @ w).to_plain())
    y = mcf.tensor([["0.1", "2"], ["3", "0.4"]], 2)
    again = exported_and_loaded(module, y)
    for given in (y, y * 3):
        assert_all_same_bits([again(given)], [module(given).detach()])


class Constant(nn.Module):
    """Beside an argument an expansion that is neither a parameter nor a buffer, or a buffer."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        third = mcf.tensor(["1/3", "0.2"], 2)
        if buffer:
            self.register_buffer("constant", third)
        else:
            self.constant = third

    def forward(self, y: Any) -> Any:
        return y * self.constant


def test_an_expansion_that_export_does_not_follow() -> None:
    """It was "Unable to cast NotImplemented to Tensor"."""
    y = mcf.tensor([["0.1", "2"], ["3", "0.4"]], 2)
    with pytest.raises(RuntimeError, match=r"^mul of .* torch\.export does not trace"):
        torch.export.export(Constant(buffer=False), (y,))
    again = exported_and_loaded(Constant(buffer=True), y)
    assert_all_same_bits(again(y).components, Constant(buffer=False)(y).components)
