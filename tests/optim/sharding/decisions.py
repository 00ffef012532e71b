"""What all processes must decide alike, under real engines: run by each of several processes."""

from __future__ import annotations

import math
from typing import Any

import torch

import mcf.optim
from mcf.optim.sharding.shards import local, part
from tests.optim.sharding import engines
from tests.optim.sharding.engines import Engine, plain_name, quiet


def _made(engine: str, options: dict[str, Any], **given: Any) -> tuple[Engine, Any]:
    made = getattr(engines, engine)(**options)
    given = {"lr": 2e-2, "precision": "plus", **given}
    return made, mcf.optim.AdamW(made.named(), **given)


def _spoil(engine: Engine, name: str, value: float, index: int) -> None:
    """Put a value into one element of a gradient, where that is: a process and its replicas."""
    for own, p in engine.named():
        if plain_name(own) == name:
            numbers = part(p, torch.arange(p.numel()).view(p.shape))
            local(p.grad)[numbers == index % p.numel()] = value  # type: ignore[arg-type]


def clipped(engine: str, options: dict[str, Any]) -> Any:
    """The norms of all steps, bit for bit, and what became of the weights."""
    with quiet():
        made, optimizer = _made(engine, options, max_grad_norm=0.75)
        norms = []
        for t in range(3):
            made.train(optimizer, [t])
            norms.append(optimizer.grad_norm.item().hex())
        return norms, made.digests(optimizer)


def skipped(engine: str, options: dict[str, Any], name: str, value: float, index: int) -> Any:
    """A step, one that one process spoils, another; the same without the second."""
    found = []
    with quiet():
        for spoiled in (True, False):
            made, optimizer = _made(engine, options, nonfinite="skip", max_grad_norm=1.0)
            made.train(optimizer, [0])
            if spoiled:
                optimizer.zero_grad()
                made.backward(1)
                _spoil(made, name, value, index)
                optimizer.step()
            made.train(optimizer, [2])
            found.append(made.digests(optimizer))
    return found


def refused(engine: str, options: dict[str, Any], name: str, value: float, index: int) -> Any:
    """The message, and whether nothing was changed."""
    with quiet():
        made, optimizer = _made(engine, options, nonfinite="raise")
        made.train(optimizer, [0])
        before = made.digests(optimizer)
        optimizer.zero_grad()
        made.backward(1)
        _spoil(made, name, value, index)
        try:
            optimizer.step()
            text = "stepped"
        except mcf.optim.NonFiniteGradientError as error:
            text = str(error)
        unchanged = made.digests(optimizer) == before
        # Nobody hangs, and the next step is as any.
        made.train(optimizer, [2])
        return text, unchanged


def spread(engine: str, options: dict[str, Any], value: float, index: int) -> Any:
    """With `nonfinite="torch"`: the norm, and how many weights are NaN in the end."""
    with quiet():
        made, optimizer = _made(engine, options, max_grad_norm=1.0)
        made.backward(0)
        _spoil(made, "head.weight", value, index)
        optimizer.step()
        kept = optimizer.grad_norm.item()
        return str(kept), all(
            bool(local(p.detach()).isfinite().all()) for _, p in made.named() if p.grad is not None
        )


def measured(engine: str, options: dict[str, Any]) -> list[dict[str, float]]:
    """The metrics of each step."""
    with quiet():
        made, optimizer = _made(engine, options, track_metrics=True)
        found = []
        for t in range(2):
            made.train(optimizer, [t])
            found.append(optimizer.metrics(flat=True))
        return found


def scaled(engine: str, options: dict[str, Any], index: int, fused: bool) -> Any:
    """Steps under a GradScaler, one of which one process finds an infinity in."""
    with quiet():
        made, optimizer = _made(engine, options, max_grad_norm=1.0, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        scales = []
        for t in range(4):
            optimizer.zero_grad()
            scaler.scale(torch.zeros(()))
            made.backward(t, scale=scaler.get_scale())
            if t == 1:
                _spoil(made, "head.weight", math.inf, index)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, made.digests(optimizer)
