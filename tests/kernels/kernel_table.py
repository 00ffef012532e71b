"""Every kernel the library can make and what its source asks for, from the library's tables."""

from __future__ import annotations

import collections
import functools
import importlib
import itertools
import pkgutil
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import mcf.optim
from mcf.kernels import operators
from mcf.kernels.algorithms import codes
from mcf.kernels.bind import Binder
from mcf.kernels.elementwise import Elementwise, parameters
from mcf.kernels.formats import BF16, FORMATS, FP16, FP32, FP64
from mcf.kernels.torch.registers import primitives
from mcf.optim.companions import accumulator, moment_accumulator
from mcf.optim.companions import wrap_storage as plugin_storage
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.rule.rule import Rule
from mcf.optim.rules import muon, stable_adamw
from mcf.optim.step import table
from mcf.optim.step.kernel import GradientForm, kernel
from mcf.optim.storage.strategies import STRATEGIES, Arithmetic, arithmetic
from tests.kernels.function_kernels import complex_kernels, elementary_kernels


def operation_kernels() -> list[Elementwise]:
    """Each operation on each format."""
    return [operators.kernel(o, f) for o in operators.TRANSFORMS for f in FORMATS.values()]


def _optimizer_modules() -> Iterator[tuple[list[Rule], list[type[LowPrecisionOptimizer]]]]:
    """The update rules of each module of `mcf.optim`, with the optimizers that it defines."""
    for info in pkgutil.walk_packages(mcf.optim.__path__, "mcf.optim."):
        module = importlib.import_module(info.name)
        members = vars(module).values()
        classes = [
            v
            for v in members
            if isinstance(v, type)
            and issubclass(v, LowPrecisionOptimizer)
            # Public classes say that they are of `mcf.optim`.
            and v.__init__.__code__.co_filename == module.__file__
        ]
        # The kernel that reads a whole parameter, of a rule whose step is two kernels.
        rules = (
            [muon.UPDATE]
            if muon.Muon in classes
            else [r for c in classes for r in getattr(c, "rules", {}).values()]
        )
        if rules:
            yield list(dict.fromkeys(rules)), classes


def arithmetics(precisions: set[str]) -> list[Arithmetic]:
    """Each arithmetic that a parameter can have under some precisions."""
    found: dict[Arithmetic, None] = {}
    for precision in sorted(precisions):
        for dtype in FORMATS:
            for compute_dtype in (torch.float32, dtype):
                for low in ("nearest", "stochastic"):
                    try:
                        strategy = STRATEGIES[precision].with_low(low)
                        arith = arithmetic(strategy, dtype, compute_dtype, "p")
                        found |= {arith: None, arith.of_shape(()): None}
                    except ValueError:
                        # The library refuses the combination.
                        continue
    return list(found)


def optimizer_kernels() -> list[Elementwise]:
    """Each update rule under each arithmetic, with and without metrics."""
    return [
        kernel(rule, arith if rule.seconds else arith.without_second(), track_metrics)
        for rules, classes in _optimizer_modules()
        for rule in rules
        for arith in arithmetics({p for c in classes for p in c.precisions})
        # Rounding errors are fed back into a first moment that the update is a multiple of.
        if rule.feed_back is not None or not arith.strategy.feedback
        for track_metrics in (False, True)
    ]


def gradient_kernels() -> list[Elementwise]:
    """Each form of a gradient, under one arithmetic of each rule; and the sums of gradients."""
    forms = [
        GradientForm(fmt, paired, clipped)
        for fmt, paired in ((BF16, False), (BF16, True), (FP32, False))
        for clipped in (False, True)
    ]
    rules = {rule.name: rule for rules, _ in _optimizer_modules() for rule in rules}
    # It reads a matrix made of the gradient: its forms are those of `muon_kernels`.
    del rules[muon.UPDATE.name]
    arith = Arithmetic(STRATEGIES["light"], BF16, strict=False)
    steps = [kernel(rule, arith, False, form) for rule in rules.values() for form in forms[1:]]
    sums = [accumulator.kernel(fmt) for fmt in FORMATS.values()]
    return [*steps, *sums, *(plugin_storage.kernel(fmt) for fmt in (BF16, FP16))]


