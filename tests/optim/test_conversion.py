"""Another precision, class or library: each number exact, or rounded once and reported.

The oracle is Fraction arithmetic on the stored numbers. Mutants these tests catch: a second
rounding on the way (`test_values_round_once`), a report that misses a rounded tensor, a lost low
word, a step that is not copied, a half-done conversion (`test_nothing_changes`).
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, Lion, NAdam, convert, float32_checkpoint, load_converted, values
from tests.helpers import assert_same_bits
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
)
from tests.optim.test_amp import without_gradients

PRECISIONS = AdamW.precisions
SHAPES = [(7, 5), (), (0,), (3,)]


@pytest.fixture(autouse=True)
def reference_executor():
    with mcf.executor("torch"):
        yield


def trained(precision: str, dtype: torch.dtype = BF16, count: int = 4, **options: Any) -> AdamW:
    optimizer = AdamW(
        [parameter(s, dtype, k) for k, s in enumerate(SHAPES)], 1e-2, precision=precision, **options
    )
    steps(optimizer, count)
    return optimizer


def fractions(optimizer: AdamW, p: Tensor) -> dict[str, list[Fraction]]:
    """What is stored for a parameter, exactly."""
    state = optimizer.state[p]
    parts = {"param": optimizer.master_weight(p, exact=True)}
    for name in ("exp_avg", "exp_avg_sq"):
        low = (state[f"{name}_lo"],) if f"{name}_lo" in state else ()
        parts[name] = (state[name], *low)
    return {
        name: [
            sum((Fraction(x) for x in element), Fraction(0))
            for element in zip(*(c.double().flatten().tolist() for c in components), strict=True)
        ]
        for name, components in parts.items()
    }


PAIRS = list(itertools.product(PRECISIONS, PRECISIONS))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-to-".join(p) for p in PAIRS])
def test_every_pair(source: str, target: str) -> None:
    first = trained(source)
    before = [fractions(first, p) for p in parameters(first)]
    kept = stored(first)
    fresh = [Parameter(torch.full_like(p, 7.0)) for p in parameters(first)]
    second, report = convert(first, target, params=fresh)
    assert_same(stored(first), kept, "the source is as it was")
    assert [p is q for p, q in zip(parameters(second), fresh, strict=True)] == [True] * len(fresh)
    rounded = {(r.where.split(" ")[0], r.what): r for r in report.rounded}
    for k, (p, old) in enumerate(zip(fresh, before, strict=True)):
        new = fractions(second, p)
        assert second.state[p]["step"].item() == 4
        for name, numbers in old.items():
            errors = [
                abs(a - b) / abs(a) for a, b in zip(numbers, new[name], strict=True) if a != b
            ]
            entry = rounded.pop((f"params[{k}]", name), None)
            assert (entry.elements if entry else 0) == len(errors), name
            if entry:
                assert math.isclose(entry.largest, float(max(errors)), rel_tol=1e-9)
                # Never worse than one rounding to 8 bits.
                assert max(errors) <= Fraction(1, 2**8)
    assert not rounded
    if source == target:
        assert report.exact
        assert_same(without_gradients(stored(second)), without_gradients(kept))
    steps(second, 1)


@pytest.mark.parametrize("target", PRECISIONS)
def test_stochastic_low_words_come_along_where_there_are_some(target: str) -> None:
    second, _ = convert(trained("plus", low="stochastic", seed=3), target)
    (group,) = second.param_groups
    low = target in ("kahan", "light", "plus")
    assert (group["low"], group["seed"]) == ("stochastic" if low else "nearest", 3)
    steps(second, 1)
    if not low:
        with pytest.raises(ValueError, match="stores no low component"):
            convert(trained("plus"), target, low="stochastic")


HOLDS = {
    # What each keeps of the parameter, and of the second moment, in bits of a float32's 24.
    ("split16", "master"): {"param", "exp_avg", "exp_avg_sq"},
    ("light", "plus"): {"param", "exp_avg", "exp_avg_sq"},
    ("kahan", "light"): {"param", "exp_avg", "exp_avg_sq"},
    ("split8", "split16"): {"param", "exp_avg", "exp_avg_sq"},
    ("plain", "split8"): {"param", "exp_avg", "exp_avg_sq"},
    ("master", "split16"): {"param"},
    ("plus", "light"): {"param", "exp_avg"},
    ("fp32_states", "master"): {"param", "exp_avg", "exp_avg_sq"},
}


@pytest.mark.parametrize(("pair", "exact"), HOLDS.items(), ids=["-to-".join(p) for p in HOLDS])
def test_exact_where_the_target_holds_the_value(pair: tuple[str, str], exact: set[str]) -> None:
    _, report = convert(trained(pair[0]), pair[1])
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"} - exact
    assert report.exact == (len(exact) == 3)
    assert str(report) == "exact" if report.exact else "rounded, by at most" in str(report)


def table() -> dict[tuple[str, str], str]:
    """The table of docs/drop_in.md: what is rounded from one precision to another."""
    page = (Path(__file__).parents[2] / "docs" / "drop_in.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("|")]
    (start,) = [k for k, line in enumerate(lines) if line.startswith("| from | plain |")]
    columns = [c.strip() for c in lines[start].split("|")[2:-1]]
    found = {}
    for line in lines[start + 2 :]:
        first, *cells = [c.strip() for c in line.split("|")[1:-1]]
        if len(cells) != len(columns):
            break
        for column, cell in zip(columns, cells, strict=True):
            for source in first.replace("`", "").split(", "):
                for target in column.split(", "):
                    found[source, target] = cell
    return found


def test_the_table_of_the_page() -> None:
    short = {"param": "p", "exp_avg": "m", "exp_avg_sq": "v"}
    rows = table()
    assert len(rows) == 64
    for (source, target), cell in rows.items():
        _, report = convert(trained(source, count=10), target)
        found = {short[r.what] for r in report.rounded}
        names = set() if cell == "exact" else set(cell.split(", "))
        always = {n for n in names if n[0] != "("}
        assert always <= found <= {n.strip("()") for n in names}, (source, target, found, cell)


@pytest.mark.parametrize(
    ("there", "via"),
    [("split16", "master"), ("light", "plus"), ("plain", "master"), ("split8", "light")],
)
def test_there_and_back_goes_on_with_the_same_bits(there: str, via: str) -> None:
    straight, detour = trained(there), trained(there)
    middle, report = convert(detour, via)
    assert report.exact
    back, report = convert(middle, there)
    assert report.exact
    for optimizer in (straight, back):
        steps(optimizer, 3, seed=9)
    assert_same(stored(back), stored(straight))


def test_a_precision_of_ones_own() -> None:
    own = mcf.optim.Precision(param="split16", exp_avg="float32", exp_avg_sq="pair")
    first = trained("plus")
    weights = [first.master_weight(p) for p in parameters(first)]
    middle, report = convert(first, own)
    assert not {r.what for r in report.rounded} - {"param"}
    for p, w in zip(parameters(middle), weights, strict=True):
        assert_same_bits(middle.master_weight(p), w)
    steps(middle, 1)
    back, _ = convert(middle, "plus")
    assert back.state[next(parameters(back))].keys() == {
        "step", "param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo",
    }  # fmt: skip


def test_in_place_the_visible_weight_is_the_new_precisions() -> None:
    # The bf16 weight of split16 is to nearest with ties away, that of the others ties to even.
    p = Parameter(torch.tensor([1.0, 2.0]).to(BF16))
    optimizer = AdamW([p], precision="master")
    p.grad = torch.ones_like(p)
    optimizer.step()
    tie = torch.tensor([1 + 2.0**-8, 2 + 3 * 2.0**-7])
    optimizer.state[p]["master_param"].copy_(tie)
    split, report = convert(optimizer, "split16")
    assert next(parameters(split)) is p
    assert p.tolist() == [1 + 2.0**-7, 2 + 2.0**-5]
    assert "param" not in {r.what for r in report.rounded}
    again, _ = convert(split, "light")
    assert p.tolist() == [1.0, 2 + 2.0**-5]
    assert_same_bits(again.master_weight(p), tie)


# --- torch.optim ------------------------------------------------------------------------------

TORCH: list[tuple[Any, Any, dict[str, Any]]] = [
    (torch.optim.AdamW, AdamW, {}),
    (torch.optim.AdamW, AdamW, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.Adam, mcf.optim.Adam, {"betas": (0.8, 0.9)}),
    (torch.optim.NAdam, NAdam, {}),
    (torch.optim.RAdam, mcf.optim.RAdam, {}),
    (torch.optim.Adamax, mcf.optim.Adamax, {}),
    (torch.optim.SGD, SGD, {"momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, SGD, {}),
]


@pytest.mark.parametrize(("theirs", "ours", "options"), TORCH)
def test_from_torch_and_back(theirs: Any, ours: Any, options: dict[str, Any]) -> None:
    # Float32 weights become master weights of a bfloat16 model, and come back bit for bit.
    params = [parameter(s, FP32, k) for k, s in enumerate(SHAPES)]
    source = theirs(params, lr=1e-2, foreach=False, **options)
    steps(source, 3)
    low = [Parameter(p.detach().to(BF16)) for p in params]
    mixed, report = convert(source, "master", params=low)
    assert report.exact
    assert type(mixed) is ours
    for p, q in zip(low, params, strict=True):
        assert_same_bits(mixed.master_weight(p), q)
    fresh = [Parameter(torch.zeros_like(p)) for p in params]
    back, report = convert(mixed, to=theirs, params=fresh)
    assert report.exact
    found, expected = without_gradients(stored(back)), without_gradients(stored(source))
    assert_same(found, expected)
    for name, value in options.items():
        assert back.param_groups[0][name] == value
    # And it runs, as does what it was in between.
    steps(back, 1)
    steps(mixed, 1)


def test_in_float64_it_goes_on_as_torch() -> None:
    params = [parameter(9, FP64)]
    source = torch.optim.AdamW(params, 1e-2, foreach=False)
    steps(source, 3)
    copied = copy.deepcopy(source)
    mine, report = convert(source)
    assert report.exact
    for optimizer in (copied, mine):
        steps(optimizer, 3, seed=5)
    for p, q in zip(parameters(mine), parameters(copied), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


def test_from_float32_to_plus_is_rounded_once() -> None:
    params = [parameter((40, 30), FP32)]
    source = torch.optim.AdamW(params, 1e-2)
    steps(source, 3)
    low = [Parameter(torch.zeros(40, 30, dtype=BF16))]
    mine, report = convert(source, "plus", params=low)
    assert {r.what for r in report.rounded} == {"param", "exp_avg", "exp_avg_sq"}
    # Two bf16 numbers hold 16 bits, the sign of the second one more.
    largest = {r.what: r.largest for r in report.rounded}
    assert largest["param"] <= 2.0**-17
    assert largest["exp_avg_sq"] <= 2.0**-17
    assert largest["exp_avg"] <= 2.0**-8
    assert_same_bits(low[0], params[0].to(BF16))
    assert mine.param_groups[0]["lr"] == 1e-2


@pytest.mark.parametrize("precision", ["light", "plus", "split16", "master", "plain"])
def test_a_start_from_float32_weights(precision: str) -> None:
    # No step was made yet: what bfloat16 does not hold is kept beside it, and steps begin at 1.
    params = [parameter(300, FP32), Parameter(torch.ones(4))]
    low = [Parameter(torch.zeros_like(p, dtype=BF16)) for p in params]
    mine, report = convert(torch.optim.AdamW(params, 1e-2), precision, params=low)
    assert report.exact == (precision in ("split16", "master"))
    assert_same_bits(low[0], params[0].to(BF16))
    # Nothing beside a parameter that bfloat16 holds.
    assert not mine.state.get(low[1])
    if precision == "plain":
        assert not mine.state.get(low[0])
        return
    assert mine.state[low[0]]["step"].item() == 0
    error = (mine.master_weight(low[0]) - params[0].detach()).abs() / params[0].detach().abs()
    assert error.max() <= 2.0**-17
    steps(mine, 1)
    assert mine.state[low[0]]["step"].item() == 1
    other = AdamW([Parameter(p.detach().clone()) for p in low], 1e-2, precision=precision)
    steps(other, 1)
    for name in ("exp_avg", "exp_avg_sq"):
        assert_same_bits(mine.state[low[0]][name], other.state[next(parameters(other))][name])


# --- other libraries --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"decouple_lr": True, "weight_decay": 1e-5}])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_from_optimi(dtype: torch.dtype, kind: dict[str, Any]) -> None:
    optimi = pytest.importorskip("optimi", reason="a peer of the benchmarks")
    params = [parameter((6, 4), dtype)]
    source = optimi.AdamW(params, 1e-2, betas=(0.9, 0.95), triton=False, foreach=False, **kind)
    steps(source, 5)
    state = source.state[params[0]]
    expected = params[0].detach().double()
    if dtype == BF16:
        expected = expected + state["kahan_comp"].double()
    mine, report = convert(source, "light")
    assert report.exact
    (p,) = parameters(mine)
    assert_same_bits(sum(c.double() for c in mine.master_weight(p, exact=True)), expected)
    assert_same_bits(mine.state[p]["exp_avg"], state["exp_avg"])
    assert mine.state[p]["step"].item() == 5
    assert mine.param_groups[0]["betas"] == (0.9, 0.95)
    assert mine.param_groups[0]["decouple_lr"] == bool(kind)


class BF16FusedAdamW(torch.optim.Optimizer):
    """The states of bf16_fused_adam, whose step needs CUDA: see its adamw.py."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(
            params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        )


