"""Storage of each precision in every dtype, compositions, and refusals.

Exact: names, dtypes and bytes are those of the documentation (the docstring of AdamW and
docs/optimizers.md, which are read here). Each composition has the same bits on the executors; where
it differs from a named precision in one tensor's storage only, the first step's other tensors are
that precision's, because registers are float32 until each result is stored.

A float64 parameter has the bits and states of `precision="plain"` under every precision. A float32
weight is what `split16` stores in a bf16 weight and 16 bits, and registers are float32 in both: the
two have the same bits after every step, moments included, if gradients are the same numbers.
Mutants that fail: random bits of another stream, moments rounded to nearest, a weight rounded in
between.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    CollageAdamW,
    Lion,
    Muon,
    NAdam,
    Precision,
    ScheduleFreeAdamW,
    StableAdamW,
    convert,
    param_groups,
)
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.precision import strategy_of
from mcf.optim.storage.strategies import PLAIN
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.arithmetics import BF16, FP16, FP32, FP64, STRICT, Case, cases
from tests.optim.helpers import assert_same, parameter, random, steps, stored
from tests.optim.variants import COMPOSED, RECENT, VARIANTS, Variant, named

pytestmark = pytest.mark.usefixtures("on_torch")

PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()


def held(optimizer: Any, p: Any) -> float:
    """Return the bytes of a parameter, its gradient and its states, for each element."""
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.dim())]
    found: float = sum(t.nbytes for t in tensors) / p.numel()
    return found


# -- names, dtypes and bytes ---------------------------------------------------------------------

# The dtype of each state; None for the parameter's.
MOMENTS: dict[str, Any] = {"exp_avg": None, "exp_avg_sq": None}
WIDE, CODES = (dict.fromkeys(MOMENTS, dtype) for dtype in (FP32, torch.uint8))
PAIR = {**MOMENTS, "param_lo": None}
BITS16, BITS8 = ({"param_bits": dtype} for dtype in (torch.int16, torch.int8))
# With a 16-bit gradient: bytes, states.
TABLE: dict[str, tuple[float, dict[str, Any]]] = {
    "plain": (8, MOMENTS),
    "kahan": (10, PAIR),
    "light": (10, PAIR),
    "plus": (12, {**PAIR, "exp_avg_sq_lo": None}),
    "split16": (10, MOMENTS | BITS16),
    "split16_sr": (10, MOMENTS | BITS16),
    "split16_8bit": (8, CODES | BITS16),
    "split8": (9, MOMENTS | BITS8),
    "split8_sr": (9, MOMENTS | BITS8),
    "stochastic": (8, MOMENTS),
    "bf16_sr": (8, MOMENTS),
    "8bit": (6, CODES),
    "4bit": (5.5, CODES),
    "split8_8bit": (7, CODES | BITS8),
    "eco": (8, MOMENTS),
    "eco_stochastic": (8, MOMENTS),
    "fp32_states": (12, WIDE),
    "master": (16, {**WIDE, "master_param": FP32}),
}


def test_docstring_has_every_precision_and_its_bytes() -> None:
    assert set(TABLE) == set(mcf.optim.PRECISIONS) == set(AdamW.precisions)
    assert AdamW.__doc__ is not None
    said = dict(re.findall(r'- `"(\w+)"` \(([\d.]+)\)', AdamW.__doc__))
    assert said == {name: str(size) for name, (size, _) in TABLE.items()}


@pytest.mark.parametrize("case", cases(), ids=str)
def test_states_have_their_names_dtypes_and_bytes(case: Case) -> None:
    size, expected = TABLE[case.precision]
    p = parameter((3, 6), case.dtype)
    optimizer = AdamW([p], eps=1e-4, **case.options())
    assert not optimizer.state, "made before the first step"
    steps(optimizer, 1)
    state = dict(optimizer.state[p])
    assert held(optimizer, p) == size
    count = state.pop("step")
    assert (count.dtype, count.shape) == (torch.int64, ())
    assert state.keys() == expected.keys()
    # The one exception: squares of gradients leave the range of fp16.
    second = BF16 if case.dtype == FP16 and not case.strict else case.dtype
    for name, t in state.items():
        own = second if name.startswith("exp_avg_sq") else case.dtype
        packed = case.precision == "4bit" and name == "exp_avg"
        assert t.dtype == (expected[name] or own), name
        assert t.shape == ((3, 3) if packed else (3, 6)), name
        assert t.device == p.device, name
        assert not t.requires_grad, name


ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW, Adam": (AdamW, {}),
    "with `amsgrad`": (AdamW, {"amsgrad": True}),
    "NAdam, RAdam": (NAdam, {}),
    "Adamax": (Adamax, {}),
    "StableAdamW": (StableAdamW, {}),
    "AdEMAMix": (AdEMAMix, {}),
    "Adan": (Adan, {}),
    "ScheduleFreeAdamW": (ScheduleFreeAdamW, {}),
    "Lion": (Lion, {}),
    "Muon": (Muon, {}),
    "SGD": (SGD, {}),
    "SGD with momentum": (SGD, {"momentum": 0.9}),
}


def size(make: Any, precision: str, options: dict[str, Any]) -> str:
    """Return the bytes per parameter after a step, or a dash."""
    p = parameter((2, 4), BF16)
    try:
        optimizer = make([p], precision=precision, **options)
    except ValueError:
        return "-"
    steps(optimizer, 1)
    return f"{held(optimizer, p):g}"


def test_page_has_the_bytes_of_every_rule() -> None:
    lines = PAGE.split("<!-- bytes: begin -->\n")[1].split("<!-- bytes: end -->")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    precisions = [cell.strip("`") for cell in header[1:]]
    assert set(precisions) == set(mcf.optim.PRECISIONS)
    assert [row[0] for row in rows] == list(ROWS)
    for name, *cells in rows:
        make, options = ROWS[name]
        assert cells == [size(make, precision, options) for precision in precisions], name


def test_page_has_a_row_for_every_optimizer() -> None:
    found = {
        name
        for name, value in vars(mcf.optim).items()
        if isinstance(value, type) and issubclass(value, LowPrecisionOptimizer)
    }
    section = PAGE.split("\n## Rules\n")[1].split("<!-- bytes: begin -->")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert listed == found - {"CollageAdamW"}
    for name in listed - {"Lion", "AdEMAMix", "Adan", "ScheduleFreeAdamW", "StableAdamW"}:
        assert issubclass(getattr(torch.optim, name), torch.optim.Optimizer)


def test_states_keep_the_memory_layout() -> None:
    # Dense in any order: a kernel then reads all in one stride.
    p = Parameter(parameter((6, 8), BF16).detach().t())
    optimizer = AdamW([p])
    steps(optimizer, 1)
    assert {t.stride() for t in optimizer.state[p].values() if t.dim()} == {p.stride()}


# -- compositions --------------------------------------------------------------------------------

PARAM = ("single", "kahan", "pair", "split16", "split8", "float32")
PAIRS = list(itertools.product(("single", "float32"), ("single", "pair", "float32")))
ALL = [Precision(p, m, v) for p in PARAM for m, v in PAIRS]
ALL += [Precision(p, m, v, "stochastic") for p in (*PARAM[:3], "split8") for m, v in PAIRS]
ALL += [
    Precision(p, m, v)
    for p in ("pair", "split8")
    for m in ("stochastic", "ratio8")
    for v in ("stochastic", "float32", "ue6m2", "pair")
]
ALL += [
    Precision("split16", "ratio4", "ue6m2"),
    Precision("pair", "ratio4", "float32", rounding="stochastic"),
    Precision("float32", "ratio4", "pair"),
    Precision("split8", "ratio4", "stochastic"),
]
ALL += [Precision("single", m, v, r, True) for m, v in PAIRS for r in ("nearest", "stochastic")]


def test_named_precisions_are_instances() -> None:
    for name in mcf.optim.PRECISIONS:
        precision = Precision.of(name)
        assert str(precision) == name
        assert Precision.of(str(precision)) == precision
    plus = Precision("pair", exp_avg_sq="pair")
    assert AdamW([parameter(3, BF16)], precision=plus).param_groups[0]["precision"] == "plus"
    assert str(Precision("float32", "float32", "float32")) == "master"
    assert str(Precision("kahan", rounding="stochastic")) == "kahan_single_single_stochastic"


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("precision", ALL, ids=str)
def test_composition_has_its_bytes_and_goes_on_by_its_name(precision: Precision) -> None:
    assert Precision.of(str(precision)) == precision
    p = parameter((3, 6), BF16)
    optimizer = AdamW([p], precision=precision)
    steps(optimizer, 2)
    assert held(optimizer, p) == precision.bytes_per_param
    dtypes = {"float32": FP32, "ratio8": torch.uint8, "ratio4": torch.uint8}
    assert optimizer.state[p]["exp_avg"].dtype == dtypes.get(precision.exp_avg, BF16)
    other = AdamW([Parameter(p.detach().clone())], precision=str(precision))
    other.load_state_dict(optimizer.state_dict())
    for o in (optimizer, other):
        steps(o, 2, seed=9)
    assert_same(stored(other), stored(optimizer))


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_storage_of_one_tensor_does_not_change_the_others(executor: str) -> None:
    def first_step(precision: Any) -> dict[str, torch.Tensor]:
        optimizer = AdamW([parameter(200, BF16)], 1e-2, precision=precision)
        steps(optimizer, 1)
        return stored(optimizer)

    with mcf.executor(executor):
        plus, mixed = first_step("plus"), first_step(Precision("pair", "float32", "pair"))
    mixed["0.exp_avg"] = mixed["0.exp_avg"].to(BF16)
    assert_same(mixed, plus)


# -- refusals ------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"param": "bf16"}, "param of Precision must be one of 'single', 'kahan'.*, got 'bf16'"),
    ({"param": "plus"}, r"param='plus' is the name .* precision='plus', or Precision.of\('plus'\)"),
    ({"exp_avg": "pair"}, "exp_avg='pair': it forgets in .* allowed are 'single', 'float32', 'st"),
    ({"exp_avg_sq": "kahan"}, "exp_avg_sq='kahan': .* allowed are 'single', 'pair', 'float32'"),
    ({"exp_avg_sq": "half"}, "exp_avg_sq must be one of .*, got 'half'"),
    ({"rounding": "up"}, "rounding must be one of .*, got 'up'"),
    ({"param": "float32", "rounding": "stochastic"}, "'float32', which keeps float32 exactly"),
    ({"param": "split16", "rounding": "stochastic"}, "'split16', which keeps float32 exactly"),
    ({"param": "pair", "feedback": True}, "feedback=True with param='pair', which stores what"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_unfit_composition_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Precision(**given)


FEEDBACK = Precision(exp_avg="float32", feedback=True)
REFUSED: list[tuple[Any, torch.dtype, dict[str, Any], str]] = [
    (CollageAdamW, BF16, {"mode": "pair_float32_pair"}, "mode must be .* got 'pair_float32_pair'"),
    (CollageAdamW, BF16, {"mode": "master"}, "one of 'light', 'plus', 'kahan', got 'master'"),
    (CollageAdamW, BF16, {"precision": "plain"}, "'light', 'plus', 'kahan'"),
    (SGD, BF16, {"precision": Precision("pair", exp_avg_sq="pair")}, "'plus' stores a second mom"),
    (AdamW, BF16, {"precision": "pair_single"}, "precision must be one of .*, got 'pair_single'"),
    (AdamW, BF16, {"precision": "split16sr"}, r"got 'split16sr' \(did you mean 'split16_sr'\?\)$"),
    (AdamW, BF16, {"precision": "xyz"}, "got 'xyz'$"),
    (NAdam, BF16, {"precision": FEEDBACK}, "the update of NAdam is a multiple of"),
    (Lion, BF16, {"precision": FEEDBACK}, "the update of Lion is a multiple of"),
    (AdamW, BF16, {"precision": COMPOSED[0], "compute_dtype": BF16}, "bfloat16 with precision='pa"),
    (AdamW, FP16, {"precision": COMPOSED[1]}, r"'split16_single_float32' with .*float16"),
    *(
        (AdamW, dtype, {"precision": p, "compute_dtype": dtype, "eps": 1e-4},
         f"compute_dtype={dtype}.*'{p}'.*one of 'plain'")
        for p in TABLE
        if p not in STRICT
        for dtype in (BF16, FP16)
    ),
    *(
        (AdamW, dtype, {"compute_dtype": other, "eps": 1e-4},
         rf"compute_dtype is {other}, but params\[0\] of param_groups\[0\] has dtype {dtype}")
        for dtype, other in ((BF16, FP16), (FP16, BF16))
    ),
    *(
        (AdamW, FP16, {"precision": p, "compute_dtype": FP16, "eps": eps},
         r"epsilon .* is 0 in fp16 arithmetic .* allowed is more")
        for p in STRICT
        for eps in (1e-8, 2.0**-25)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "dtype", "options", "words"), REFUSED)
def test_precision_that_an_optimizer_has_not_is_refused(
    make: Any, dtype: torch.dtype, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make([{"params": [parameter(3, dtype)], **options}])


def test_strict_arithmetic_takes_compositions_of_components() -> None:
    p = parameter(3, BF16)
    optimizer = AdamW([p], precision=Precision("single", "single", "pair"), compute_dtype=BF16)
    steps(optimizer, 2)
    assert set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"}


def test_collage_has_its_modes() -> None:
    p = parameter(3, BF16)
    for mode in ("light", "plus", "kahan"):
        assert CollageAdamW([p], mode=mode).param_groups[0]["precision"] == mode
    assert CollageAdamW([p]).param_groups[0]["precision"] == "plus"


# -- float16: a range in which squares of gradients vanish ---------------------------------------


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", [c for c in cases(dtypes=(FP16,)) if not c.strict], ids=str)
def test_float16_takes_ordinary_steps_under_tiny_gradients(case: Case) -> None:
    # g^2 = 1e-10 is 0 in fp16 (smallest 6e-8), and lr m / (sqrt(0) + 1e-8) would be 1000 lr.
    lr, count = 1e-3, 20
    p = Parameter(torch.ones(100, dtype=FP16))
    # "plain" loses most of such updates, as it should.
    optimizer = AdamW([p], lr, weight_decay=0.0, precision=case.precision, check_numerics=False)
    steps(optimizer, count, scale=1e-5)
    assert (optimizer.state[p]["exp_avg_sq"] > 0).all()
    # Each step is at most lr in size but for the first few's bias correction.
    assert (p.detach() - 1).abs().max() < 2 * count * lr


@pytest.mark.parametrize("eps", [0.0, 2.0**-25 * 1.001, 1e-4])
def test_eps_that_float16_holds_is_accepted(eps: float) -> None:
    # 0 is the user's own wish, as in torch; 2^-25 is a tie that rounds to 0.
    AdamW([parameter(3, FP16)], eps=eps, compute_dtype=FP16)
    AdamW([parameter(3, FP16)], eps=1e-8)


# -- float32 and float64 parameters --------------------------------------------------------------


def plain_cases(make: Any, arithmetics: Any) -> list[Any]:
    """Return dtypes, precisions and arithmetics in which parameters are stored as by "plain"."""
    fewer = {p for p in make.precisions if strategy_of(p).of_float32() != PLAIN}
    assert {"bf16_sr", "8bit"} <= fewer
    precisions = [(d, p) for d in (FP32, FP64) for p in make.precisions]
    kept = [(d, p) for d, p in precisions if d == FP64 or p not in fewer]
    return [(make, d, p, c) for d, p in kept for c in arithmetics]


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    ("make", "dtype", "precision", "compute_dtype"),
    [*plain_cases(AdamW, (FP32, BF16, FP16)), *plain_cases(SGD, (FP32,))],
)
def test_full_precision_is_plain_under_every_precision(
    make: Any, dtype: torch.dtype, precision: str, compute_dtype: torch.dtype
) -> None:
    rule = {"momentum": 0.9} if make is SGD else {}
    results = []
    for options in (
        {"precision": "plain"},
        {"precision": precision, "compute_dtype": compute_dtype},
    ):
        optimizer = make([parameter((5, 7), dtype)], 1e-2, **rule, **options)
        steps(optimizer, 5)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])
    moments = ("momentum_buffer",) if rule else ("exp_avg", "exp_avg_sq")
    assert results[0].keys() == {f"0.{n}" for n in ("param", "grad", "step", *moments)}
    assert {results[0][f"0.{n}"].dtype for n in moments} == {dtype}


SHAPE = (6, 10)
# A precision for float32 parameters, and the one for bf16 parameters with the same moments.
SAME = {
    "bf16_sr": "split16_sr",
    "split16_sr": "split16_sr",
    "split8_sr": "split16_sr",
    "8bit": "split16_8bit",
    "split8_8bit": "split16_8bit",
    "4bit": "split16_ratio4_ue6m2",
}


def started(make: Any, precision: str, dtype: torch.dtype, **options: Any) -> Any:
    """Return an optimizer whose stored weights are bf16 numbers."""
    params = [Parameter(random(s, BF16, k).to(dtype)) for k, s in enumerate((SHAPE, (7,), ()))]
    return make(params, precision=precision, **options)


def run(optimizer: Any, first: int, count: int) -> None:
    """Make steps with gradients that are bf16 numbers in every dtype."""
    for t in range(first, first + count):
        for k, p in enumerate(optimizer.param_groups[0]["params"]):
            p.grad = random(p.shape, BF16, 100 * t + k, 0.1).to(p.dtype)
        optimizer.step()


def assert_same_training(wide: Any, split: Any) -> None:
    """Compare float32 parameters with bf16 parameters and their 16 bits, and all moments."""
    for p, q in zip(*(o.param_groups[0]["params"] for o in (wide, split)), strict=True):
        assert (p.dtype, q.dtype) == (FP32, BF16)
        assert_same_bits(split.master_weight(q), p.detach())
        theirs = {n: t for n, t in split.state[q].items() if n != "param_bits"}
        assert_same(dict(wide.state[p]), theirs)


ON_FLOAT32 = [
    *((named("adamw"), "torch", precision) for precision in SAME),
    *((v, e, "split16_sr") for v in [*VARIANTS, *RECENT] for e in ("torch", "numba", "triton")),
]


@pytest.mark.parametrize(
    ("variant", "executor", "precision"),
    # On Numba each rule is a kernel of its own, and in Triton's interpreter it takes a second.
    everyday(
        ON_FLOAT32,
        lambda v, executor, precision: (
            (executor == "torch" and (v.name == "adamw" or v in RECENT))
            or (v.name, executor) == ("adamw", "numba")
        ),
    ),
    ids=str,
)
def test_float32_has_the_bits_of_split16(variant: Variant, executor: str, precision: str) -> None:
    with mcf.executor(executor):
        wide, split = (
            started(variant.make, p, d, **variant.options, seed=5)
            for p, d in ((precision, FP32), (SAME[precision], BF16))
        )
        for optimizer in (wide, split):
            run(optimizer, 0, 4)
        assert_same_training(wide, split)


BYTES = {"bf16_sr": 12, "split16_sr": 12, "8bit": 10, "split8_8bit": 10, "4bit": 9.5, "plus": 16}


@pytest.mark.parametrize("precision", BYTES)
def test_float32_parameters_take_the_bytes_of_the_table(precision: str) -> None:
    p = Parameter(random(SHAPE, FP32, 1))
    optimizer = AdamW([p], precision=precision)
    steps(optimizer, 1)
    assert held(optimizer, p) == BYTES[precision]


@pytest.mark.parametrize("make", [Lion, lambda *a, **o: SGD(*a, momentum=0.9, **o)])
def test_rules_with_one_moment_keep_it_in_8_bits(make: Any) -> None:
    optimizer = started(make, "8bit", FP32, lr=1e-2)
    run(optimizer, 0, 2)
    matrix, vector, _ = optimizer.param_groups[0]["params"]
    dtypes = [{t.dtype for t in optimizer.state[p].values() if t.dim()} for p in (matrix, vector)]
    assert dtypes == [{torch.uint8}, {BF16}]


def test_group_of_plain_leaves_float32_parameters_as_they_are() -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = AdamW(param_groups(net, (nn.LayerNorm, {"precision": "plain"})), precision="8bit")
    steps(optimizer, 1)
    dtype = {n: optimizer.state[p]["exp_avg"].dtype for n, p in net.named_parameters()}
    assert dtype["0.weight"] == dtype["1.weight"] == torch.uint8
    assert dtype["1.bias"] == BF16
    assert dtype["2.weight"] == dtype["2.bias"] == FP32


def test_conversion_between_float32_and_split16_goes_on_with_the_same_bits() -> None:
    wide = started(AdamW, "split16_sr", FP32, lr=1e-2)
    run(wide, 0, 3)
    params = wide.param_groups[0]["params"]
    narrow = [Parameter(p.detach().to(BF16)) for p in params]
    split, there = convert(wide, "split16_sr", params=narrow)
    assert_same_training(wide, split)
    fresh = [Parameter(torch.zeros_like(p)) for p in params]
    back, again = convert(split, "split16_sr", params=fresh)
    assert there.exact
    assert again.exact
    for optimizer in (wide, split, back):
        run(optimizer, 3, 2)
    assert_same_training(wide, split)
    assert_same(stored(back), stored(wide))