def muon_kernels() -> list[Elementwise]:
    """The first half of Muon's step, and the second where its matrix is not in the component."""
    found: dict[Elementwise, None] = {}
    for arith in (a.without_second() for a in arithmetics(set(muon.Muon.precisions))):
        forms = [GradientForm(arith.component)]
        if arith == Arithmetic(STRATEGIES["light"], BF16, strict=False):
            forms.append(GradientForm(FP32, clipped=True))
        for form, nesterov in itertools.product(forms, (False, True)):
            found[kernel(muon.MOMENTUM[nesterov], arith, False, form)] = None
        form = GradientForm(muon.orthogonal_format(arith.component))
        if form.format != arith.component:
            found |= dict.fromkeys(kernel(muon.UPDATE, arith, t, form) for t in (False, True))
    return list(found)


def clipping_kernels() -> list[Elementwise]:
    """What StableAdamW sums before its step, under each of its arithmetics."""
    found = arithmetics(set(mcf.optim.StableAdamW.precisions))
    # Arithmetics that differ in the weight alone have one kernel.
    return list(dict.fromkeys(kernel(stable_adamw.RATIOS, a, False) for a in found))


def accumulation_kernels() -> list[Elementwise]:
    """Gradients into AdamW's moments, and the step that these make; none feeds errors back."""
    found = arithmetics({p for p in mcf.optim.AdamW.precisions if not STRATEGIES[p].feedback})
    parts = moment_accumulator.parts(mcf.optim.AdamW.rules[(False,)])
    assert parts is not None
    return list(dict.fromkeys(kernel(part, arith, False) for part in parts for arith in found))


def expansion_kernels() -> list[Elementwise]:
    """The operations on expansions: pairs and four of each format, triples and floats of one."""
    operations = operators.OPERATIONS
    kernel = operators.kernel
    found = []
    for o in operations:
        shapes = [(fmt, (n,) * len(o.arguments)) for fmt in FORMATS.values() for n in (2, 4)]
        shapes += [(FP32, (n,) * len(o.arguments)) for n in (1, 3)]
        # With fewer components in the last argument the same algorithms take zeros.
        shapes += [(FP32, g) for g in o.special if len(g) == 2 or g[2] == g[0]]
        found += [kernel(o, fmt, *given) for fmt, given in shapes]
    for o in operators.COMPARISONS:
        # What they have of their own comes after the difference, which `compare` has too.
        found += [kernel(o, fmt, 2, 2) for fmt in FORMATS.values()]
    found.append(kernel(operators.LT, FP64, 4, 4))
    one = frozenset("y")
    found.append(kernel(operators.FMA, FP64, 2, 2, 2, uniform=one))
    found += [operators.renormalize_kernel(f, 4, 2) for f in FORMATS.values()]
    found.append(operators.settle_kernel(3))
    return found


def coefficient_kernels() -> list[Elementwise]:
    """What computes the scalars of each rule on a device; `table.POWER` has loops."""
    rules = [*(rule for rules, _ in _optimizer_modules() for rule in rules), muon.Muon.rules[True,]]
    some = {c: None for rule in rules for c in (*rule.coefficients, rule.feedback) if c is not None}
    return [table.kernel(c) for c in some]


class _Kernels(Mapping[str, Elementwise]):
    """Kernels by their names; some are made when they are asked for."""

    def __init__(self, *parts: list[Elementwise] | dict[str, Callable[[], Elementwise]]) -> None:
        self._entries: dict[str, Elementwise | Callable[[], Elementwise]] = {}
        for part in parts:
            named = part if isinstance(part, dict) else {spec.name: spec for spec in part}
            # No two kernels have one name.
            assert len(named) == len(part)
            assert not named.keys() & self._entries.keys()
            self._entries |= named

    def __getitem__(self, name: str) -> Elementwise:
        found = self._entries[name]
        if not isinstance(found, Elementwise):
            found = self._entries[name] = found()
            assert found.name == name
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@functools.cache
def all_kernels() -> Mapping[str, Elementwise]:
    """Every kernel by its name."""
    steps = optimizer_kernels() + gradient_kernels() + muon_kernels() + clipping_kernels()
    steps += accumulation_kernels()
    return _Kernels(
        operation_kernels(),
        expansion_kernels(),
        complex_kernels(),
        elementary_kernels(),
        steps,
        coefficient_kernels(),
    )


# Kernels of a step: every storage and arithmetic with AdamW, in fp16 a few of them; every rule
# with an arithmetic of each kind; sums with two storages and with every rule.
_STEPS = re.compile(
    r"adamw_(?!amsgrad)\w+_(bf16|fp32|fp64)_(wide|strict)"
    r"|adamw_(plus_fp16_wide|master_fp16_wide|light_fp16_strict|(plus|master)_\w+_metrics)"
    r"|\w+_(plus_bf16_wide_metrics|light_bf16_strict|plain_fp64_wide)"
    r"|ratios_(single_pair|ratio8_ue6m2)_bf16_wide"
)
# Parts of AdamW's step, of the same functions.
_PARTS = re.compile(r"adamw_(fold|finish)_")
# A gradient's form is read in the same way by every rule: two of them take all, the others one.
_FORMS = re.compile(r"(?!(adamw|lion)_light)\w+_bf16_wide_(clipped|pair|grad_fp32(_clipped)?)")
_LONG_16_BITS = re.compile(r"expansion_[a-z]+_4+_(bf|fp)16")


