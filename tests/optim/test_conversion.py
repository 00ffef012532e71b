"""An optimizer that conversions begin with."""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import (
    AdamW,
    Lion,
    convert,
    float32_checkpoint,
    float32_weights,
    load_converted,
    load_float32_weights,
)
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits, numbers
from tests.optim.arithmetics import BF16, FP32, FP64, Case, cases
from tests.optim.helpers import (
    assert_same,
    parameter,
    parameters,
    random,
    steps,
    stored,
    through_file,
    value,
    without_gradients,
)

pytestmark = pytest.mark.usefixtures("on_torch")


SHAPES = [(7, 5), (), (0,), (3,)]


def trained(precision: str, dtype: torch.dtype = BF16, count: int = 4, **options: Any) -> AdamW:
    optimizer = AdamW(
        [parameter(s, dtype, k) for k, s in enumerate(SHAPES)], 1e-2, precision=precision, **options
    )
    steps(optimizer, count)
    return optimizer


PRECISIONS = AdamW.precisions


def fractions(optimizer: AdamW, p: Tensor) -> dict[str, list[Fraction]]:
    """Return the numbers stored for a parameter, exactly."""
    state = optimizer.state[p]
    parts = {"param": optimizer.master_weight(p, exact=True)}
    for name in ("exp_avg", "exp_avg_sq"):
        number = codes.read(name, state) if codes.holds(name, state) else state[name]
        parts[name] = (number, *(state[n] for n in (f"{name}_lo",) if n in state))
    return {
        name: [sum(xs, Fraction(0)) for xs in zip(*map(numbers, components), strict=True)]
        for name, components in parts.items()
    }


PAIRS = list(itertools.product(PRECISIONS, PRECISIONS))


@pytest.mark.sampled
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-to-".join(p) for p in PAIRS])
def test_every_pair_is_exact_or_rounded_once_and_reported(source: str, target: str) -> None:
    first = trained(source)
    before = [fractions(first, p) for p in parameters(first)]
    kept = stored(first)
    fresh = [Parameter(torch.full_like(p, 7.0)) for p in parameters(first)]
    second, report = convert(first, target, params=fresh)
    assert_same(stored(first), kept, "the source is as it was")
    assert all(p is q for p, q in zip(parameters(second), fresh, strict=True))
    rounded = {(r.where.split(" ")[0], r.what): r for r in report.rounded}
    for k, (p, old) in enumerate(zip(fresh, before, strict=True)):
        new = fractions(second, p)
        assert second.state[p]["step"].item() == 4
        for name, exact in old.items():
            errors = [abs(a - b) / abs(a) for a, b in zip(exact, new[name], strict=True) if a != b]
            entry = rounded.pop((f"params[{k}]", name), None)
            assert (entry.elements if entry else 0) == len(errors), name
            if entry:
                assert math.isclose(entry.largest, float(max(errors)), rel_tol=1e-9)
                # Never worse than one rounding to 8 bits of precision, or those of a code.
                coded = codes.holds(name, second.state[p])
                bits = {"exp_avg": 4, "exp_avg_sq": 3}.get(name, 8) if coded else 8
                assert max(errors) <= Fraction(1, 2**bits)
    assert not rounded
    if source == target:
        assert report.exact
        assert_same(without_gradients(stored(second)), without_gradients(kept))
    steps(second, 1)


@pytest.mark.sampled(every=6)
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


@pytest.mark.slow
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


# -- states ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("source", "target", "rounded"),
    [("master", "split16", {"exp_avg", "exp_avg_sq"}), ("split16", "master", set())],
)
def test_state_dict_of_another_precision_is_loaded(
    source: str, target: str, rounded: set[str]
) -> None:
    """The 16-bit integers of split weights are pairs of bytes in a state dict."""
    first = trained(source)
    second = AdamW([Parameter(p.detach().clone()) for p in parameters(first)], precision=target)
    report = load_converted(second, through_file(first.state_dict()))
    assert {r.what for r in report.rounded} == rounded
    for p, q in zip(parameters(first), parameters(second), strict=True):
        assert_same_bits(second.master_weight(q), first.master_weight(p))


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
    with pytest.raises(ValueError, match=r"precision must be one of .*, got 'double'"):
        convert(first, "double")
    lion = Lion([parameter(3, BF16)])
    steps(lion, 1)
    with pytest.raises(ValueError, match=r"needs .*exp_avg_sq"):
        convert(lion, to=AdamW)
    with pytest.raises(ValueError, match="named like Rprop; pass its class as to="):
        convert(torch.optim.Rprop([parameter(3, FP32)]))
    assert_same(without_gradients(stored(first)), kept)