def test_from_bf16_fused_adam() -> None:
    # The upper half of a float32 in the parameter, the lower half as the bits of a bfloat16.
    master = torch.cat([random(500, FP32, 1), torch.tensor([-0.0, 1e-40, -3.4e38, 1 + 2.0**-8])])
    words = master.view(torch.int32)
    p = Parameter((words >> 16).to(torch.int16).view(BF16))
    low = (words & 0xFFFF).to(torch.int16).view(BF16)
    source = BF16FusedAdamW([p])
    moments = {"exp_avg": random(504, BF16, 2), "exp_avg_sq": random(504, BF16, 3).abs()}
    source.state[p] = {"step": torch.tensor(7.0), "mantissas": low, **moments}
    for precision in ("split16", "master"):
        mine, report = convert(source, precision, params=[Parameter(torch.zeros(504, dtype=BF16))])
        assert report.exact
        (q,) = parameters(mine)
        assert_same_bits(mine.master_weight(q), master)
        assert mine.state[q]["step"].item() == 7


@pytest.mark.parametrize("bits", [8, 4])
def test_from_torchao(bits: int) -> None:
    with warnings.catch_warnings():
        # What it says about extensions for other versions of torch.
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", reason="a peer of the benchmarks")
        import torchao.optim as ao
        from torchao.optim.subclass_4bit import OptimState4bit
        from torchao.optim.subclass_8bit import OptimState8bit
    kind, make, block = {
        8: (OptimState8bit, ao.AdamW8bit, 256),
        4: (OptimState4bit, ao.AdamW4bit, 128),
    }[bits]
    p = parameter((64, 128), BF16)
    source = make([p], lr=1e-2)
    entry = {"step": torch.tensor(3.0)}
    for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        t = kind.zeros(p.shape, signed=signed, block_size=block, dtype=BF16)
        t.codes.random_(0, 256, generator=torch.Generator().manual_seed(1))
        t.scale.uniform_(0.1, 1.0, generator=torch.Generator().manual_seed(2))
        entry[name] = t
    source.state[p] = entry
    meant = {name: entry[name].dequantize() for name in ("exp_avg", "exp_avg_sq")}
    for precision in ("plus", "fp32_states"):
        mine, report = convert(source, precision, params=[Parameter(p.detach().clone())])
        (q,) = parameters(mine)
        assert type(mine) is AdamW
        if precision == "fp32_states":
            assert report.exact
            assert_same_bits(mine.state[q]["exp_avg_sq"], meant["exp_avg_sq"])
        assert_same_bits(
            mine.state[q]["exp_avg"], meant["exp_avg"].to(mine.state[q]["exp_avg"].dtype)
        )
        assert mine.state[q]["step"].item() == 3


