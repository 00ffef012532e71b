"""Another precision: each number exact, or rounded once and reported.

The oracle is Fraction arithmetic on the stored numbers. Mutants these tests catch: a report that
misses a rounded tensor, a lost low word, a step that is not copied.
"""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import AdamW, convert
from mcf.optim.storage import codes
from tests.helpers import assert_same_bits
from tests.optim.conversion_cases import trained
from tests.optim.helpers import BF16, assert_same, parameter, parameters, steps, stored
from tests.optim.test_amp import without_gradients

pytestmark = pytest.mark.usefixtures("on_torch")

PRECISIONS = AdamW.precisions


def fractions(optimizer: AdamW, p: Tensor) -> dict[str, list[Fraction]]:
    """What is stored for a parameter, exactly."""
    state = optimizer.state[p]
    parts = {"param": optimizer.master_weight(p, exact=True)}
    for name in ("exp_avg", "exp_avg_sq"):
        low = (state[f"{name}_lo"],) if f"{name}_lo" in state else ()
        number = codes.read(name, state) if codes.holds(name, state) else state[name]
        parts[name] = (number, *low)
    return {
        name: [
            sum((Fraction(x) for x in element), Fraction(0))
            for element in zip(*(c.double().flatten().tolist() for c in components), strict=True)
        ]
        for name, components in parts.items()
    }


PAIRS = list(itertools.product(PRECISIONS, PRECISIONS))


@pytest.mark.sampled
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


def test_checkpoints_of_split_weights_are_converted() -> None:
    """Their 16-bit integers are pairs of bytes in a state dict."""
    source = AdamW([parameter((5, 3), BF16)], 1e-2, precision="split16")
    steps(source, 2)
    target = AdamW([parameter((5, 3), BF16)], 1e-2, precision="master")
    kept = [p.detach().clone() for p in parameters(source)]
    report = mcf.optim.load_converted(target, copy.deepcopy(source.state_dict()), kept)
    assert report.exact
    for p, q in zip(parameters(source), parameters(target), strict=True):
        assert_same_bits(target.master_weight(q), source.master_weight(p))