def test_groups_names_and_parameters_without_states() -> None:
    model = nn.Linear(3, 2).to(BF16)
    groups = [
        {"params": [("w", model.weight)], "lr": 0.5},
        {"params": [("b", model.bias)], "eps": 1e-3},
    ]
    first = AdamW(groups, nonfinite="skip", max_grad_norm=2.0, track_metrics=True)  # type: ignore[arg-type]
    model.weight.grad = torch.ones_like(model.weight)
    first.step()
    second, _ = convert(first, "light", weight_decay=0.25)
    assert [g["param_names"] for g in second.param_groups] == [["w"], ["b"]]
    assert [g["lr"] for g in second.param_groups] == [0.5, 1e-3]
    assert [g["eps"] for g in second.param_groups] == [1e-8, 1e-3]
    assert [g["weight_decay"] for g in second.param_groups] == [0.25, 0.25]
    assert (second.nonfinite, second.max_grad_norm) == ("skip", 2.0)
    assert not second.state.get(model.bias)
    second.step()
    assert second.metrics()["update_norm"] > 0


@pytest.mark.parametrize("name", ["max_grad_norm", "lrr"])
@pytest.mark.parametrize("target", [AdamW, torch.optim.AdamW])
def test_options_that_no_group_has_are_refused(name: str, target: Any) -> None:
    # Else they would lie in the group without effect.
    optimizer = AdamW([Parameter(torch.ones(4))])
    with pytest.raises(TypeError, match=rf"options \['{name}'\] are none of AdamW's groups"):
        convert(optimizer, to=target, **{name: 1.0})


# -- float32 ---------------------------------------------------------------------------------------


# The bits of a weight that each keeps; without an entry bf16's.
BITS = {
    **dict.fromkeys(("kahan", "light", "plus", "split8", "split8_sr", "split8_8bit"), 16),
    **dict.fromkeys(("split16", "split16_sr", "split16_8bit", "master"), 24),
}


def model() -> nn.Module:
    """A float32 model with a buffer and a parameter under two names."""
    made = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(5, 4, bias=False))
    made[2].weight = made[0].weight
    with torch.no_grad():
        for k, t in enumerate(made.state_dict().values()):
            t.copy_(random(t.shape, FP32, k) if t.is_floating_point() else t + 3)
    return made


def started(precision: str, **options: Any) -> tuple[nn.Module, Any, dict[str, Tensor], Any]:
    net = model()
    weights = net.state_dict()
    net = net.to(BF16)
    optimizer = AdamW(net.parameters(), 1e-3, precision=precision, **options)
    return net, optimizer, weights, load_float32_weights(net, optimizer, weights)


@pytest.mark.parametrize("precision", mcf.optim.PRECISIONS)
def test_all_bits_that_are_stored(precision: str) -> None:
    net, optimizer, weights, report = started(precision)
    bits = BITS.get(precision, 8)
    for name in ("0.weight", "0.bias", "1.weight"):
        p = net.get_parameter(name)
        for found, right in zip(
            value(optimizer, p).flatten().tolist(), weights[name].flatten().tolist(), strict=True
        ):
            off = abs(Fraction(found) - Fraction(right))
            assert off <= Fraction(2) ** -bits * abs(Fraction(right))
            if bits == 24:
                assert not off
        # What the model computes with is the weight, rounded once.
        assert_same_bits(p.detach(), weights[name].to(BF16))
    assert net[2].weight is net[0].weight
    assert_same_bits(net[1].running_mean, weights["1.running_mean"].to(BF16))
    assert net[1].num_batches_tracked == weights["1.num_batches_tracked"]
    assert report.exact == (bits == 24)
    if not report.exact:
        assert str(report).startswith("param of 0.weight: ")
        assert all(r.largest <= 2.0**-bits for r in report.rounded)


@pytest.mark.parametrize("precision", ["plus", "split16", "master"])
def test_the_first_step_begins_there(precision: str) -> None:
    """The optimizer steps as one converted from torch's, which had made no step."""
    _net, optimizer, weights, _ = started(precision)
    steps(optimizer, 2)
    wide = [nn.Parameter(weights[n].clone()) for n in ("0.weight", "0.bias", "1.weight", "1.bias")]
    params = [nn.Parameter(p.to(BF16)) for p in wide]
    converted, _ = mcf.optim.convert(torch.optim.AdamW(wide, 1e-3), precision, params=params)
    steps(converted, 2)
    assert_same(stored(optimizer), stored(converted))


def test_there_and_back() -> None:
    net, optimizer, weights, _ = started("split16")
    found = float32_weights(net, optimizer)
    for name, t in found.items():
        right = weights[name]
        assert_same_bits(t, right if name in ("0.weight", "1.bias") else right.to(t.dtype), name)


