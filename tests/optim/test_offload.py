"""A model whose states are kept elsewhere, by copies that are made as late as they may be."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, AdamW, CPUOffloadOptimizer, Lion, Muon, ScheduleFreeAdamW, StableAdamW
from mcf.optim.companions.transit import Transfers
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP32
from tests.optim.helpers import assert_same, parameter, random, scaler

pytestmark = pytest.mark.usefixtures("on_torch")


class Late(Transfers):
    """Tensors of the CPU as if they were elsewhere; nothing is copied before somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        # In the order of a stream: what is copied where.
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.sent = 0

    def is_away(self, p: Tensor) -> bool:
        return True

    def host_like(self, t: Tensor) -> Tensor:
        return torch.full_like(t, torch.nan)

    def download(self, there: Tensor, here: Tensor) -> Any:
        here.fill_(torch.nan)
        mine = (there, here)
        self.waiting.append(mine)
        self.sent += 1
        return lambda: self._until(mine)

    def upload(self, here: Tensor, there: Tensor) -> None:
        # What was there before is not to be read any more; and torch counts the writing.
        with torch.no_grad():
            there.fill_(torch.nan)
        self.waiting.append((here, there))

    def join(self) -> None:
        self._until(None)

    def settle(self) -> None:
        self._until(None)

    def _until(self, last: Any) -> None:
        """Copy in the order of a stream."""
        if last is not None and not any(last is each for each in self.waiting):
            return
        while self.waiting:
            there, here = first = self.waiting.pop(0)
            here.data.copy_(there)
            if first is last:
                return


# Of the model's parameters those that stay are none, or some.
ALL, SMALL = {"minimal_size": 0}, {"minimal_size": 20}


class Offload(CPUOffloadOptimizer):
    _transfers_class = Late


def model() -> nn.Module:
    layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        for k, p in enumerate(layers.parameters()):
            p.copy_(random(p.shape, FP32, k, 0.3))
    net = layers.to(BF16)
    net[2].to(FP32)
    return net


def loss_of(net: nn.Module, t: int) -> Tensor:
    x = net[1](net[0](random((4, 8), BF16, t)))
    loss: Tensor = net[3](net[2](x.float()).to(BF16)).float().square().mean()
    return loss


def backward(net: nn.Module, t: int) -> None:
    loss_of(net, t).backward()


def groups(net: nn.Module) -> list[dict[str, Any]]:
    named = list(net.named_parameters())
    return [{"params": named[:3]}, {"params": named[3:], "lr": 0.05}]


Change = Callable[[nn.Module, Any, int], Any]


def train(make: Any, micro: int = 1, count: int = 3, change: Change | None = None) -> Any:
    """The weights, states and rates after some steps, of as many micro-batches each.

    `change` is called between the backward pass and the step.
    """
    net = model()
    optimizer = make(groups(net))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for t in range(count):
        for k in range(micro):
            backward(net, 10 * t + k)
        if change is not None:
            change(net, optimizer, t)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return found(net, optimizer)


def assert_offloading_changes_no_bit(
    make: Any, micro: int = 1, change: Change | None = None, how: Any = None, **options: Any
) -> None:
    options = {"lr": 0.01, **options}
    alone = train(lambda g: make(g, **options), micro, change=change)
    how = ALL if how is None else how
    assert_same(train(lambda g: Offload(g, make, **how, **options), micro, change=change), alone)


def found(net: nn.Module, optimizer: Any) -> dict[str, Any]:
    state = optimizer.state_dict()
    return {
        **{n: p.detach().clone() for n, p in net.named_parameters()},
        **{f"{k}.{n}": copy.deepcopy(t) for k, e in state["state"].items() for n, t in e.items()},
        "rates": torch.tensor([g["lr"] for g in optimizer.param_groups]),
        "saved rates": torch.tensor([g["lr"] for g in state["param_groups"]]),
    }


CASES: list[tuple[Any, dict[str, Any]]] = [
    (AdamW, {}),
    (AdamW, {"precision": "bf16_sr"}),
    (AdamW, {"precision": "4bit", "weight_decay": 0.1}),
    (AdamW, {"max_grad_norm": 0.1}),
    (AdamW, {"nonfinite": "skip", "track_metrics": True}),
    (AdamW, {"precision": "plus", "low": "stochastic", "stream_by": "place"}),
    (SGD, {"momentum": 0.9, "precision": "split16"}),
    (StableAdamW, {}),
]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(("micro", "size"), [(1, ALL), (1, SMALL), (3, SMALL)])
@pytest.mark.parametrize(("make", "options"), CASES, ids=str)
def test_rules_and_precisions_have_the_same_bits(
    make: Any, options: dict[str, Any], micro: int, size: dict[str, int], offload: bool
) -> None:
    """Small parameters may stay without copies; one and three micro-batches."""
    how = {"offload_gradients": offload, **size}
    assert_offloading_changes_no_bit(make, micro, how=how, **options)


def test_numba_has_the_same_bits() -> None:
    with mcf.executor("numba"):
        assert_offloading_changes_no_bit(AdamW, how=SMALL)


def clipped(net: nn.Module, optimizer: Any, t: int) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 0.01, foreach=False)


