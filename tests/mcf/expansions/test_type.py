"""The type itself: arithmetic, gradients, views, in-place operators, what is not supported."""

from __future__ import annotations

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits


def test_what_is_not_supported_names_the_function() -> None:
    with pytest.raises(mcf.UnsupportedError, match=r"\(aten.bitwise_not.default\)"):
        torch.bitwise_not(mcf.tensor([0.5]))


def test_operators_say_what_is_wrong_with_a_tensor() -> None:
    """Mutant: torch's own methods, of which Python reports unsupported types alone."""
    x, far, imaginary = mcf.ones(2), torch.ones(2, device="meta"), torch.ones(2) * 1j
    for call in (lambda: x + far, lambda: far - x, lambda: x / mcf.ones(2, device="meta")):
        with pytest.raises(RuntimeError, match="on the devices"):
            call()
    with pytest.raises(TypeError, match="complex numbers"):
        torch.maximum(x, imaginary)
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "1"


def test_to_takes_flags_by_position_beside_terms() -> None:
    x = mcf.tensor(["0.1"], 2)
    for y in (x.to("cpu", torch.float64, True, terms=3), x.to(torch.float64, False, True, terms=3)):
        assert (y.dtype, y.terms) == (torch.float64, 3)
        assert y.to_fractions() == x.to_fractions()


def test_swapped_tensors() -> None:
    """As `Module.to` does it, also with a plain tensor."""
    a, b, c = mcf.tensor(["0.1", "0.2"], 3), mcf.tensor(["0.3"], 2), torch.ones(4)
    a.tag = "a"
    expected = [a.components, b.components]
    torch.utils.swap_tensors(a, b)
    assert_all_same_bits(a.components, expected[1])
    assert_all_same_bits(b.components, expected[0])
    assert b.tag == "a"
    torch.utils.swap_tensors(a, c)
    assert_all_same_bits(c.components, expected[1])
    assert c.shape == (1,)
    assert (a == 1).all()
