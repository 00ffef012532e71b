"""Torch's own optimizers on stored expansions: against torch in float32, and against our rules.

Mutants these tests catch: the new weight stored in place of the update
(`test_no_update_changes_a_value`), states cast to the parameter's dtype by loading, a state
forgotten between steps, options of a group that do not reach the class.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
from mcf.optim import SGD, collage
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import (
    assert_same,
    copy_weights,
    parameter,
    parameters,
    random,
    refuses,
    scaler,
    steps,
    stored,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {"weight_decay": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.Adafactor, {}),
]
N = 300
on_each_class = pytest.mark.parametrize(
    ("make", "options"), CLASSES, ids=[c.__name__ for c, _ in CLASSES]
)


def run(
    optimizer: torch.optim.Optimizer, dtype: torch.dtype, count: int = 4, start: int = 0
) -> None:
    for t in range(start, start + count):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, BF16, 10 * t + k, 0.1).to(dtype)
        optimizer.step()


def params(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter(random(s, BF16, k).to(dtype)) for k, s in enumerate([(N,), (4, 5), (2, 1)])]


@on_each_class
def test_master_has_the_bits_of_torch_in_float32(make: Any, options: dict[str, Any]) -> None:
    theirs = make(params(FP32), lr=0.01, foreach=False, **options)
    mine = collage(make, params(BF16), precision="master", lr=0.01, foreach=False, **options)
    for optimizer, dtype in ((theirs, FP32), (mine, BF16)):
        run(optimizer, dtype)
    for p, q in zip(parameters(mine), parameters(theirs), strict=True):
        assert_same_bits(mine.state[p]["master_param"], q)
        assert_same_bits(p, q.to(BF16))
        for name, expected in theirs.state[q].items():
            assert_same_bits(torch.as_tensor(mine.state[p][name]), torch.as_tensor(expected), name)


@pytest.mark.sampled
@on_each_class
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
def test_full_precision_is_torch(make: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    results = []
    for optimizer in (
        make(params(dtype), lr=0.01, foreach=False, **options),
        collage(make, params(dtype), precision="plus", lr=0.01, foreach=False, **options),
    ):
        run(optimizer, dtype)
        results.append([p.detach() for p in parameters(optimizer)])
    for a, b in zip(*results, strict=True):
        assert_same_bits(b, a)


# A precision stores what any optimizer computes: by default all of them with one, three with all.
_STORED = [p for p in mcf.optim.PRECISIONS if "eco" not in p and "bit" not in p]
_PAIRS = everyday(
    [(p, make, options) for p in _STORED for make, options in CLASSES],
    lambda p, make, options: make is torch.optim.NAdam or p in ("plain", "plus", "split16"),
    id=lambda p, make, options: f"{p}-{make.__name__}",
)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("precision", "make", "options"), _PAIRS)
def test_every_precision_stays_near(precision: str, make: Any, options: dict[str, Any]) -> None:
    # Weights near 1 have a bf16 unit of 2**-8; twenty steps of a single component lose a few of
    # them, and with 16 bits or more what is left is the error of moments in bfloat16.
    exact = make(params(FP32), lr=0.001, foreach=False, **options)
    mine = collage(make, params(BF16), precision=precision, lr=0.001, foreach=False, **options)
    for optimizer, dtype in ((exact, FP32), (mine, BF16)):
        run(optimizer, dtype, 20)
    single = precision in ("plain", "fp32_states", "stochastic", "bf16_sr")
    for p, q in zip(parameters(mine), parameters(exact), strict=True):
        error = (mine.master_weight(p) - q.detach()).abs().mean()
        assert error < (2.0**-6 if single else 2.0**-9)
        names = {n for n in mine.state[p] if n.startswith("param_")} - {"param_step"}
        assert names == {
            "kahan": {"param_lo"}, "light": {"param_lo"}, "plus": {"param_lo"},
        }.get(precision, {"param_bits"} if precision.startswith("split") else set())  # fmt: skip


def test_second_moments_are_pairs_under_plus() -> None:
    mine = collage(torch.optim.NAdam, params(BF16), precision="plus")
    run(mine, BF16)
    state = mine.state[next(parameters(mine))]
    assert state["exp_avg_sq_lo"].dtype == BF16
    assert "exp_avg_lo" not in state
    assert state["mu_product"].dtype == FP32
    half = collage(torch.optim.NAdam, params(FP16), precision="plus")
    run(half, FP16)
    assert half.state[next(parameters(half))]["exp_avg_sq_lo"].dtype == BF16, "fp16 has no range"
    # Both words are read: twenty updates of a thousandth leave more than eight bits of the sum.
    exact = torch.optim.NAdam(params(FP32))
    run(exact, FP32, 20)
    run(mine, BF16, 16, start=4)
    wide = exact.state[next(parameters(exact))]["exp_avg_sq"]
    both = state["exp_avg_sq"].float() + state["exp_avg_sq_lo"].float()
    assert ((both - wide).abs() / wide).max() < 2.0**-11


ROUNDINGS: list[tuple[str, str]] = [
    ("plain", "nearest"),
    ("kahan", "nearest"),
    ("light", "nearest"),
    ("master", "nearest"),
    ("split16", "nearest"),
    ("stochastic", "nearest"),
    ("light", "stochastic"),
    ("kahan", "stochastic"),
]


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("precision", "low"), ROUNDINGS)
@pytest.mark.parametrize("options", [{}, {"maximize": True}], ids=str)
def test_in_float64_sgd_has_the_bits_of_ours(
    precision: str, low: str, options: dict[str, Any]
) -> None:
    # The update -lr g, lr a power of two: exact in either, and the same sums after it.
    chosen: Any = {"precision": precision, "low": low, "seed": 7, **options}
    # "plain" loses most of such updates, as it should.
    ours = SGD(params(BF16), 2.0**-7, **chosen, check_numerics=False)
    theirs = collage(torch.optim.SGD, params(BF16), compute_dtype=FP64, lr=2.0**-7, **chosen)
    for optimizer in (ours, theirs):
        run(optimizer, BF16, 30)
    for p, q in zip(parameters(theirs), parameters(ours), strict=True):
        assert_same_bits(p, q)
        assert_same_bits(theirs.master_weight(p), ours.master_weight(q))


def test_no_update_changes_a_value() -> None:
    # A low word far below the weight survives: it is the update that is added.
    wide = collage(
        torch.optim.SGD, [Parameter(torch.ones(4, dtype=BF16))], lr=1.0, compute_dtype=FP64
    )
    (q,) = parameters(wide)
    for value in (2.0**-40, 0.0):
        q.grad = torch.full_like(q, value)
        wide.step()
    assert_same_bits(wide.state[q]["param_lo"], torch.full((4,), -(2.0**-40), dtype=BF16))


HOW = ["state dict", "deepcopy", "pickle"]
COPIES = [(p, how) for p in ("plus", "master", "split16", "bf16_sr") for how in HOW]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("precision", "how"), COPIES)
def test_it_goes_on_after_a_copy(precision: str, how: str, tmp_path: Any) -> None:
    def made() -> Any:
        return collage(torch.optim.NAdam, params(BF16), precision=precision, lr=0.01)

    first = made()
    run(first, BF16)
    first.zero_grad()
    if how == "state dict":
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second = made()
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        copy_weights(second, first)
    else:
        second = copy.deepcopy(first) if how == "deepcopy" else pickle.loads(pickle.dumps(first))
    for optimizer in (first, second):
        run(optimizer, BF16, start=4)
    assert_same(stored(second), stored(first))


def test_groups_schedules_and_closures() -> None:
    p, q = params(BF16)[:2]
    mine = collage(
        torch.optim.AdamW,
        [{"params": [p], "lr": 0.5}, {"params": [q], "precision": "master"}],
        lr=0.25,
    )
    assert [g["lr"] for g in mine.param_groups] == [0.5, 0.25]
    schedule = torch.optim.lr_scheduler.StepLR(mine, 1, 0.0)
    run(mine, BF16, 1)
    assert "master_param" in mine.state[q]
    assert "param_lo" in mine.state[p]
    schedule.step()
    before = [mine.master_weight(p), mine.master_weight(q)]
    run(mine, BF16, 1)
    assert torch.equal(mine.master_weight(p), before[0])
    assert torch.equal(mine.master_weight(q), before[1])
    assert mine.step(lambda: 3.0) == 3.0


def test_gradients_are_not_changed_and_a_scaler_skips() -> None:
    results = []
    for scale in (1.0, 2.0**8):
        (p,) = [Parameter(torch.ones(5, dtype=FP16))]
        mine = collage(torch.optim.AdamW, [p])
        p.grad = torch.full_like(p, 0.5 * scale)
        scaler(scale).step(mine)
        assert (p.grad == 0.5 * scale).all()
        results.append(without_gradients(stored(mine)))
        p.grad[0] = torch.inf
        before = stored(mine)
        scaler(scale).step(mine)
        assert_same(stored(mine), before)
    assert_same(*results)


# -- classes ---------------------------------------------------------------------------------------


class Counting(torch.optim.Optimizer):
    """A class like pytorch-optimizer's: groups count the steps, matrices lie in lists."""

    def __init__(self, params: Any, lr: float = 0.125, own: torch.dtype = FP32) -> None:
        super().__init__(params, {"lr": lr, "own": own})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p, dtype=group["own"])
                    state["lists"] = [torch.zeros(2), []]
                # In bf16 torch itself would refuse what has become another dtype.
                state["average"].lerp_(p.grad.to(group["own"]), 0.5)
                state["lists"][0] += 1
                p -= group["lr"] / group["step"] * state["average"]
                p += state["lists"][0].sum() * 2.0**-10