def representative(name: str) -> bool:
    """Whether a kernel stands for others: for `everyday`, where all kernels take minutes.

    A kernel is generated from a rule and an arithmetic that know nothing of each other: so every
    arithmetic with one rule and every rule with an arithmetic of each kind stand for all. So do
    four components of float32 and float64 for those of 16-bit formats, and three functions for all.
    """
    if name in elementary_kernels():
        return name in ("exp_2_fp64", "sin_2_fp32", "pow_22_fp32")
    if name.startswith("expansion_complex_"):
        return name == "expansion_complex_mul_2222_fp64"
    if _PARTS.match(name):
        return name in ("adamw_fold_8bit_bf16_wide", "adamw_finish_8bit_bf16_wide")
    if name in _names_of_steps():
        return bool(_STEPS.fullmatch(name))
    return not (_FORMS.fullmatch(name) or _LONG_16_BITS.fullmatch(name))


@functools.cache
def _names_of_steps() -> frozenset[str]:
    return frozenset(spec.name for spec in optimizer_kernels() + clipping_kernels())


class _Numbers(dict[str, Any]):
    """A number for every name; for tuples another for each component."""

    def __init__(self, spec: Elementwise) -> None:
        self._dtype = spec.register.dtype
        self._same = not spec.groups
        self["ZERO"] = torch.zeros(1, dtype=self._dtype)

    def __missing__(self, name: str) -> Any:
        value = 1.0 if self._same else 1 + (zlib.crc32(name.encode()) % 251) / 256
        self[name] = torch.full((1,), value, dtype=self._dtype)
        return self[name]


@functools.cache
def asked(spec: Elementwise, target: str = "") -> collections.Counter[str]:
    """Count how often one element's formula asks for "fma", "div", "sqrt" and "gather".

    `fms` and `linear` are one FMA in float32 and float64; products of 16-bit numbers are exact
    without. NVIDIA GPUs have instructions of their own for some codes.
    """
    counts: collections.Counter[str] = collections.Counter()
    table = primitives(spec.register, spec.arithmetic, dict(spec.roundings))
    seen: dict[tuple[object, ...], object] = {}

    def counting(what: str, function: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            # Of equal operations on the same components the compilers keep one.
            key = (what, *map(id, arguments))
            counts[what] += key not in seen
            if spec.groups:
                # With what it is about, so that no other object takes its identity.
                seen[key] = arguments
            return function(*arguments)

        return counted

    table["div"] = counting("div", table["div"])
    table["sqrt"] = counting("sqrt", table["sqrt"])
    if spec.arithmetic not in (BF16, FP16):
        table["fms"] = counting("fma", table["fms"])
        table["linear"] = counting("fma", table["linear"])
    # Another number for each entry, so that those of one table are not the same.
    table["gather"] = counting("gather", lambda entries, index: entries + index)
    # No FMAs: the conversion of e4m3, and the bytes of 4 bits, which are loaded as numbers.
    own = {codes.from_e4m3_over_4: _same} if target in ("sm_90", "sm_100") else {}
    loaded = {codes.from_4_bits: _same} if target.startswith("sm_") else {}
    bind = Binder(lambda f: f, table, dict(spec.slots), own)
    numbers = _Numbers(spec)
    bind(spec.function)(*(spec.argument(p, numbers) for p in parameters(spec.function)))
    if spec.sums is not None:
        bind(spec.sums)(*(numbers[p] for p in parameters(spec.sums)))
    fields = {f.name: f for f in spec.fields}
    for code in spec.codes:
        one = _Numbers(spec)["code"]
        if fields[code.field].read:
            bind.with_own(loaded)(code.decode)(one, *(one for _ in code.beside))
        if fields[code.field].written:
            random = torch.zeros(1, dtype=torch.int32)
            bind(code.encode)(one, random, *(one for _ in code.beside for _ in range(2)))
        if spec.sums is not None and f"new_{code.field}" in parameters(spec.sums):
            bind(code.decode)(one, *(one for _ in code.beside))
    return counts


def _same(x: Any) -> Any:
    return x