def rewritten(net: Any, optimizer: Any, t: int) -> None:
    """Write weights, with which the next step begins."""
    with torch.no_grad():
        net[0].weight.mul_(0.5)
    if t == 1:
        net[0].weight.data[0, 0] = 2.0
        optimizer.reload_model_params()
        assert (optimizer.master_weight(net[0].weight)[0, 0] == 2.0).all()


def set_and_taken_away(net: Any, optimizer: Any, t: int) -> None:
    net[0].weight.grad = random((16, 8), BF16, t)
    if t == 1:
        net[0].bias.grad = None
    # Again below, with the gradients that are there.
    optimizer.step()


@pytest.mark.parametrize(
    ("change", "micro", "options"),
    [
        (clipped, 2, {}),
        (rewritten, 1, {"precision": "plain"}),
        (set_and_taken_away, 1, {}),
    ],
)
def test_gradients_and_weights_changed_by_others_have_the_same_bits(
    change: Change, micro: int, options: dict[str, Any]
) -> None:
    assert_offloading_changes_no_bit(AdamW, micro, change, **options)


def test_each_gradient_travels_once_and_is_freed() -> None:
    for offload in (False, True):
        net = model()
        optimizer = Offload(net.parameters(), AdamW, lr=0.01, **SMALL, offload_gradients=offload)
        for t in range(3):
            backward(net, t)
            away = [p for p in net.parameters() if p.numel() >= 20]
            assert all((p.grad is None) == offload for p in away)
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer._transfers.sent == 3 * len(away)
        # The second step made no new memory.
        assert {len(some) for some in optimizer._gradients._free.values()} == {1}


def offloaded(g: Any) -> Any:
    return Offload(g, AdamW, **SMALL, lr=0.01, precision="bf16_sr")


def alone(g: Any) -> Any:
    return AdamW(g, 0.01, precision="bf16_sr")


@pytest.mark.parametrize(("first", "second"), [(alone, offloaded), (offloaded, alone)])
def test_checkpoints_of_either_are_loaded_into_the_other(first: Any, second: Any) -> None:
    expected = train(alone, count=4)
    net = model()
    optimizer = first(groups(net))
    for t in range(4):
        if t == 2:
            saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
            net = model()
            optimizer = second(groups(net))
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        backward(net, 10 * t)
        optimizer.step()
        optimizer.zero_grad()
        if t % 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
    mine = found(net, optimizer)
    assert_same({n: mine[n] for n in expected}, expected)


def test_groups_that_are_added_have_the_same_bits() -> None:
    def make(optimizer_of: Any) -> Any:
        def added(both: list[dict[str, Any]]) -> Any:
            optimizer = optimizer_of(both[:1])
            with pytest.raises(ValueError, match=r"Invalid learning rate: -1\.0"):
                optimizer.add_param_group({**both[1], "lr": -1.0})
            optimizer.add_param_group(both[1])
            return optimizer

        return added

    alone = train(make(lambda g: AdamW(g, 0.01)))
    assert_same(train(make(lambda g: Offload(g, AdamW, **ALL, lr=0.01))), alone)


def test_zero_grad_forgets_what_travels() -> None:
    net = model()
    optimizer = Offload(net.parameters(), AdamW, **ALL, lr=0.01, offload_gradients=True)
    before = [p.detach().clone() for p in net.parameters()]
    backward(net, 0)
    optimizer.zero_grad()
    optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        assert_same_bits(p.detach(), old)
    backward(net, 0)
    optimizer.remove()
    backward(net, 1)
    assert all(p.grad is not None for p in net.parameters())


def test_steps_under_a_scaler_have_the_same_bits() -> None:
    options, results = {"lr": 0.01, "momentum": 0.9}, []
    for make in (lambda g: SGD(g, **options), lambda g: Offload(g, SGD, **options, **SMALL)):
        net = model()
        optimizer, scale = make(groups(net)), scaler()
        for t in range(4):
            scale.scale(loss_of(net, t) * (torch.inf if t == 2 else 1.0)).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
        results.append(found(net, optimizer))
    assert_same(*results)


def test_on_a_cpu_nothing_travels() -> None:
    optimizer = CPUOffloadOptimizer(groups(model()), AdamW, lr=0.01, **ALL)
    assert not optimizer._copies.of
    alone = train(lambda g: AdamW(g, 0.01))
    assert_same(train(lambda g: CPUOffloadOptimizer(g, AdamW, lr=0.01)), alone)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer_class": torch.optim.AdamW}, TypeError, "allowed are those of mcf.optim"),
    ({"optimizer_class": ScheduleFreeAdamW}, TypeError, "without train and eval modes"),
    ({"minimal_size": -1}, ValueError, "Invalid minimal_size: -1"),
    ({"offload_gradients": 1}, TypeError, "offload_gradients must be True or False"),
    ({"capturable": True}, ValueError, "capturable=True.*allowed is False"),
    ({"lr": -1.0}, ValueError, "Invalid learning rate: -1.0"),
]


@pytest.mark.parametrize(("options", "error", "words"), REFUSED, ids=str)
def test_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Offload([parameter((2, 2), BF16)], **{"optimizer_class": AdamW, **options})