def test_moments_stay() -> None:
    net, optimizer, weights, _ = started("plus")
    steps(optimizer, 2)
    before = {n: t for n, t in stored(optimizer).items() if not n.endswith(("param", "param_lo"))}
    load_float32_weights(net, optimizer, weights)
    after = {n: t for n, t in stored(optimizer).items() if n in before}
    assert_same(after, before)
    error = optimizer.master_weight(net[0].weight) - weights["0.weight"]
    assert (error / weights["0.weight"]).abs().max() <= 2.0**-16


def test_frozen_parameters_and_those_of_nobody_are_copied() -> None:
    net = model()
    weights = net.state_dict()
    net = net.to(BF16)
    net[0].bias.requires_grad_(False)
    optimizer = AdamW([net[0].weight, net[0].bias], precision="light")
    load_float32_weights(net, optimizer, weights)
    assert_same_bits(net[0].bias.detach(), weights["0.bias"].to(BF16))
    assert_same_bits(net[1].weight.detach(), weights["1.weight"].to(BF16))
    assert optimizer.state.keys() == {net[0].weight}


def test_float64_weights_of_wrapped_names() -> None:
    net = model()
    weights = {f"module.{n}": t.to(FP64) for n, t in net.state_dict().items() if n != "2.weight"}
    optimizer = AdamW(net.to(BF16).parameters(), precision="split16")
    assert load_float32_weights(net, optimizer, weights).exact


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("0.bias"), r"weights lack \['0.bias'\] and have the unknown names \[\]"),
        (lambda w: w.update(x=torch.zeros(1)), r"lack \[\] and have the unknown names \['x'\]"),
        (
            lambda w: w.update({"1.bias": torch.zeros(3)}),
            r"weights\['1.bias'\] has shape \[3\]; the model's \[4\]",
        ),
        (
            lambda w: w.update({"1.bias": torch.zeros(4, dtype=torch.int8)}),
            r"weights\['1.bias'\] has dtype torch.int8; allowed are torch.bfloat16",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, words: str) -> None:
    net = model()
    weights = dict(net.state_dict())
    optimizer = AdamW(net.to(BF16).parameters(), precision="plus")
    before = {n: t.clone() for n, t in net.state_dict().items()}
    change(weights)
    with pytest.raises((ValueError, TypeError), match=words):
        load_float32_weights(net, optimizer, weights)
    assert_same(dict(net.state_dict()), before)
    assert not optimizer.state


# -- the number that is really stored for a parameter --------------------------------------------


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_master_weight_is_the_sum_of_the_components(case: Case) -> None:
    p = parameter((5, 7), case.dtype)
    optimizer = AdamW([p], 1e-2, eps=1e-4, **case.options())
    steps(optimizer, 3)
    state, components = optimizer.state[p], optimizer.master_weight(p, exact=True)
    if "param_bits" in state:
        # Joined to one float32; test_rules.py has its value.
        assert [c.dtype for c in components] == [FP32]
    else:
        own = [state["master_param"]] if "master_param" in state else [p.detach()]
        low = [state["param_lo"]] if "param_lo" in state else []
        for found, expected in zip(components, own + low, strict=True):
            assert_same_bits(found, expected)
    rounded = optimizer.master_weight(p)
    assert not rounded.requires_grad
    exact = [sum(xs, Fraction(0)) for xs in zip(*map(numbers, components), strict=True)]
    expected = torch.tensor([float(x) for x in exact], dtype=FP64).to(FP32).view(p.shape)
    assert_same_bits(rounded, expected)
    before = value(optimizer, p)
    rounded.zero_()
    assert_same_bits(value(optimizer, p), before, "it is a copy")


@pytest.mark.parametrize(
    ("precision", "dtype", "count"),
    [*((p, BF16, 0) for p in AdamW.precisions), ("plus", FP32, 2), ("plus", FP64, 2)],
)
def test_master_weight_without_further_bits_is_the_parameter(
    precision: str, dtype: torch.dtype, count: int
) -> None:
    p = parameter(4, dtype)
    optimizer = AdamW([p], precision=precision)
    steps(optimizer, count)
    wide = p.detach().float() if dtype == BF16 else p.detach()
    assert_same_bits(optimizer.master_weight(p), wide)
    assert_same_bits(optimizer.master_weight(p, exact=True)[0], p.detach())


def test_master_weight_of_no_parameter_is_refused() -> None:
    p = parameter((2, 3), BF16)
    optimizer = AdamW([p])
    for wrong in (p.detach(), p.clone(), parameter((2, 3), BF16)):
        with pytest.raises(ValueError, match=r"p of shape \[2, 3\] is not one of this optimizer"):
            optimizer.master_weight(wrong)