class Together(Counting):
    """Keeps a sum over all parameters of a group, as Prodigy does."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            total = sum(float(p.grad.sum()) for p in group["params"])
            group["d"] = group.get("d", 0.0) + total


class Asking(Counting):
    """Reads its groups before torch has made any, as pytorch-optimizer's Muon."""

    def __init__(self, params: Any, lr: float = 0.125) -> None:
        assert all("use_muon" in group for group in params)
        super().__init__(params, lr)


def classes_run(optimizer: torch.optim.Optimizer, start: int, count: int) -> None:
    for t in range(start, start + count):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(p.shape, BF16, 10 * t + k).to(p.dtype)
        with torch.no_grad():
            optimizer.step()


@pytest.mark.parametrize("own", [FP32, BF16], ids=str)
def test_the_bits_of_the_class(own: torch.dtype) -> None:
    start = [random((8,), BF16, k) for k in range(3)]
    theirs = [Parameter(t.float()) for t in start]
    right = Counting([{"params": theirs[:2]}, {"params": theirs[2:], "lr": 0.25}], own=own)
    classes_run(right, 0, 6)
    mine = [Parameter(t.clone()) for t in start]
    groups = [{"params": mine[:2]}, {"params": mine[2:], "lr": 0.25}]
    optimizer = collage(Counting, groups, precision="master", own=own)
    classes_run(optimizer, 0, 3)
    # A checkpoint has all of it.
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer = collage(Counting, groups, precision="master", own=own)
    optimizer.load_state_dict(saved)
    classes_run(optimizer, 3, 3)
    assert [group["step"] for group in optimizer.param_groups] == [6, 6]
    for p, q in zip(mine, theirs, strict=True):
        assert_same_bits(optimizer.master_weight(p), q.detach())


