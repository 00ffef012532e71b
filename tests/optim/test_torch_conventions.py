"""Conventions of torch.optim: signatures, groups, names, hooks, autograd, counts, defaults."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_pre_hook

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, CollageAdamW, Lion, Muon, NAdam, Precision
from tests.helpers import assert_same_bits
from tests.helpers.defaults import DEFAULTS, default
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP32, FP64, STRICT
from tests.optim.helpers import assert_same, parameter, parameters, random, steps, stored

pytestmark = pytest.mark.usefixtures("on_torch")


def test_signatures_begin_as_torchs() -> None:
    counts = {"AdamW": 6, "Adam": 6, "NAdam": 7, "RAdam": 6, "Adamax": 5, "SGD": 6, "Muon": 9}
    for name, count in counts.items():
        mine, torchs = (
            list(inspect.signature(getattr(m, name)).parameters.values())[:count]
            for m in (mcf.optim, torch.optim)
        )
        assert [p.name for p in mine] == [p.name for p in torchs]
        assert [p.default for p in mine] == [p.default for p in torchs]
        # Its keywords as well, where `**options` takes them.
        keywords = inspect.signature(getattr(torch.optim, name)).parameters
        found = inspect.signature(getattr(mcf.optim, name)).parameters
        for keyword, p in keywords.items():
            assert found[keyword].default == p.default, keyword
    with pytest.raises(TypeError, match=r"unexpected keyword argument .lamda.; .* takes foreach"):
        AdamW([parameter(3, BF16)], lamda=1)  # type: ignore[call-arg]
    assert list(inspect.signature(CollageAdamW).parameters)[:5] == [
        "params", "lr", "betas", "eps", "weight_decay",
    ]  # fmt: skip


def test_each_argument_of_a_constructor_is_described_once() -> None:
    classes: list[Any] = [c for c in vars(mcf.optim).values() if hasattr(c, "precisions")]
    assert len(classes) > 10
    for found in classes:
        own = [*inspect.signature(found.__init__).parameters][1:]
        for name in (*own, "maximize", "mode" if "mode" in own else "precision"):
            assert found.__doc__.count(f"\n    {name}: ") == 1, (found, name)


def test_subclass_of_a_user_keeps_its_docstring() -> None:
    class Mine(AdamW):
        """Mine.

        Args:
            params (list): in the words of the user.
            gain (float): an argument of the user.
        """

        def __init__(self, params: Any, gain: float = 1.0, **options: Any) -> None:
            super().__init__(params, **options)

    assert inspect.getdoc(Mine) == (
        "Mine.\n\nArgs:\n    params (list): in the words of the user.\n"
        "    gain (float): an argument of the user."
    )
    assert [*inspect.signature(Mine).parameters][:3] == ["params", "gain", "precision"]


def test_groups_of_different_hyperparameters_and_precisions() -> None:
    options: list[dict[str, Any]] = [
        {"lr": 1e-2, "precision": "plus"},
        {"lr": 1e-3, "precision": "master", "betas": (0.8, 0.9)},
        {"weight_decay": 0.5, "precision": "light", "compute_dtype": BF16},
        {"eps": 1e-3, "maximize": True, "precision": "plain"},
    ]

    def params() -> list[Parameter]:
        return [parameter((3, 5), BF16, 1), parameter(4, FP32 if together else BF16, 2)]

    together = False
    groups = [{"params": params(), **o} for o in options]
    optimizer = AdamW(groups, 5e-3)
    steps(optimizer, 4)
    found = stored(optimizer)
    # The same, each group alone; parameters are numbered through, and so are their gradients.
    for k, o in enumerate(options):
        alone = AdamW(params(), **{"lr": 5e-3, **o})
        for t in range(4):
            for j, p in enumerate(alone.param_groups[0]["params"]):
                p.grad = random(p.shape, p.dtype, 1 + 1000 * t + 2 * k + j, 0.1)
            alone.step()
        for name, tensor in stored(alone).items():
            index, rest = name.split(".", 1)
            assert_same_bits(found[f"{2 * k + int(index)}.{rest}"], tensor, name)


def test_group_of_several_dtypes_steps_each_as_alone() -> None:
    dtypes = (BF16, FP32, torch.float16, FP64, BF16)
    optimizer = AdamW([parameter(5, d, k) for k, d in enumerate(dtypes)], 1e-2)
    for t in range(3):
        for k, p in enumerate(parameters(optimizer)):
            p.grad = random(5, p.dtype, 10 * t + k, 0.1)
        optimizer.step()
    for k, p in enumerate(parameters(optimizer)):
        alone = AdamW([q := parameter(5, p.dtype, k)], 1e-2)
        for t in range(3):
            q.grad = random(5, p.dtype, 10 * t + k, 0.1)
            alone.step()
        assert_same_bits(p, q)


def test_add_param_group() -> None:
    first, second = parameter(3, BF16), parameter(4, BF16)
    optimizer = AdamW([first], 1e-2)
    steps(optimizer, 2)
    optimizer.add_param_group({"params": second, "precision": "light"})
    assert optimizer.param_groups[1]["lr"] == 1e-2
    steps(optimizer, 1)
    assert optimizer.state[first]["step"].item() == 3
    assert optimizer.state[second]["step"].item() == 1
    assert "exp_avg_sq_lo" not in optimizer.state[second]
    optimizer.add_param_group({"params": (p for p in [parameter(2, BF16)])})
    steps(optimizer, 1)


def test_a_copy_takes_the_state_of_a_new_one() -> None:
    # torch gives optimizers that are unpickled an option of its own; a state without it still fits.
    copied = copy.deepcopy(AdamW([parameter(3, BF16)]))
    copied.add_param_group({"params": [parameter(2, BF16)]})
    fresh = AdamW([{"params": [parameter(3, BF16)]}, {"params": [parameter(2, BF16)]}])
    steps(fresh, 1)
    copied.load_state_dict(fresh.state_dict())
    fresh.load_state_dict(copied.state_dict())
    assert copied.param_groups[1].keys() == fresh.param_groups[1].keys()


def test_repr_names_the_precision() -> None:
    text = repr(AdamW([parameter(3, BF16)], precision="light"))
    assert text.startswith("AdamW (")
    assert "precision: light" in text


def test_collage_group_names_its_mode() -> None:
    p, q = parameter(3, BF16), parameter(3, BF16)
    optimizer = CollageAdamW([{"params": [p], "mode": "light"}, {"params": [q]}])
    assert [g["precision"] for g in optimizer.param_groups] == ["light", "plus"]
    with pytest.raises(ValueError, match=r"mode must be one of .*, got 'heavy'"):
        optimizer.add_param_group({"params": [parameter(3, BF16)], "mode": "heavy"})


def test_hooks_of_all_optimizers_see_a_step_once() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda o, args, kwargs: seen.append(o))
    params = [parameter(3, BF16, k) for k in range(3)]
    made = [AdamW(params), mcf.optim.collage(torch.optim.AdamW, params)]
    try:
        for optimizer in made:
            steps(optimizer, 1)
    finally:
        handle.remove()
    assert seen == made


# -- autograd --------------------------------------------------------------------------------------


def test_closure() -> None:
    p = Parameter(torch.ones(3, dtype=BF16))
    optimizer = AdamW([p], 0.5, weight_decay=0.0)
    calls = []

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure) == 3
    assert calls == [3.0]
    assert (p < 1).all()
    assert optimizer.step() is None


def test_zero_grad_sets_gradients_to_zero_or_to_none() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p])
    steps(optimizer, 1)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is not None
    assert (p.grad == 0).all()
    optimizer.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize("precision", [*STRICT, "fp32_states", "master"])
@pytest.mark.parametrize("maximize", [False, True])
def test_gradients_are_not_changed(precision: str, maximize: bool) -> None:
    p = parameter((5, 7), BF16)
    optimizer = AdamW([p], precision=precision, maximize=maximize)
    g = random((7, 5), BF16, 1).t()
    g[0, 0] = torch.nan
    p.grad = g
    before, version = g.clone(), g._version
    for _ in range(3):
        optimizer.step()
    assert p.grad is g
    assert_same_bits(g, before)
    assert g._version == version


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_versions_are_bumped(executor: str) -> None:
    # A tensor saved for backward that a step changed makes backward raise, as with torch.
    p = parameter(3, BF16)
    optimizer = AdamW([p], 0.1)
    loss = p.square().sum()
    p.grad = torch.ones_like(p)
    version, gradient = p._version, p.grad._version
    with mcf.executor(executor):
        optimizer.step()
    assert p._version > version
    assert p.grad._version == gradient
    states = [s for name, s in optimizer.state[p].items() if name != "step"]
    assert all(s._version > 0 for s in states)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_compiled_step(backend: str) -> None:
    # torch.compile(optimizer.step) itself: the compiler leaves the kernel and all around it alone.
    def train(compiled: bool) -> dict[str, torch.Tensor]:
        p = parameter(100, BF16, 1)
        optimizer = AdamW([p], 1e-2)
        run = torch.compile(optimizer.step, backend=backend) if compiled else optimizer.step
        for t in range(3):
            p.grad = random(100, BF16, t + 2)
            run()
        return stored(optimizer)

    assert_same(train(True), train(False))


def test_a_step_in_one_graph_is_refused() -> None:
    optimizer = AdamW([parameter(3, BF16)])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"LowPrecisionOptimizer\.step"):
        torch.compile(optimizer.step, backend="eager", fullgraph=True)()


@pytest.mark.parametrize("executor", ["torch", "numba"])
@pytest.mark.parametrize("n", [1, 3])
def test_negated_view_as_gradient(n: int, executor: str) -> None:
    # A view whose sign torch flips lazily: what counts is the value and not the memory. torch does
    # it for every operator it dispatches; a kernel called by another way would read the memory.
    g = torch.view_as_complex(torch.ones(n, 2)).conj().imag
    assert g.is_neg()
    results = []
    for given in (g, g.resolve_neg()):
        p = Parameter(torch.zeros(n))
        optimizer = AdamW([p], 0.5)
        p.grad = given
        with mcf.executor(executor):
            optimizer.step()
        results.append(p.detach())
    assert_same_bits(*results)
    assert (results[0] > 0).all()


# -- counts ----------------------------------------------------------------------------------------


def test_each_parameter_counts_its_own_steps() -> None:
    # Moments are corrected by the steps that a parameter has taken, as in torch.
    late, early = parameter(3, FP64, 1), parameter(3, FP64, 2)
    optimizer = AdamW([early, late], 1e-2)
    theirs = [Parameter(p.detach().clone()) for p in (early, late)]
    reference = torch.optim.AdamW(theirs, 1e-2, foreach=False)
    for t in range(6):
        for k, (p, q) in enumerate(zip((early, late), theirs, strict=True)):
            p.grad = q.grad = random(3, FP64, 10 * t + k) if k == 0 or t >= 3 else None
        optimizer.step()
        reference.step()
    assert [optimizer.state[p]["step"].item() for p in (early, late)] == [6, 3]
    torch.testing.assert_close(
        [early.data, late.data], [p.data for p in theirs], rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("start", [255, 2**24 - 1, 2**24 + 2, 2**53 + 2])
@pytest.mark.parametrize("default", [FP32, BF16])
def test_counts_are_exact(start: int, default: torch.dtype) -> None:
    # A float32 counter stops at 2^24, a bf16 one at 256, a float64 one at 2^53.
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        p = parameter(3, BF16)
        optimizer = AdamW([p])
        steps(optimizer, 1)
        optimizer.state[p]["step"].fill_(start)
        steps(optimizer, 3)
        assert optimizer.state[p]["step"].item() == start + 3
        assert optimizer.state[p]["step"].dtype == torch.int64
        assert torch.isfinite(p).all()
    finally:
        torch.set_default_dtype(before)


def test_bias_correction_late_in_training() -> None:
    # With beta2 = 1 - 1e-9 the correction 1 - beta2^t still matters at t = 2^24 + 3: it is .0166.
    beta2, t = 1 - 1e-9, 2**24 + 3
    p = Parameter(torch.zeros(1, dtype=FP64))
    p.grad = torch.zeros_like(p)
    optimizer = AdamW([p], 1.0, betas=(0.0, beta2), eps=0.0, weight_decay=0.0)
    optimizer.step()
    optimizer.state[p]["exp_avg_sq"].fill_(1.0)
    optimizer.state[p]["step"].fill_(t - 1)
    p.grad = torch.ones_like(p)
    p.data.zero_()
    optimizer.step()
    assert -p.item() == pytest.approx((1 - beta2**t) ** 0.5, rel=1e-12)


# -- defaults --------------------------------------------------------------------------------------


FP32 = torch.float32
BF16 = torch.bfloat16

MADE: dict[str, Callable[[Any], Any]] = {
    "plus": lambda p: AdamW(p, track_metrics=True, max_grad_norm=0.1),
    "strict plus": lambda p: AdamW(p, compute_dtype=BF16),
    "master": lambda p: AdamW(p, precision="master", amsgrad=True, nonfinite="skip"),
    "stochastic": lambda p: AdamW(p, precision="stochastic"),
    "capturable": lambda p: AdamW(p, capturable=True, low="stochastic"),
    "tensor lr": lambda p: NAdam(p, lr=torch.tensor(0.01, device="cpu", dtype=FP32)),
    "codes": lambda p: AdamW(p, precision=Precision("pair", "ratio8", "ue6m2"), low="stochastic"),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "lion": lambda p: Lion(p, lr=0.1),
    "muon": lambda p: Muon(p[-2:], lr=0.1),
}


def given() -> list[Any]:
    """Parameters of several layouts; the last two are matrices."""
    made = [random(300, BF16, 1), random((), BF16, 2), random(0, BF16, 3), random(40, FP32, 4)]
    made += [random((7, 40), BF16, 5)[:, ::2], random((30, 9), BF16, 6)]
    return [torch.nn.Parameter(t) for t in made]


def train(name: str, executor: str) -> Any:
    # Seeded numbers are drawn with torch's own defaults.
    with default(torch.device("cpu"), FP32):
        params = given()
    optimizer = MADE[name](params)
    with mcf.executor(executor):
        for t in range(3):
            with default(torch.device("cpu"), FP32):
                for k, p in enumerate(params):
                    p.grad = random(p.shape, p.dtype, 10 * t + k, 0.1)
            optimizer.step()
        if name == "plus":
            assert optimizer.metrics()["update_norm"] > 0
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer


# Each on torch, which compiles nothing; what Numba is called with is the same but for metrics,
# clipping, random numbers, and scalars that stay on the device.
EVERYDAY = {("plus", "numba"), ("capturable", "numba"), *((name, "torch") for name in MADE)}
EXECUTED = everyday(
    [((name, executor),) for name in MADE for executor in ("numba", "torch")],
    lambda each: each in EVERYDAY,
    id="-".join,
)


@pytest.mark.sampled(every=10)
@pytest.mark.parametrize(("device", "dtype"), DEFAULTS, ids=str)
@pytest.mark.parametrize("made", EXECUTED)
def test_steps(made: tuple[str, str], device: str, dtype: torch.dtype) -> None:
    expected = stored(train(*made))
    with default(torch.device(device), dtype):
        found = train(*made)
    assert_same(stored(found), expected)


@pytest.mark.usefixtures("on_torch")
def test_accumulated_gradients() -> None:
    def run() -> Any:
        p = torch.nn.Parameter(torch.ones(5, 10, dtype=BF16, device="cpu"))
        optimizer = AdamW([p])
        mcf.optim.GradientAccumulator(optimizer)
        for k in (1, 256, 1):
            (p * k).sum().backward()
        optimizer.step()
        return optimizer

    expected = stored(run())
    with default(torch.device("meta"), torch.float64):
        found = run()
    assert_same(stored(found), expected)


@pytest.mark.usefixtures("on_torch")
def test_conversion() -> None:
    def run() -> Any:
        p = torch.nn.Parameter(torch.ones(5, 10, dtype=BF16, device="cpu"))
        optimizer = torch.optim.AdamW([p], foreach=False)
        with default(torch.device("cpu"), FP32):
            steps(optimizer, 2)
        made, _ = mcf.optim.convert(optimizer, precision=Precision("pair", "ratio8", "ue6m2"))
        return made

    expected = stored(run())
    with default(torch.device("meta"), torch.float64):
        found = run()
    assert_same(stored(found), expected)
