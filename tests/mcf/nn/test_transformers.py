"""torch's attention and transformer layers with expansions as parameters: every way they run.

In train and eval mode, with and without gradients (where torch has a fast path), with weights and
without, masks of every kind, both orders of dimensions. Compared with torch in float64: the
expansions have 72 bits and values near 1, so results agree to a few ulps of a float64.

Caught mutants: torch's own function, which meets an operator that expansions do not have.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcf
from tests.helpers.draws import bell

# Of values; that executors have the same bits other tests say.
pytestmark = pytest.mark.usefixtures("on_torch")

F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def expanded(module: nn.Module) -> nn.Module:
    """A copy whose parameters are expansions of the same values."""
    twin = copy.deepcopy(module)
    for part in twin.modules():
        for name, p in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(mcf.tensor(p.detach(), 3)))  # type: ignore[arg-type]
    return twin


def plain(x: Any) -> Any:
    return x.to_plain(F64) if isinstance(x, mcf.MCFTensor) else x


def filled(module: nn.Module) -> nn.Module:
    for k, p in enumerate(module.parameters()):
        with torch.no_grad():
            p.copy_(bell(tuple(p.shape), k) / 4)
    return module.double()


MASKS: dict[str, tuple[Tensor | None, Tensor | None]] = {
    "none": (None, None),
    "causal": (torch.ones(4, 4, dtype=torch.bool).triu(1), None),
    "padding": (None, torch.tensor([[False, False, False, True], [False] * 4])),
    "numbers": (torch.arange(16.0, dtype=F64).reshape(4, 4) / 8, None),
    "both": (
        torch.ones(4, 4, dtype=torch.bool).triu(1),
        torch.tensor([[False, False, True, True], [False] * 4]),
    ),
}


@pytest.mark.sampled(every=6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_attention_of_several_heads(masks: str, weights: bool) -> None:
    ours_theirs = filled(nn.MultiheadAttention(6, 2, batch_first=True))
    ours = expanded(ours_theirs)
    x = bell((2, 4, 6), 7)
    mask, padding = MASKS[masks]
    options = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": weights}
    for train in (True, False):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                got = ours.train(train)(x, x, x, **options)
                want = ours_theirs.train(train)(x, x, x, **options)
            assert isinstance(got[0], mcf.MCFTensor)
            assert (got[0].dtype, got[0].terms) == (F64, 3)
            torch.testing.assert_close(plain(got[0]).detach(), want[0].detach(), **CLOSE)
            assert (got[1] is None) == (not weights)
            if weights:
                torch.testing.assert_close(plain(got[1]).detach(), want[1].detach(), **CLOSE)


@pytest.mark.sampled(every=2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": False, "add_bias_kv": True},
        {"add_zero_attn": True, "bias": False},
        {"kdim": 3, "vdim": 5, "batch_first": True},
    ],
)
def test_other_forms_of_attention(options: dict[str, Any]) -> None:
    theirs = filled(nn.MultiheadAttention(6, 2, **options))
    ours = expanded(theirs)
    query = bell((2, 4, 6), 7)
    key, value = bell((2, 4, options.get("kdim", 6)), 8), bell((2, 4, options.get("vdim", 6)), 9)
    for average in (True, False):
        got = ours(query, key, value, average_attn_weights=average)
        want = theirs(query, key, value, average_attn_weights=average)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(plain(a).detach(), b.detach(), **CLOSE)
    alone = [t[:, 0] if not options.get("batch_first") else t[0] for t in (query, key, value)]
    for a, b in zip(ours(*alone), theirs(*alone), strict=True):
        torch.testing.assert_close(plain(a).detach(), b.detach(), **CLOSE)


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_layers(norm_first: bool) -> None:
    """Encoder and decoder; parameters get the gradients they get in float64."""
    shape = {"d_model": 6, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
    encoder = filled(nn.TransformerEncoderLayer(**shape, norm_first=norm_first))
    decoder = filled(nn.TransformerDecoderLayer(**shape, norm_first=norm_first, activation="gelu"))
    stack = filled(nn.TransformerEncoder(encoder, 2, enable_nested_tensor=True))
    x, memory = bell((2, 4, 6), 7), bell((2, 3, 6), 8)
    causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=F64)
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = [
        (encoder, (x,), {}),
        (encoder, (x,), {"src_mask": causal, "is_causal": True}),
        (encoder, (x,), {"src_key_padding_mask": MASKS["padding"][1]}),
        (decoder, (x, memory), {"tgt_mask": causal, "tgt_is_causal": True}),
        (stack, (x,), {"src_key_padding_mask": MASKS["padding"][1]}),
    ]
    for module, given, options in calls:
        twin = expanded(module)
        for train in (True, False):
            with torch.no_grad():
                got = twin.train(train)(*given, **options)
                want = module.train(train)(*given, **options)
            kept = options.get("src_key_padding_mask")
            keep = slice(None) if kept is None else ~kept
            torch.testing.assert_close(plain(got)[keep], want[keep], **CLOSE)
        (module.train()(*given, **options)[..., :2] ** 2).sum().backward()
        (twin.train()(*given, **options)[..., :2] ** 2).sum().backward()
        for p, q in zip(module.parameters(), twin.parameters(), strict=True):
            assert isinstance(q.grad, mcf.MCFTensor)
            torch.testing.assert_close(plain(q.grad), p.grad, rtol=1e-10, atol=1e-11)
        module.zero_grad()


def test_the_scale_has_all_components() -> None:
    """Mutants: 1 / sqrt(3) in double precision; a plain query's own format for it."""
    q, k, v = (mcf.tensor(bell((1, 2, 2, 3), n), 4, F64) for n in range(3))
    attention = nn.functional.scaled_dot_product_attention
    scaled = q * (1 / mcf.tensor(3, 4, F64).sqrt())
    want = torch.softmax(scaled @ k.mT, -1) @ v
    assert ((attention(q, k, v) - want).abs().max() < 2.0**-190).item()
    plain_q = bell((1, 2, 2, 3), 0)
    got = mcf.nn.functional.attention(plain_q, k, v)
    assert torch.equal(got, mcf.nn.functional.attention(mcf.tensor(plain_q, 4, F64), k, v))


