"""Training of decoders, and other projects' optimizers, for the GPU day."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator

import torch
from gpu_measure import Case, Size, Work
from gpu_steps import FUSED_FLOAT32, Recipe, groups, matrix, our_recipe, recipes, stepping
from pretraining import decoder
from pretraining.shapes import SHAPES, gpt
from strategy_variants import stored_bytes, theirs
from torch.nn import functional as F
from torch.optim import Optimizer

# The smallest is for Triton's interpreter.
MODELS = {**SHAPES, "gpt-tiny": gpt(1, 32, 2, 16)}


def training(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield forward, backward and step of decoders, and saving the first one's optimizer."""
    for k, (model, windows) in enumerate(size.models):
        # All recipes train the first model, a few the larger one.
        for recipe in recipes(size)[: 6 if k else None]:
            make = functools.partial(updating, recipe, model, windows, device, size)
            yield Case(f"{model}, {recipe.name}", make, recipe.ours)
    yield from _saving(*size.models[0], device, size)


def _saving(model: str, windows: int, device: torch.device, size: Size) -> Iterator[Case]:
    for recipe in (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32):
        make = functools.partial(saving, recipe, model, windows, device, size)
        yield Case(f"{model}, {recipe.name}, checkpoint", make, recipe.ours)


@functools.lru_cache(1)
def _model(name: str, dtype: torch.dtype, device: torch.device, size: Size) -> torch.nn.Module:
    """Return a model with random weights, which are made on the device."""
    shape = MODELS[name]
    torch.manual_seed(0)
    with torch.device(device):
        model = decoder.Decoder(shape, size.vocabulary or shape.vocabulary).to(dtype)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, 0, 0.02)
    return model


def _trained(
    recipe: Recipe, name: str, windows: int, device: torch.device, size: Size
) -> tuple[torch.nn.Module, Optimizer, Callable[[], None]]:
    """Return a model, its optimizer and an update.

    Rates are zero, so the model stays as it is. Float32 weights train under autocast to bf16.
    """
    model, shape = _model(name, recipe.weights, device, size), MODELS[name]
    wide = recipe.weights == torch.float32
    model.zero_grad(set_to_none=True)
    params = list(model.parameters())
    optimizer = recipe.make(groups(params), lr=0.0, betas=(0.9, 0.999))
    vocabulary, context = size.vocabulary or shape.vocabulary, size.context or shape.context
    made = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(vocabulary, (windows, context + 1), generator=made, device=device)

    def update() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=wide):
            logits = model(tokens[:, :-1]).flatten(0, 1).float()
        F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, update


def updating(recipe: Recipe, name: str, windows: int, device: torch.device, size: Size) -> Work:
    """Return an update of a model."""
    model, optimizer, update = _trained(recipe, name, windows, device, size)
    params = list(model.parameters())
    count = sum(p.numel() for p in params)
    tokens = windows * (size.context or MODELS[name].context)

    def rows(seconds: float) -> dict[str, float]:
        return {
            "tokens/s": tokens / seconds,
            "parameters": count,
            "stored bytes/param": stored_bytes(optimizer, params) / count,
        }

    return Work(update, rows)


def saving(recipe: Recipe, name: str, windows: int, device: torch.device, size: Size) -> Work:
    """Return a checkpoint of an optimizer: its `state_dict`, written by `torch.save`."""
    _, optimizer, update = _trained(recipe, name, windows, device, size)
    update()
    written = [0]

    def save() -> None:
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        written[0] = file.tell()

    return Work(save, lambda s: {"MB": 1e-6 * written[0]})


def peers(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield steps and updates of other projects' optimizers; those that compile long are last."""
    here = {
        v.family: Recipe(v.name, _peer(v.make), ours=False)
        for v in theirs()
        if v.weights == torch.bfloat16 and v.family not in ("torch", "torchao")
    }
    if device.type != "cuda":
        # "Quantization requires a CUDA device."
        del here["flashoptim"]
    model, windows = size.models[0]
    for recipe in here.values():
        yield _peer_step(recipe, device, size)
    # A compilation for each shape of the model.
    slow = here.pop("heavyball")
    for recipe in (*here.values(), *((slow,) if device.type == "cuda" else ())):
        make = functools.partial(updating, recipe, model, windows, device, size)
        yield Case(f"{model}, {recipe.name}", make, ours=False)
    # On a CPU its compilation takes minutes.
    for v in theirs() if device.type == "cuda" else ():
        if v.family == "torchao":
            yield _peer_step(Recipe(v.name, _peer(v.make), ours=False), device, size)


def _peer_step(recipe: Recipe, device: torch.device, size: Size) -> Case:
    make = functools.partial(stepping, recipe, matrix(size.params), device, size)
    return Case(recipe.name, make, ours=False)


def _peer(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    return lambda groups, lr, betas: make(groups, lr, betas[1], 0)
