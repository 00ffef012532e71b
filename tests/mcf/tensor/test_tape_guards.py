"""Steps of functions where a number decides by its sign of zero, and where other threads run."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mcf
from mcf.tensor import tapes


def test_a_zero_that_decides_has_its_sign() -> None:
    tapes._tapes.clear()
    x = mcf.tensor([-1.0, 2.0], dtype=torch.float64)
    zeros = [torch.tensor(v, dtype=torch.float64) for v in (0.0, 0.0, 0.0, -0.0)]
    signs = [F.leaky_relu(x, slope)[0].signbit().item() for slope in zeros]
    assert sum(type(t) is tapes.Tape for t in tapes._tapes.values()) == 1
    assert signs == [True, True, True, False]


def test_warnings_of_other_threads_are_theirs() -> None:
    tapes._tapes.clear()
    said: list[Any] = []

    def warn() -> None:
        try:
            warnings.warn("of another thread", UserWarning, stacklevel=1)
            said.append("shown")
        except UserWarning as error:
            said.append(error)

    def function(x: Any) -> Any:
        thread = threading.Thread(target=warn)
        thread.start()
        thread.join()
        return x * x + x

    x = mcf.tensor([1.0, 2.0], dtype=torch.float64)
    direct = tapes.taped(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert direct(x) is NotImplemented
        assert torch.equal(direct(x), x * x + x)
    assert said == ["shown"]


def test_a_function_that_warns_has_no_steps() -> None:
    tapes._tapes.clear()

    def function(x: Any) -> Any:
        warnings.warn("each time", UserWarning, stacklevel=1)
        return x * x + x

    x = mcf.tensor([1.0, 2.0], dtype=torch.float64)
    direct = tapes.taped(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [direct(x) for _ in range(3)] == [NotImplemented] * 3
    with pytest.warns(UserWarning, match="afterwards"):
        warnings.warn("afterwards", UserWarning, stacklevel=1)


@pytest.mark.parametrize("bad", [4, -1, 2**40])
def test_classes_that_there_are_not(bad: int) -> None:
    """Steps that take elements by number leave a wrong one to torch's way, which says so."""
    x = mcf.MCFTensor([torch.arange(12.0, dtype=torch.float64).reshape(3, 4) / 16]).to(terms=2)
    classes = torch.tensor([1, 3, 0])
    for _ in range(3):
        good = F.nll_loss(x, classes)
    assert torch.equal(good, -(x[0, 1] + x[1, 3] + x[2, 0]) / 3)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        F.nll_loss(x, torch.tensor([1, bad, 0]))
    ignored = F.nll_loss(x, torch.tensor([1, -100, 0]))
    assert torch.equal(ignored, -(x[0, 1] + x[2, 0]) / 2)
