"""PyTorch's own engines, on 1 to 4 processes, with the bits of one process and no engine."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.helpers.everyday import everyday
from tests.helpers.processes import World
from tests.optim.sharding import engines

BF16, FP32 = torch.bfloat16, torch.float32

SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 2e-2, "precision": "plus"}),
    ("AdamW", {"lr": 2e-2, "precision": "stochastic", "max_grad_norm": 1.0}),
    ("SGD", {"lr": 2e-3, "momentum": 0.9, "precision": "light", "low": "stochastic"}),
]

# Each with the numbers of processes by default, and those that are slow.
ENGINES: list[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ("ddp", {}, (2,), (1, 3, 4)),
    ("fsdp", {}, (3, 4), (1, 2)),
    ("fsdp_policy", {"param_dtype": BF16, "reduce_dtype": BF16}, (), (2, 3)),
    ("fsdp_policy", {"param_dtype": BF16, "reduce_dtype": FP32}, (3,), (1, 2, 4)),
    ("fsdp_policy", {"dtype": FP32, "param_dtype": BF16, "reduce_dtype": FP32}, (2,), (1, 3, 4)),
    ("fsdp_offload", {}, (3,), (2, 4)),
    ("fsdp_ignored", {}, (4,), (1, 2, 3)),
    ("fsdp_meta", {}, (2,), (3,)),
    ("fsdp_checkpointing", {}, (2,), (3,)),
    ("fsdp_compiled", {}, (), (2,)),
    ("hsdp", {"shape": (2, 1)}, (), (2,)),
    ("hsdp", {"shape": (2, 2)}, (4,), ()),
    ("tensor_parallel", {}, (2,), (1, 3, 4)),
    ("tensor_parallel", {"sequence": True}, (3,), (1, 2, 4)),
    ("fsdp_tensor_parallel", {"shape": (1, 3)}, (), (3,)),
    ("fsdp_tensor_parallel", {"shape": (2, 2)}, (4,), ()),
    ("fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True}, (4,), ()),
]

# Rules and storages of other kinds, on the layouts that have everything.
MORE: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 2e-2, "precision": "split16", "max_grad_norm": 0.5}),
    ("AdamW", {"lr": 2e-2, "precision": "master", "weight_decay": 0.5}),
    ("Lion", {"lr": 2e-3, "precision": "light", "compute_dtype": BF16}),
    ("NAdam", {"lr": 2e-2, "precision": "split8"}),
    ("Adam", {"lr": 2e-2, "precision": "eco_stochastic"}),
]

_KINDS = [(name, options) for name, options, *_ in ENGINES]
_SLOW = [(name, options, size) for name, options, _, slow in ENGINES for size in slow]
# By default one case of each way to cut; what engines do besides is slow.
CASES = everyday(
    [
        (name, options, size)
        for name, options, sizes, slow in ENGINES
        for size in sorted((*sizes, *slow))
    ],
    lambda name, options, size: (
        name in ("ddp", "fsdp", "hsdp", "tensor_parallel", "fsdp_tensor_parallel")
        and not options.get("sequence")
        and (name, options, size) not in _SLOW
    ),
    id=lambda name, options, size: f"{name}-{_KINDS.index((name, options))}-{size}",
)


@functools.cache
def _one(dtype: torch.dtype, more: bool) -> Any:
    return engines.trained("plain", {"dtype": dtype}, MORE if more else SEVERAL)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("engine", "options", "size"), CASES)
def test_engine(world: World, engine: str, options: dict[str, Any], size: int) -> None:
    for found in world.run(size, engines.trained, engine, options, SEVERAL):
        assert found == _one(options.get("dtype", BF16), False)


# By default the rules are tried with hand-made gradients (test_same_bits.py).
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "options"),
    [("fsdp", {}), ("fsdp_tensor_parallel", {"shape": (2, 2), "sequence": True})],
)
def test_other_rules(world: World, engine: str, options: dict[str, Any]) -> None:
    for found in world.run(4, engines.trained, engine, options, MORE):
        assert found == _one(BF16, True)