def test_what_is_kept_of_all_parameters_is_refused() -> None:
    p = Parameter(torch.zeros(3, dtype=BF16))
    with pytest.raises(ValueError, match="Together keeps d of all parameters of a group together"):
        collage(Together, [p])
    with pytest.raises(TypeError, match="Asking cannot be made for a list of parameters: Runtime"):
        collage(Asking, [p])


# -- refusals --------------------------------------------------------------------------------------


def test_bad_options_of_later_raise_before_anything_changes() -> None:
    mine = collage(torch.optim.AdamW, [{"params": [p]} for p in params(BF16)])
    run(mine, BF16)
    mine.param_groups[1]["weight_decay"] = "none"
    refuses(mine, ValueError, r"with the options of param_groups\[1\]: TypeError")
    mine.param_groups[1]["weight_decay"] = 0.0
    mine.step()


@pytest.mark.parametrize("precision", ["light", "split16", "master"])
def test_a_parameter_of_another_dtype_is_refused(precision: str) -> None:
    # Else the low component, or the bits, would be dropped in silence.
    first, p = (Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = mcf.optim.collage(torch.optim.SGD, [first, p], precision=precision, lr=1e-3)
    for q in (first, p):
        q.grad = torch.ones_like(q)
    optimizer.step()
    p.data = p.data.float()
    p.grad = torch.ones_like(p)
    before = first.detach().clone()
    with pytest.raises(ValueError, match=r"state of params\[1\] .*was the parameter changed"):
        optimizer.step()
    assert torch.equal(first.detach(), before)


ADAMW, ONE = torch.optim.AdamW, torch.optim.SGD
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda x: x, {}, TypeError, "allowed is a class"),
    (torch.optim.LBFGS, {}, ValueError, "LBFGS does not treat"),
    (ADAMW, {"lr": -1.0}, ValueError, "learning rate: -1"),
    (ADAMW, {"momentum": 1.0}, TypeError, "unexpected keyword"),
    (ADAMW, {"seed": 0.5}, TypeError, "seed must be an int"),
    # What these classes do not check when they are made.
    (torch.optim.ASGD, {"t0": "soon"}, ValueError, "ASGD makes no step on a parameter .*: TypeE"),
    (ADAMW, {"capturable": True}, ValueError, "AdamW makes no step on .* capturable"),
    (torch.optim.Rprop, {"step_sizes": (1e-6,)}, ValueError, "Rprop makes no step on"),
    (ADAMW, {"precision": "double"}, ValueError, "precision must be one of .* got 'double'"),
    (ADAMW, {"compute_dtype": BF16}, ValueError, "compute_dtype: torch.bfloat16"),
    (ONE, {"precision": "eco"}, ValueError, "precision='eco' feeds rounding errors back"),
    (ADAMW, {"precision": "single_single_single_stochastic_feedback"}, ValueError,
     "feeds rounding errors back.*use mcf.optim.SGD, Adam or AdamW"),
    (ADAMW, {"precision": "plain", "low": "stochastic"}, ValueError, "no low component"),
    (ADAMW, {"low": "up"}, ValueError, "low must be one of .*, got 'up'"),
    (ADAMW, {"precision": "8bit"}, ValueError,
     r"precision='8bit' of params\[0\].* keeps moments as codes relative to each other"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "error", "words"), REFUSED)
def test_unfit_classes_and_options_are_refused(
    make: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        collage(make, params(BF16), **options)


def test_unfit_groups_and_states_are_refused() -> None:
    p = parameter(3, BF16)
    mine = collage(ADAMW, [p])
    with pytest.raises(ValueError, match="Invalid beta"):
        mine.add_param_group({"params": [parameter(2, BF16)], "betas": (2.0, 0.9)})
    with pytest.raises(ValueError, match="bits of bfloat16"):
        mine.add_param_group({"params": [parameter(2, FP16)], "precision": "split16"})
    assert len(mine.param_groups) == 1
    steps(mine, 1)
    with pytest.raises(ValueError, match=r"\(1, 'light', 'nearest'\)\]; the opt.*'plus'"):
        collage(ADAMW, [p], precision="plus").load_state_dict(mine.state_dict())