# --- state dicts --------------------------------------------------------------------------------


def test_float32_checkpoint_and_back() -> None:
    first = trained("split16")
    weights, state = float32_checkpoint(first)
    # It is torch's: a torch optimizer takes it and goes on.
    params = [Parameter(w.clone()) for w in weights]
    theirs = torch.optim.AdamW(params, 1.0)
    theirs.load_state_dict(copy.deepcopy(state))
    assert theirs.param_groups[0]["lr"] == 1e-2
    steps(theirs, 1)
    # And back into ours, bit for bit.
    other = AdamW([Parameter(torch.zeros_like(p)) for p in parameters(first)], precision="split16")
    report = load_converted(other, state, weights)
    assert report.exact
    assert_same(without_gradients(stored(other)), without_gradients(stored(first)))
    assert other.param_groups[0]["lr"] == 1e-3, "its own"


def test_load_a_state_dict_of_another_precision(tmp_path: Any) -> None:
    first = trained("master")
    torch.save(first.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = AdamW([Parameter(p.detach().clone()) for p in parameters(first)], precision="split16")
    report = load_converted(second, state)
    assert {r.what for r in report.rounded} == {"exp_avg", "exp_avg_sq"}
    for p, q in zip(parameters(first), parameters(second), strict=True):
        assert_same_bits(second.master_weight(q), first.state[p]["master_param"])


# --- what does not fit --------------------------------------------------------------------------


def test_nothing_changes() -> None:
    first = trained("master")
    kept = without_gradients(stored(first))
    target = trained("plus")
    before = without_gradients(stored(target))
    broken = copy.deepcopy(first.state_dict())
    broken["state"][3]["exp_avg"] = torch.zeros(5)
    moment = copy.deepcopy(first.state_dict())
    del moment["state"][3]["exp_avg_sq"]
    for state, params, words in (
        (broken, None, r"'exp_avg' of params\[3\] of param_groups\[0\] has shape \[5\]; known"),
        (moment, None, r"params\[3\].*needs \['exp_avg_sq'\]; the source has \['exp_avg'\]"),
        (first.state_dict(), [torch.zeros(3)], "is of 4 parameters; params has 1"),
        (first.state_dict(), [torch.zeros(3)] * 4, r"params\[0\].*has shape \[7, 5\]"),
    ):
        with pytest.raises(ValueError, match=words):
            load_converted(target, state, params)
        assert_same(without_gradients(stored(target)), before)
    with pytest.raises(ValueError, match="params has 1 tensors; the optimizer has 4"):
        convert(first, "plus", params=[torch.zeros(3)])
    with pytest.raises(ValueError, match="precision: 'double'"):
        convert(first, "double")
    with pytest.raises(ValueError, match=r"needs .*exp_avg_sq"):
        convert(trained_lion(), to=AdamW)
    with pytest.raises(ValueError, match="called as Rprop is; name one with to="):
        convert(torch.optim.Rprop([parameter(3, FP32)]))
    assert_same(without_gradients(stored(first)), kept)


def trained_lion() -> Lion:
    optimizer = Lion([parameter(3, BF16)])
    steps(optimizer, 1)
    return optimizer


def test_groups_names_and_parameters_without_states() -> None:
    model = nn.Linear(3, 2).to(BF16)
    groups = [
        {"params": [("w", model.weight)], "lr": 0.5},
        {"params": [("b", model.bias)], "eps": 1e-3},
    ]
    first = AdamW(groups, nonfinite="skip", max_grad_norm=2.0)  # type: ignore[arg-type]
    model.weight.grad = torch.ones_like(model.weight)
    first.step()
    second, _ = convert(first, "light", weight_decay=0.25)
    assert [g["param_names"] for g in second.param_groups] == [["w"], ["b"]]
    assert [g["lr"] for g in second.param_groups] == [0.5, 1e-3]
    assert [g["eps"] for g in second.param_groups] == [1e-8, 1e-3]
    assert [g["weight_decay"] for g in second.param_groups] == [0.25, 0.25]
    assert (second.nonfinite, second.max_grad_norm) == ("skip", 2.0)
    assert not second.state.get(model.bias)


# --- the rounding -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_values_round_once(dtype: torch.dtype) -> None:
    # Halfway between two numbers, and by 2**-60 off it: float32 alone would call all of them ties.
    base = random(300, dtype, 1).double()
    up = torch.nextafter(base.to(dtype), torch.full((300,), math.inf, dtype=dtype)).double()
    middle = (base + up) / 2
    for rest in (2.0**-60, -(2.0**-60), 0.0):
        e = torch.full_like(middle, rest)
        found = values.rounded((middle, e), dtype).double()
        expected = torch.where(e > 0, up, base)
        if rest == 0:
            expected = torch.where(found == base, base, up)
            last = found.to(dtype).view(torch.int16 if dtype.itemsize == 2 else torch.int32)
            assert (last & 1 == 0).all(), "ties to even"
        assert_same_bits(found, expected)


def test_values_of_special_numbers() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e39, 1e-46, 5e-324], dtype=FP64)
    for dtype in (BF16, FP32):
        assert_same_bits(values.rounded(values.exact(x), dtype), x.to(dtype))
    high, low = torch.tensor([1.0]), torch.tensor([2.0**-80])
    s, e = values.exact(high, low)
    assert (s.item(), e.item()) == (1.0, 2.0**-80)


def test_metrics_go_on() -> None:
    p = Parameter(torch.ones(4, dtype=torch.bfloat16))
    made, _ = convert(AdamW([p], track_metrics=True), "light")
    p.grad = torch.ones_like(p)
    made.step()
    assert made.metrics()["update_norm"] > 0


@pytest.mark.parametrize("name", ["max_grad_norm", "lrr"])
@pytest.mark.parametrize("target", [AdamW, torch.optim.AdamW])
def test_options_that_no_group_has_are_refused(name: str, target: Any) -> None:
    # Else they would lie in the group without effect.
    optimizer = AdamW([Parameter(torch.ones(4))])
    with pytest.raises(TypeError, match=rf"options \['{name}'\] are none of AdamW's groups"):
        convert(optimizer, to=target, **{name: 1.0})
