"""A small language model from its configuration, its batches, and what a training leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.helpers import assert_same_bits

VOCABULARY, LENGTH = 61, 12


def tokens(count: int) -> Tensor:
    """Rows of token ids: an arithmetic progression each, so that there is something to learn."""
    start, step = torch.arange(count)[:, None], torch.arange(count)[:, None] % 3 + 1
    return (start * 7 + step * torch.arange(LENGTH)) % VOCABULARY


def rows(count: int) -> list[dict[str, Tensor]]:
    """The same as a dataset of transformers."""
    return [{"input_ids": row, "labels": row.clone()} for row in tokens(count)]


def llama() -> Any:
    """A Llama of 13,000 parameters, in bf16."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=LENGTH,
        pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


class Model(nn.Module):
    """Embedding, a block, a head; parameters are integers times powers of two."""

    def __init__(self, width: int = 16, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, dtype=dtype)
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.hidden = nn.Linear(width, 2 * width, dtype=dtype)
        self.head = nn.Linear(2 * width, VOCABULARY, dtype=dtype)
        with torch.no_grad():
            for k, p in enumerate(self.parameters()):
                drawn = (torch.arange(p.numel()) * 29 + 7 * k) % 31 - 15
                p.copy_((drawn * 2.0**-7).reshape(p.shape))

    def forward(self, ids: Tensor) -> Tensor:
        """The loss of each next token."""
        hidden = self.hidden(self.norm(self.embedding(ids[:, :-1]))).relu()
        logits = self.head(hidden).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def kept(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Copies of every weight and state, and the numbers of the groups."""
    found: dict[str, Any] = {f"weight.{n}": p.detach().clone() for n, p in model.named_parameters()}
    for k, state in optimizer.state_dict()["state"].items():
        found |= {f"{k}.{n}": v.clone() if isinstance(v, Tensor) else v for n, v in state.items()}
    for k, group in enumerate(optimizer.state_dict()["param_groups"]):
        found |= {f"group{k}.{name}": group[name] for name in ("lr", "weight_decay")}
    return found


def assert_equal(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Fail where two results of `kept` differ in a name, a number or a bit."""
    assert actual.keys() == expected.keys()
    assert any(name.endswith("exp_avg") for name in actual), "states are there"
    for name, value in expected.items():
        if isinstance(value, Tensor):
            assert_same_bits(actual[name], value, name)
        else:
            assert actual[name] == value, name
