"""Exact: `out=` of another shape and `resize_` do what torch does: sizes, warnings, errors, views.

Caught mutants: a warning for an empty `out`; one component resized and the next refused; a tensor
whose own size stays what it was; components of one memory that come to lie on each other.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mcf
from tests.mcf.expansions.test_written import _same, _tensor

CALLS: dict[str, Callable[..., Any]] = {
    "mul": lambda x, **out: torch.mul(x, x, **out),
    "add of a row": lambda x, **out: torch.add(x, x[0], **out),
    "exp": lambda x, **out: torch.exp(x.clamp(-1, 1), **out),
    "neg": lambda x, **out: torch.neg(x, **out),
    "addcmul": lambda x, **out: torch.addcmul(x, x, x, **out),
    "sum": lambda x, **out: torch.sum(x, 0, **out),
    "matmul": lambda x, **out: torch.matmul(x.mT, x, **out),
    "cat": lambda x, **out: torch.cat([x, x], **out),
    "lt": lambda x, **out: torch.lt(x, x[0], **out),
    "where": lambda x, **out: torch.where(x > 0, x, x[0], **out),
}


def _said(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A result, and the warnings as far as torch's ends with where it comes from."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        out = call()
    assert all(w.category is UserWarning for w in found)
    return out, [str(w.message).partition(" (Triggered")[0] for w in found]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("on_torch")
def test_another_shape_is_resized_with_torchs_words(name: str) -> None:
    x = _tensor(3, 4)
    expected = CALLS[name](x)
    for size in ((0,), (2,), (5, 5), (3, 4, 1), ()):
        plain = torch.empty(size, dtype=CALLS[name](x.components[0]).dtype)
        like: Any = plain.clone() if name == "lt" else _tensor(*size)
        theirs, words = _said(lambda out=plain: CALLS[name](x.components[0], out=out))
        before = like._version
        ours, said = _said(lambda out=like: CALLS[name](x, out=out))
        assert said == words, size
        assert ours is like
        assert like._version > before
        assert ours.shape == theirs.shape == expected.shape
        assert ours.stride() == theirs.stride()
        if name == "lt":
            assert torch.equal(ours, expected)
        else:
            _same(ours, expected, f"{size}")


def test_a_resized_tensor_is_one_for_what_follows() -> None:
    for x in (_tensor(3), _tensor(5)[1:4]):
        first = [c[:2].clone() for c in x.components]
        assert x.resize_(2, 4) is x
        assert {c.shape for c in x.components} == {x.shape} == {(2, 4)}
        assert [c[0, :2].tolist() for c in x.components] == [c.tolist() for c in first]
        x.fill_(0.1)
        _same(x[1:, ::2], mcf.full((1, 2), 0.1, dtype=torch.float64), "a view")
        _same(copy.deepcopy(x).T, x.T, "a copy")
        x[1].mul_(2)
        assert x.sum().item() == pytest.approx(1.2, rel=1e-15)
        leaf = x.requires_grad_()
        (leaf * leaf).sum().backward()
        assert leaf.grad.shape == (2, 4)
        with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
            leaf.resize_(3)
    y = _tensor(2, 3).resize_as_(_tensor(4, 1, 2, 2), memory_format=torch.channels_last)
    assert (y.shape, y.stride()) == ((4, 1, 2, 2), y.components[1].stride())
    assert y.resize_(0).shape == (0,)


def test_all_components_are_resized_or_none() -> None:
    fixed = torch.from_numpy(np.zeros(3))
    apart = mcf.MCFTensor([torch.zeros(3, dtype=torch.float64), fixed])
    one = mcf.MCFTensor(torch.zeros(2, 3, dtype=torch.float64).unbind())
    for x, words in ((apart, "not resizable"), (one, "would overlap")):
        with pytest.raises(RuntimeError, match=words):
            x.resize_(5)
        assert {c.shape for c in x.components} == {x.shape} == {(3,)}
        x.resize_(2)
        assert {c.shape for c in x.components} == {x.shape} == {(2,)}
