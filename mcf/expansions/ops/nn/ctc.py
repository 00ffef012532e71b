"""Implement the loss of connectionist temporal classification (CTC)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.nn.losses import reduced


def _padded(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return targets as [batch, longest]; concatenated targets are split by their lengths."""
    if targets.dim() == 2:
        return targets
    longest = int(lengths.max()) if len(lengths) else 0
    rows = targets.new_zeros(len(lengths), max(1, longest))
    if int(lengths.sum()) != len(targets):
        raise RuntimeError(
            f"ctc_loss: targets must have sum(target_lengths) = {int(lengths.sum())} elements, got "
            f"{len(targets)}"
        )
    for row, part in zip(rows, torch.split(targets, lengths.tolist()), strict=True):
        row[: len(part)] = part
    return rows


def _shifted(x: Any, places: int) -> Any:
    """Return x[..., s - places], filled with -inf at the ends; `places` may be negative."""
    fill = x.new_full((*x.shape[:-1], min(abs(places), x.shape[-1])), -math.inf)
    if places > 0:
        return torch.cat([fill, x[..., : x.shape[-1] - fill.shape[-1]]], -1)
    return torch.cat([x[..., fill.shape[-1] :], fill], -1)


def _sums(emitted: Any, skip: Tensor, first: Tensor, begin: Any, forwards: bool) -> Any:
    """Return the log of the sum over paths to each state at each time, [time, batch, states].

    Args:
        emitted: log-probability of each state's symbol, [time, batch, states].
        skip: whether the state may be reached from two states before, skipping a blank.
        first: the time at which paths of each batch element begin, [batch].
        begin: 0 for the states in which paths may begin, else -inf, [batch, states].
        forwards: True to run forwards in time, False for backwards.
    """
    times = range(len(emitted)) if forwards else range(len(emitted) - 1, -1, -1)
    step = 1 if forwards else -1
    jump = skip if forwards else _moved(skip)
    found: list[Any] = [None] * len(emitted)
    before = torch.full_like(begin, -math.inf)
    for t in times:
        two = torch.where(jump, _shifted(before, 2 * step), -math.inf)
        paths = torch.logsumexp(torch.stack([before, _shifted(before, step), two]), 0)
        paths = torch.where((first == t)[:, None], begin, paths)
        before = found[t] = paths + emitted[t]
    return torch.stack(found)


def _moved(skip: Tensor) -> Tensor:
    """Return whether a path may go from each state to the state two further."""
    return torch.cat([skip[:, 2:], torch.zeros_like(skip[:, :2])], 1)


class _Ctc(torch.autograd.Function):
    """CTC loss, -log of the sum over all alignments, with the derivative exp(x) - posterior.

    As in PyTorch, it is the derivative by the argument of log_softmax, which the derivative of
    log_softmax passes on unchanged.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Any, targets: Tensor, lengths: Tensor, counts: Tensor, blank: int, zero: bool
    ) -> Any:
        batch, longest = targets.shape
        states = torch.full((batch, 2 * longest + 1), blank, device=x.device)
        states[:, 1::2] = targets
        skip = torch.zeros_like(states, dtype=torch.bool)
        skip[:, 3::2] = states[:, 3::2] != states[:, 1:-2:2]
        emitted = x.gather(2, states.expand(len(x), -1, -1))
        place = torch.arange(states.shape[1], device=x.device)
        ends = ((place == 2 * counts[:, None]) | (place == 2 * counts[:, None] - 1)) & (place >= 0)
        zeros = x.new_zeros(states.shape)
        begin = torch.where((place < 2) & (place <= 2 * counts[:, None]), zeros, -math.inf)
        forwards = _sums(emitted, skip, torch.zeros_like(lengths), begin, True)
        last = forwards[(lengths - 1).clamp_min(0), torch.arange(batch, device=x.device)]
        total = torch.logsumexp(torch.where(ends, last, -math.inf), 1)
        # With no time steps only the empty target has probability 1.
        total = torch.where(
            lengths > 0, total, torch.where(counts == 0, 0.0, zeros[:, 0] - math.inf)
        )
        loss = -total
        impossible = loss == math.inf
        ctx.zero = zero & impossible
        if x.requires_grad or ctx.needs_input_grad[0]:
            finish = torch.where(ends, zeros, -math.inf)
            backwards = _sums(emitted, skip, lengths - 1, finish, False)
            ctx.save_for_backward(x, emitted, forwards, backwards, total)
            ctx.options = states, lengths
        return torch.where(ctx.zero, 0.0, loss)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, emitted, forwards, backwards, total = ctx.saved_tensors
        states, lengths = ctx.options
        paths = forwards + backwards - emitted - total[None, :, None]
        live = (forwards > -math.inf) & (backwards > -math.inf)
        share = torch.where(live, torch.where(live, paths, 0.0).exp(), 0.0)
        posterior = torch.zeros_like(x).scatter_add(2, states.expand(len(x), -1, -1), share)
        slope = x.exp() - posterior
        slope = torch.where((total == -math.inf)[None, :, None], math.nan, slope)
        inside = torch.arange(len(x), device=x.device)[:, None] < lengths
        kept = inside & ~ctx.zero
        return torch.where(kept[..., None], slope * grad[None, :, None], 0.0), *(None,) * 5


@implements(F.ctc_loss)
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return -log of the probability of the targets, over all alignments (Graves et al. 2006).

    Args:
        log_probs: [time, batch, classes] or [time, classes].
        targets: [batch, longest], or the targets of the batch concatenated.
        input_lengths: number of time steps of each batch element.
        target_lengths: number of targets of each; "mean" divides by them.
        blank: the blank class.
        reduction: "none", "mean" or "sum".
        zero_infinity: return 0 with zero gradient if there is no alignment.
    """
    single = log_probs.dim() == 2
    x = log_probs[:, None] if single else log_probs
    device = x.device
    lengths, counts = (
        torch.as_tensor(n, device=device).reshape(-1).long()
        for n in (input_lengths, target_lengths)
    )
    given = torch.as_tensor(targets, device=device).long()
    if not 0 <= blank < x.shape[2]:
        raise RuntimeError(f"ctc_loss: blank must be from 0 to {x.shape[2] - 1}, got {blank}")
    for name, n in (("input_lengths", lengths), ("target_lengths", counts)):
        if len(n) != x.shape[1] or bool((n < 0).any()):
            raise RuntimeError(
                f"ctc_loss: {name} must be {x.shape[1]} numbers >= 0, got {n.tolist()}"
            )
    if bool((lengths > len(x)).any()):
        raise RuntimeError(
            f"ctc_loss: input_lengths must be at most {len(x)}, got {lengths.tolist()}"
        )
    rows = _padded(given[None] if single and given.dim() == 1 else given, counts)
    if int(counts.max()) > rows.shape[1] or len(rows) != x.shape[1]:
        raise RuntimeError(
            f"ctc_loss: targets must hold target_lengths {counts.tolist()}, got shape "
            f"{list(given.shape)}"
        )
    # Padding beyond a target's length is ignored.
    inside = torch.arange(rows.shape[1], device=device) < counts[:, None]
    rows = torch.where(inside, rows, blank)
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < x.shape[2]:
        raise RuntimeError(f"ctc_loss: targets must be from 0 to {x.shape[2] - 1}")
    loss: Any = _Ctc.apply(x, rows, lengths, counts, blank, zero_infinity)  # type: ignore[no-untyped-call]
    if reduction == "mean":
        return (loss / counts.clamp_min(1)).mean()
    return reduced(loss[0] if single else loss, reduction)