def test_groups_of_queries_share_heads() -> None:
    """`enable_gqa`: the bits of heads that are repeated, and the sum of their gradients."""
    attention = nn.functional.scaled_dot_product_attention
    q = mcf.tensor(bell((2, 6, 4, 3), 0), 2, F64)
    shared = [mcf.tensor(bell((2, 2, 5, 3), n), 2, F64).requires_grad_() for n in (1, 2)]
    repeated = [x.detach().repeat_interleave(3, -3).requires_grad_() for x in shared]
    got = attention(q, *shared, enable_gqa=True)
    want = attention(q, *repeated)
    assert torch.equal(got, want)
    mapped = torch.func.vmap(lambda *x: attention(*x, enable_gqa=True))
    assert torch.equal(mapped(q, *(x.detach() for x in shared)), want.detach())
    got.sum().backward()
    want.sum().backward()
    for x, y in zip(shared, repeated, strict=True):
        summed = y.grad.unflatten(1, (2, 3)).sum(2)
        # Sums of three in another order: a few units of 106 bits.
        assert ((x.grad - summed).abs().max() <= 2.0**-98 * summed.abs().max()).item()


@pytest.mark.parametrize(
    ("heads", "said"), [((6, 4), "got 4 for 6"), ((6, 0), "got 0 for 6"), ((), "needs heads")]
)
def test_heads_that_do_not_divide_the_querys_are_refused(heads: Any, said: str) -> None:
    q, k = (mcf.tensor(torch.ones(*heads[n : n + 1], 2, 3), 2, F64) for n in range(2))
    with pytest.raises(ValueError, match=said):
        nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
