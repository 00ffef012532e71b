"""Graphs of expansion tensors: torch.compile, make_fx, torch.export and the cache on disk.

What a graph cannot follow ends it or is refused; no result is a constant in silence. Caught
mutants: a program that keeps the leading components; the first argument's result for every other.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import mcf
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

READS: dict[str, Callable[[Any], Any]] = {
    "components of an operand": lambda x: x * x.components[0] + x.components[1],
    "components of a result": lambda x: x * (x * 3).components[1],
    # The rest runs operator by operator, each a graph of its own: the sum was the product's again.
    "a count": lambda x: x * len((x + 1).components) + 2 - 1 / x,
    "terms of a result": lambda x: x + (x * 2).terms,
    "item of an operand": lambda x: x * x[:1].item(),
    "item of a result": lambda x: x * x.sum().item() - x,
    "float": lambda x: float((x * 3).sum()) * x,
    "bool": lambda x: x * 2 if bool(x.sum() > 0) else x,
    # Operator by operator too, and torch.compile looked into ours.
    "a mask": lambda x: x[x > 4] * 2,
    "unique": lambda x: x.unique() * 2,
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", READS)
def test_what_reads_numbers_ends_a_graph(name: str) -> None:
    torch._dynamo.reset()
    x = mcf.from_components(
        [torch.tensor([3.0, 5.0, 7.0]).double(), torch.tensor([1.0, -3.0, 5.0]).double() * 2.0**-60]
    )
    got = torch.compile(READS[name], backend="eager")(x)
    assert_all_same_bits(got.components, READS[name](x).components, name)
    torch._dynamo.reset()


MODES = ("real", "fake", "symbolic")


def _two() -> tuple[Any, Any]:
    low = torch.tensor([1.0, -3.0]).double() * 2.0**-60
    x = mcf.from_components([torch.tensor([3.0, 5.0]).double(), low])
    return x, x * 3


FOLLOWED: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: x * x - x.exp(),
    "a plain tensor": lambda x: x * torch.tensor([2.0, 3.0]).double(),
    "components": lambda x: x.components[1] * 2 + x.components[0],
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "mode"),
    # Torch asks for fake tensors beside fake ones.
    [(n, m) for n in FOLLOWED for m in MODES if (n, m) != ("a plain tensor", "fake")],
)
def test_arguments_are_followed(name: str, mode: str) -> None:
    x, other = _two()
    graph = make_fx(FOLLOWED[name], tracing_mode=mode)(x)
    got, expected = (
        [*y.components] if isinstance(y, mcf.MCFTensor) else [y]
        for y in (graph(other), FOLLOWED[name](other))
    )
    assert_all_same_bits(got, expected, name)


@pytest.mark.parametrize("mode", MODES)
def test_others_are_refused(mode: str) -> None:
    x, y = _two()
    for f in (lambda a: a + y, lambda a: torch.cat([a, y]), lambda a: torch.where(a > 1, a, y)):
        with pytest.raises(RuntimeError, match="all expansion tensors as arguments"):
            make_fx(f, tracing_mode=mode)(x)
    graph = make_fx(lambda a, b: a + b)(x, y)
    assert_all_same_bits(graph(y, y).components, (y + y).components)


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
    """Take an expansion next to an argument: no parameter and no buffer, or a buffer."""

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


def test_graphs_of_other_operators_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse graphs of another version: they call operators by names that may be gone."""
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