def test_refused_in_use() -> None:
    p = parameter((2, 2), BF16)
    optimizer = Offload([p], Lion, lr=0.01, **ALL, offload_gradients=True)
    with pytest.raises(RuntimeError, match=r"step\(closure\).*loss.backward\(\) before step"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.deepcopy(optimizer)
    optimizer.found_inf = torch.zeros(1)
    with pytest.raises(RuntimeError, match="offload_gradients=True under a GradScaler"):
        optimizer.step()
    pair = mcf.tensor([1.0, 2.0], terms=2, dtype=BF16)
    with pytest.raises(TypeError, match="an expansion tensor; allowed are plain tensors"):
        Offload([Parameter(pair)], AdamW)


def test_muon_has_the_same_bits() -> None:
    options, results = {"lr": 0.01, "weight_decay": 0.1}, []
    for make in (lambda p: Muon(p, **options), lambda p: Offload(p, Muon, **ALL, **options)):
        p = parameter((8, 4), BF16, 1)
        optimizer = make([p])
        for t in range(3):
            (p * random((8, 4), BF16, t)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(p.detach())
    assert_same_bits(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("micro", [1, 3])
def test_on_a_gpu(micro: int, offload: bool) -> None:
    """Real streams, and the kernels of both: the bits of the optimizer on the GPU."""
    wide, results = 1024, []
    options = {"lr": 0.01, "precision": "bf16_sr"}
    how = {"offload_gradients": offload, "minimal_size": 2048}
    for make in (
        lambda p: AdamW(p, **options),
        lambda p: CPUOffloadOptimizer(p, AdamW, **how, **options),
    ):
        params = [Parameter(random((wide, wide), BF16, k, 0.03).cuda()) for k in range(6)] + [
            Parameter(random(wide, BF16, 9).cuda())
        ]
        with mcf.executor("auto"):
            optimizer = make(params)
            for t in range(4 * micro):
                x = random((wide, wide), BF16, 20 + t).cuda()
                for p in params:
                    x = torch.tanh(x @ p) if p.dim() == 2 else x * p
                x.float().square().mean().backward()
                if t % micro == micro - 1:
                    optimizer.step()
                    optimizer.zero_grad()
        results.append([p.detach().cpu() for p in params])
    for mine, theirs in zip(*results, strict=True):
        assert_same_bits(mine, theirs)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_an_interrupt_finds_the_step_done(whole: bool) -> None:
    """A signal when the first weight is sent back, or when the optimizer has stepped all copies."""

    class Interrupted(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Interrupted

    options = {"lr": 0.01, "max_grad_norm": 1e6 if whole else None}
    nets = model(), model()
    optimizers = (
        Offload(nets[0].parameters(), AdamW, **ALL, **options),
        AdamW(nets[1].parameters(), **options),
    )
    for net in nets:
        backward(net, 0)
    inner = optimizers[0].optimizer
    inner.register_step_post_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Interrupted):
            optimizers[0].step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    optimizers[1].step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert_same_bits(p.detach(), q.detach())


@pytest.mark.sampled
@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("where", ["upload", "kernel", "rest"])
def test_a_step_after_an_error_takes_the_others_alone(
    where: str, whole: bool, freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error when the third weight is sent back, or when a copy or what has none is stepped."""
    options = {"lr": 0.01, "max_grad_norm": 1e-2 if whole else None}
    nets = model(), model()
    mine = Offload(nets[0].parameters(), AdamW, **SMALL, offload_gradients=freed, **options)
    right = AdamW(nets[1].parameters(), **options)
    calls = []

    def failing(count: int, work: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == count:
                raise MemoryError
            return work(*args, **options)

        return call

    for net in nets:
        backward(net, 0)
    transfers = mine._transfers
    with monkeypatch.context() as patch:
        if where == "upload":
            patch.setattr(transfers, "upload", failing(2, transfers.upload))
        elif where == "kernel":
            patch.setattr(mine.optimizer, "_take", failing(1 if whole else 2, mine.optimizer._take))
        else:
            patch.setattr(mine.optimizer, "step", failing(1, mine.optimizer.step))
        with pytest.raises(MemoryError):
            mine.step()
        mine.step()
    right.step()
    for _ in range(2):
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert_same_bits(p.detach(), q.detach())
            assert_same_bits(mine.master_weight(p), right.master_weight(q))
        for net, optimizer in zip(nets, (mine, right), strict=True):
            optimizer.zero_grad()
            backward(net, 1)
            optimizer.step()


def test_nothing_is_left_by_a_constructor_that_raises() -> None:
    p = parameter((4, 4), BF16)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        Offload([p], AdamW, lr=-1.0, **ALL)
    whole = torch.zeros(8, 4, dtype=BF16)
    parts = [Parameter(whole[:5]), Parameter(whole[3:])]
    with pytest.raises(ValueError, match="shares memory with"):
        Offload(parts, AdamW, lr=0.1, **ALL)
    for each in (p, *parts):
        each.sum().backward()
        assert each.grad is not None
        assert not each._post_accumulate_grad_hooks
