"""`axis=` and `keepdims=` wherever torch takes them, on each of its functions that does so.

Caught mutants: a replacement of torch's function that has torch's names of arguments alone; a mean
of all elements beside the variance along an axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

import mcf

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("on_torch")]

PLAIN = torch.tensor([[3.0, 1, 2], [-1, 5, 0.5]], dtype=torch.float64)
INDEX = torch.tensor([[1, 0, 1]])
NAMES: list[dict[str, Any]] = [
    {"axis": 0}, {"axis": 0, "keepdims": True}, {"keepdims": True}, {"axis": (0, 1)}
]  # fmt: skip
# What some functions take before.
BEFORE: list[tuple[Any, ...]] = [(), (1,), (0.5,), (INDEX[0],), (PLAIN,), (INDEX,), (INDEX, PLAIN)]
OURS = {"axis": "dim", "keepdims": "keepdim"}
ROOMS = {"torch": torch, "Tensor": torch.Tensor, "linalg": torch.linalg}


def taken() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    """The functions, arguments and names that torch takes for a plain tensor."""
    for where, room in ROOMS.items():
        for name in sorted(dir(room)):
            function = getattr(room, name)
            if name.startswith("_") or not callable(function) or isinstance(function, type):
                continue
            if name.startswith(("set_", "from_")):
                continue
            for names in NAMES:
                for before in BEFORE:
                    try:
                        function(PLAIN.clone(), *before, **names)
                    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError):
                        continue
                    yield where, name, before, names
                    break


def numbers(found: Any) -> list[Any]:
    parts = tree_flatten(found)[0]
    parts = [x.to_fractions() if isinstance(x, mcf.MCFTensor) else x for x in parts]
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in parts]


@pytest.mark.slow
def test_names_of_numpy_are_those_of_torch() -> None:
    # Digits that float64 has not.
    x = mcf.tensor(PLAIN, 2, PLAIN.dtype) + mcf.tensor(2.0**-60, 2, torch.float64)
    tried, refused = set(), set()
    for where, name, before, names in taken():
        function = getattr(ROOMS[where], name)
        given = [mcf.tensor(b, 2, b.dtype) if b is PLAIN else b for b in before]
        try:
            want = numbers(function(x.clone(), *given, **{OURS[k]: v for k, v in names.items()}))
        except (mcf.UnsupportedError, TypeError):
            refused.add((where, name))
            continue
        assert numbers(function(x.clone(), *given, **names)) == want, (where, name, names)
        tried.add(f"{where}.{name}")
    assert len(tried) > 90, sorted(tried)
    assert {"torch.sum", "torch.nansum", "Tensor.quantile", "torch.cummax", "Tensor.prod",
            "linalg.norm", "torch.std_mean", "Tensor.logcumsumexp"} <= tried  # fmt: skip


def test_other_names_are_refused() -> None:
    x = mcf.tensor([1.0, 2.0])
    for function in (torch.quantile, torch.var, torch.nansum):
        with pytest.raises(TypeError):
            function(x, axes=0)
    # As torch: a function written in Python has its own names alone.
    with pytest.raises(TypeError):
        torch.nn.functional.softmax(x, axis=0)
