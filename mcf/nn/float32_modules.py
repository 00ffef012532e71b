"""Convert models to 16 bits except for some modules: norm layers, rotary embeddings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

# PyTorch's norm layers; their parameters are vectors, a small part of any model.
NORMS: tuple[type[nn.Module], ...] = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)
_HALF = (torch.bfloat16, torch.float16)


def keep_float32(
    model: nn.Module,
    which: Sequence[type[nn.Module] | str] = NORMS,
    dtype: torch.dtype = torch.bfloat16,
) -> list[str]:
    """Convert a float32 model to 16 bits, except for the modules named by `which`.

        model = Llama(config)                                   # float32
        mcf.nn.keep_float32(model, [*mcf.nn.NORMS, LlamaRMSNorm, "model.rotary_emb"])
        optimizer = mcf.optim.AdamW(model.parameters(), precision="plus")

    It replaces `model.to(torch.bfloat16)`, which would round a rotary embedding's frequencies, too.
    Call it before creating optimizers and sharing weights. The float32 modules accept 16-bit inputs
    (hooks convert them to float32, exactly) and return results in `dtype`, rounded once; so the
    modules around them see no difference. Gradients of their parameters are float32, and optimizers
    of `mcf.optim` step them in float32.

    Copies, pickles and `state_dict` work as for any model. A later `model.to(dtype)` converts
    everything.

    Args:
        model: all its floating-point parameters and buffers in float32; changed in place.
        which: classes (and those derived from them) and names in `model.named_modules()` of the
            modules that stay float32, with their submodules; each string must exist. The default is
            PyTorch's norm layers; other libraries have classes of their own.
        dtype: bfloat16 or float16.

    Returns:
        The names of the outermost float32 modules, in the model's order.

    Raises:
        TypeError: for a model that is not a module, and for an entry of `which` that is neither a
            class nor a string.
        ValueError: for another `dtype`, an unknown name, the model itself in `which`, a parameter
            shared by both parts, and tensors of another floating-point dtype; the model is then
            unchanged.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if dtype not in _HALF:
        raise ValueError(f"dtype must be torch.bfloat16 or torch.float16, got {dtype!r}")
    kept = _outermost(model, which)
    inside = {id(m) for name in kept for m in model.get_submodule(name).modules()}
    there = [m for m in model.modules() if id(m) in inside]
    others = [m for m in model.modules() if id(m) not in inside]
    _check(model, there, others)

    def narrow(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() else t

    for module in others:
        module._apply(narrow, recurse=False)  # type: ignore[no-untyped-call]
    # Not a closure, so that models with the hook can be pickled.
    give = functools.partial(_give, dtype)
    for name in kept:
        module = model.get_submodule(name)
        module.register_forward_pre_hook(_take, with_kwargs=True)
        module.register_forward_hook(give)
    return kept


def _outermost(model: nn.Module, which: Sequence[type[nn.Module] | str]) -> list[str]:
    if isinstance(which, (str, type)):
        which = [which]
    classes = tuple(x for x in which if isinstance(x, type))
    names = {x for x in which if isinstance(x, str)}
    for x in which:
        if not isinstance(x, (str, type)):
            raise TypeError(f"which: expected module classes or names, got {x!r}")
    found = dict(model.named_modules())
    if lost := sorted(names - found.keys()):
        raise ValueError(f"which names {lost[0]!r}, which is not in model.named_modules()")
    kept: list[str] = []
    for name, module in found.items():
        if not (isinstance(module, classes) or name in names):
            continue
        if not name:
            raise ValueError("which contains the model itself: nothing would be converted")
        if not any(name.startswith(f"{outer}.") for outer in kept):
            kept.append(name)
    return kept


def _check(model: nn.Module, there: list[nn.Module], others: list[nn.Module]) -> None:
    staying = {id(t): t for m in there for t in _own(m)}
    for module in others:
        if any(id(t) in staying for t in _own(module)):
            raise ValueError("a parameter or buffer is in a module that stays and in another one")
    names = [*model.named_parameters(), *model.named_buffers()]
    for name, t in names:
        if t.is_floating_point() and t.dtype != torch.float32:
            raise ValueError(
                f"{name} must be float32, got {t.dtype}: call keep_float32 instead of "
                "model.to(dtype), which also rounds modules that should stay"
            )


def _own(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


def _take(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map(_wide, args), tree_map(_wide, kwargs)


def _give(dtype: torch.dtype, module: nn.Module, args: Any, result: Any) -> Any:
    def rounded(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x

    return tree_map(rounded, result)
