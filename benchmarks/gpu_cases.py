"""The measurements of a GPU day: each case makes its operands and is timed on its own."""

# The library and the examples are imported from the checkout, whether it is installed or not.
# ruff: noqa: E402

from __future__ import annotations

import functools
import gc
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.optim import Optimizer

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "examples", ROOT / "benchmarks", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import optimizer_variants
from harness import Timing, queued
from optimizer_step import small_transformer
from pretraining import decoder
from pretraining.shapes import SHAPES, gpt
from strategy_variants import stored_bytes, theirs

import mcf
import mcf.plan
from mcf.optim import AdamW

# The first ones decide what the others mean.
PRECISIONS = (
    "plus", "8bit", "master", "plain", "bf16_sr", "4bit", "light", "split16", "stochastic",
)  # fmt: skip
# The smallest is for Triton's interpreter.
MODELS = {**SHAPES, "gpt-tiny": gpt(1, 32, 2, 16)}
TERMS = (2, 4)
FORMATS = (torch.float32, torch.bfloat16, torch.float64)
FUNCTIONS = ("exp", "log", "sin", "cos", "tan", "atan", "tanh", "sigmoid", "erf", "lgamma", "pow")


class Row(NamedTuple):
    """One result: a value or, where there is none, a word."""

    case: str
    quantity: str
    value: float | str


class Size(NamedTuple):
    """How much work to do: that of a GPU, or what an interpreter on a CPU can do.

    Attributes:
        copied: float32 elements of the copy.
        params: parameters of the optimizer's step, all in one matrix.
        width: width of the model of many tensors.
        blocks: blocks of that model, of ten tensors each.
        elements: elements of arithmetic and functions, of formats wider than 16 bits.
        narrow_elements: elements of arithmetic and functions of 16-bit formats.
        products: rows and columns of matrices.
        models: names of shapes, with the windows of a step.
        vocabulary: tokens of the models; None for those of the shape.
        context: tokens of a window; None for those of the shape.
        rounds: rounds of each case.
        seconds: seconds of all rounds of a case.
        precisions: our precisions in steps and training.
    """

    copied: int
    params: int
    width: int
    blocks: int
    elements: int
    narrow_elements: int
    products: tuple[int, ...]
    models: tuple[tuple[str, int], ...]
    vocabulary: int | None
    context: int | None
    rounds: int
    seconds: float
    precisions: tuple[str, ...]


FULL = Size(
    2**29, 2**30, 528, 30, 2**26, 2**28, (1024, 4096), (("gpt-124m", 16), ("llama-1b", 4)),
    None, None, 9, 1.0, PRECISIONS,
)  # fmt: skip
# On a machine without a GPU, Triton's interpreter runs the kernels.
SMALL = Size(
    2**12, 2**12, 16, 2, 2**8, 2**8, (16,), (("gpt-tiny", 1),),
    256, 16, 3, 0.02, PRECISIONS,
)  # fmt: skip


class Work(NamedTuple):
    """Something to call, and the rows that follow from the seconds of a call."""

    call: Callable[[], object]
    rows: Callable[[float], dict[str, float]] = lambda seconds: {}


class Case(NamedTuple):
    """One measurement.

    Attributes:
        name: the name in the results.
        make: makes the operands and what is called.
        ours: whether it launches kernels of this library.
        host: whether the host's time is a result.
    """

    name: str
    make: Callable[[], Work]
    ours: bool = True
    host: bool = False


Cases = Callable[[torch.device, Size], Iterator[Case]]


def measured(case: Case, device: torch.device, size: Size) -> Iterator[Row]:
    """Time a case; an exception becomes a row, and the next case can run."""
    work = None
    try:
        _forget(device)
        work = case.make()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        busy, host = queued(work.call, device, rounds=size.rounds, seconds=size.seconds)
        yield from _told(case, work, busy, host)
        if device.type == "cuda":
            yield Row(case.name, "peak GiB", torch.cuda.max_memory_allocated() / 2**30)
    except ImportError as error:
        yield Row(case.name, "left out", short(error))
    except Exception as error:
        yield Row(case.name, "error", short(error))


def _told(case: Case, work: Work, busy: Timing, host: Timing) -> Iterator[Row]:
    yield Row(case.name, "ms", 1e3 * busy.median)
    if case.host:
        yield Row(case.name, "host ms", 1e3 * host.median)
    for quantity, value in work.rows(busy.median).items():
        yield Row(case.name, quantity, value)


def _forget(device: torch.device) -> None:
    """Free what the last case held, so that the peak of memory is that of the next one."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def short(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def copy(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield the copy that tells what the memory can do."""

    def make() -> Work:
        source = torch.empty(size.copied, device=device).normal_()
        target = torch.empty_like(source)
        return Work(lambda: target.copy_(source), lambda s: {"GB/s": 8e-9 * size.copied / s})

    yield Case("copy of float32", make, ours=False)


@functools.cache
def bandwidth(device: torch.device, size: Size) -> float:
    """Return bytes a second that a copy reads and writes."""
    (case,) = copy(device, size)
    work = case.make()
    busy, _ = queued(work.call, device, rounds=5, seconds=size.seconds)
    return 8 * size.copied / busy.median


class Recipe(NamedTuple):
    """An optimizer: a name, the class with its options, and the dtype of the parameters."""

    name: str
    make: Callable[..., Optimizer]
    weights: torch.dtype = torch.bfloat16
    ours: bool = True


def our_recipe(precision: str) -> Recipe:
    """Return AdamW in one of our precisions."""
    return Recipe(precision, functools.partial(AdamW, precision=precision, seed=0))


FUSED_FLOAT32 = Recipe(
    "torch fused fp32", functools.partial(torch.optim.AdamW, fused=True), torch.float32, False
)
FUSED_BF16 = Recipe(
    "torch fused bf16", functools.partial(torch.optim.AdamW, fused=True), ours=False
)


def recipes(size: Size) -> list[Recipe]:
    """Return our precisions and torch's fused AdamW, which is second."""
    own = [our_recipe(p) for p in size.precisions]
    return [*own[:1], FUSED_FLOAT32, *own[1:], FUSED_BF16]


def parameters(
    shapes: list[torch.Size], dtype: torch.dtype, device: torch.device, zero_rows: float = 0.0
) -> list[torch.nn.Parameter]:
    """Return random parameters with random gradients, made on the device without wider copies.

    Constants would draw less power, and every random rounding would go one way.

    Args:
        shapes: the shapes.
        dtype: of both.
        device: of both.
        zero_rows: the share of the gradient's rows that are zero, as in an embedding.
    """
    torch.manual_seed(0)
    made = []
    for shape in shapes:
        p = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.02))
        p.grad = torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.01)
        if zero_rows:
            p.grad[torch.rand(shape[0], device=device) < zero_rows] = 0
        made.append(p)
    return made


def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Return matrices with weight decay and vectors without."""
    both = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in both if group["params"]]


def stepping(
    recipe: Recipe,
    shapes: list[torch.Size],
    device: torch.device,
    size: Size,
    *,
    zero_rows: float = 0.0,
    captured: bool = False,
) -> Work:
    """Return the step of an optimizer, or the replay of the CUDA graph that it was captured in."""
    params = parameters(shapes, recipe.weights, device, zero_rows)
    count = sum(p.numel() for p in params)
    options = {"capturable": True} if captured else {}
    optimizer = recipe.make(groups(params), lr=2.0**-10, betas=(0.9, 0.999), **options)
    call = replay_of(optimizer.step) if captured else optimizer.step
    plan = {row.name: row for row in mcf.plan.rows(count, bandwidth=bandwidth(device, size))}
    # With one word of each, "plain" moves as many bytes as torch does in bf16.
    alike = {FUSED_FLOAT32.name: mcf.plan.FLOAT32, FUSED_BF16.name: "plain"}
    planned = plan.get(alike.get(recipe.name, recipe.name))

    def rows(seconds: float) -> dict[str, float]:
        found = {"ns/param": 1e9 * seconds / count}
        found["bytes/param"] = stored_bytes(optimizer, params) / count
        # The plan is of matrices alone: precisions of 8 bits keep vectors wider.
        if planned and len(shapes) == 1:
            found["share of the copy's speed"] = planned.seconds / seconds
        return found

    return Work(call, rows)


def replay_of(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call in a CUDA graph after three warm-ups; return the graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    # The graph reads and writes memory of what it captured, which must live as long.
    return lambda held=call: graph.replay()


def _matrix(params: int) -> list[torch.Size]:
    return [torch.Size((max(1, params >> 12), min(params, 1 << 12)))]


def steps(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield a copy, and a step of each optimizer over one matrix."""
    yield from copy(device, size)
    shapes = _matrix(size.params)
    for recipe in recipes(size):
        make = functools.partial(stepping, recipe, shapes, device, size)
        yield Case(recipe.name, make, recipe.ours)
    yield Case(optimizer_variants.OPTION_D, lambda: _option_d(shapes, device), ours=False)
    chosen = (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32)
    for recipe in chosen:
        make = functools.partial(stepping, recipe, shapes, device, size, zero_rows=0.9)
        yield Case(f"{recipe.name}, 90 % zero rows", make, recipe.ours)
    yield from _captured(chosen, shapes, device, size)


def _option_d(shapes: list[torch.Size], device: torch.device) -> Work:
    found = {v.name: v for v in optimizer_variants.variants(optimi=False)}
    variant = found[optimizer_variants.OPTION_D]
    count = sum(s.numel() for s in shapes)
    return Work(
        variant.make(shapes, device),
        lambda s: {"ns/param": 1e9 * s / count, "bytes/param": variant.bytes_held},
    )


def _captured(
    chosen: tuple[Recipe, ...], shapes: list[torch.Size], device: torch.device, size: Size
) -> Iterator[Case]:
    """Yield steps in CUDA graphs, which a CPU has not."""
    for recipe in chosen if device.type == "cuda" else ():
        make = functools.partial(stepping, recipe, shapes, device, size, captured=True)
        yield Case(f"{recipe.name}, graph", make, recipe.ours, host=True)


def many(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield steps over many tensors, where the host's time counts, and the same in graphs."""
    shapes = small_transformer(size.width, size.blocks)
    chosen = (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32, FUSED_BF16)
    for recipe in chosen:
        make = functools.partial(stepping, recipe, shapes, device, size)
        yield Case(recipe.name, make, recipe.ours, host=True)
    yield from _captured(chosen, shapes, device, size)


def _case(name: str, terms: int, dtype: torch.dtype) -> str:
    return f"{name}, {terms} x {str(dtype).removeprefix('torch.')}"


def _elements(dtype: torch.dtype, size: Size) -> int:
    return size.narrow_elements if dtype.itemsize == 2 else size.elements


def operands(terms: int, dtype: torch.dtype, device: torch.device, size: Size) -> Any:
    """Return two expansions of random positive numbers, of as many bits as they hold."""
    count = _elements(dtype, size)
    made = torch.Generator(device).manual_seed(0)
    x, y = (mcf.rand(count, terms=terms, dtype=dtype, device=device, generator=made)
            for _ in range(2))  # fmt: skip
    return x, y + 0.5


def arithmetic(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield operations on expansions."""
    calls: dict[str, tuple[int, Callable[[Any, Any], object]]] = {
        "x + y": (3, lambda x, y: x + y),
        "x * y": (3, lambda x, y: x * y),
        "x / y": (3, lambda x, y: x / y),
        "sqrt(x)": (2, lambda x, y: x.sqrt()),
        "x.sum()": (1, lambda x, y: x.sum()),
    }
    for dtype in FORMATS:
        for terms in TERMS:
            for name, (tensors, call) in calls.items():
                make = functools.partial(_operation, call, tensors, terms, dtype, device, size)
                yield Case(_case(name, terms, dtype), make)


def _operation(
    call: Callable[[Any, Any], object],
    tensors: int,
    terms: int,
    dtype: torch.dtype,
    device: torch.device,
    size: Size,
) -> Work:
    x, y = operands(terms, dtype, device, size)
    count = _elements(dtype, size)
    moved = tensors * terms * dtype.itemsize * count
    copied = bandwidth(device, size)
    return Work(
        functools.partial(call, x, y),
        lambda s: {"ns/element": 1e9 * s / count, "share of the copy's speed": moved / copied / s},
    )


def functions(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield functions of pairs, and torch's of float64."""
    for name in FUNCTIONS:
        for dtype in FORMATS:
            call = functools.partial(_function, name)
            tensors = 3 if name == "pow" else 2
            make = functools.partial(_operation, call, tensors, 2, dtype, device, size)
            yield Case(_case(name, 2, dtype), make)
        make = functools.partial(_torch_function, name, device, size)
        yield Case(f"{name}, torch float64", make, ours=False)


def _function(name: str, x: Any, y: Any) -> object:
    return x**y if name == "pow" else getattr(x, name)()


def _torch_function(name: str, device: torch.device, size: Size) -> Work:
    x, y = (
        torch.rand(size.elements, dtype=torch.float64, device=device) + shift for shift in (0, 0.5)
    )
    return Work(
        functools.partial(_function, name, x, y), lambda s: {"ns/element": 1e9 * s / size.elements}
    )


def products(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield matrix products of expansions, and torch's of float64 and float32."""
    formats = (torch.float32, torch.float64)
    for n in size.products:
        for dtype in formats:
            name = f"{n} x {n}, torch {str(dtype).removeprefix('torch.')}"
            yield Case(name, functools.partial(_product, n, 0, dtype, device), ours=False)
        # The slowest are last.
        for terms in (1, *TERMS):
            for dtype in formats:
                make = functools.partial(_product, n, terms, dtype, device)
                yield Case(_case(f"{n} x {n}", terms, dtype), make)


def _product(n: int, terms: int, dtype: torch.dtype, device: torch.device) -> Work:
    x: Any
    if terms:
        made = torch.Generator(device).manual_seed(0)
        x = mcf.rand(n, n, terms=terms, dtype=dtype, device=device, generator=made)
    else:
        x = torch.rand(n, n, dtype=dtype, device=device)
    return Work(lambda: x @ x, lambda s: {"Gop/s": 2e-9 * n**3 / s})


def training(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield forward, backward and step of decoders, and saving the first one's optimizer."""
    for k, (model, windows) in enumerate(size.models):
        # All recipes train the first model, a few the larger one.
        for recipe in recipes(size)[: 6 if k else None]:
            make = functools.partial(updating, recipe, model, windows, device, size)
            yield Case(f"{model}, {recipe.name}", make, recipe.ours)
    yield from _saving(*size.models[0], device, size)


def _saving(model: str, windows: int, device: torch.device, size: Size) -> Iterator[Case]:
    for recipe in (*map(our_recipe, size.precisions[:2]), FUSED_FLOAT32):
        make = functools.partial(saving, recipe, model, windows, device, size)
        yield Case(f"{model}, {recipe.name}, checkpoint", make, recipe.ours)


@functools.lru_cache(1)
def _model(name: str, dtype: torch.dtype, device: torch.device, size: Size) -> torch.nn.Module:
    """Return a model with random weights, which are made on the device."""
    shape = MODELS[name]
    torch.manual_seed(0)
    with torch.device(device):
        model = decoder.Decoder(shape, size.vocabulary or shape.vocabulary).to(dtype)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, 0, 0.02)
    return model


def _trained(
    recipe: Recipe, name: str, windows: int, device: torch.device, size: Size
) -> tuple[torch.nn.Module, Optimizer, Callable[[], None]]:
    """Return a model, its optimizer and an update.

    Rates are zero, so the model stays as it is. Float32 weights train under autocast to bf16.
    """
    model, shape = _model(name, recipe.weights, device, size), MODELS[name]
    wide = recipe.weights == torch.float32
    model.zero_grad(set_to_none=True)
    params = list(model.parameters())
    optimizer = recipe.make(groups(params), lr=0.0, betas=(0.9, 0.999))
    vocabulary, context = size.vocabulary or shape.vocabulary, size.context or shape.context
    made = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(vocabulary, (windows, context + 1), generator=made, device=device)

    def update() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=wide):
            logits = model(tokens[:, :-1]).flatten(0, 1).float()
        F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, update


def updating(recipe: Recipe, name: str, windows: int, device: torch.device, size: Size) -> Work:
    """Return an update of a model."""
    model, optimizer, update = _trained(recipe, name, windows, device, size)
    params = list(model.parameters())
    count = sum(p.numel() for p in params)
    tokens = windows * (size.context or MODELS[name].context)

    def rows(seconds: float) -> dict[str, float]:
        return {
            "tokens/s": tokens / seconds,
            "parameters": count,
            "stored bytes/param": stored_bytes(optimizer, params) / count,
        }

    return Work(update, rows)


def saving(recipe: Recipe, name: str, windows: int, device: torch.device, size: Size) -> Work:
    """Return a checkpoint of an optimizer: its `state_dict`, written by `torch.save`."""
    _, optimizer, update = _trained(recipe, name, windows, device, size)
    update()
    written = [0]

    def save() -> None:
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        written[0] = file.tell()

    return Work(save, lambda s: {"MB": 1e-6 * written[0]})


def peers(device: torch.device, size: Size) -> Iterator[Case]:
    """Yield steps and updates of other projects' optimizers; those that compile long are last."""
    here = {
        v.family: Recipe(v.name, _peer(v.make), ours=False)
        for v in theirs()
        if v.weights == torch.bfloat16 and v.family not in ("torch", "torchao")
    }
    if device.type != "cuda":
        # "Quantization requires a CUDA device."
        del here["flashoptim"]
    model, windows = size.models[0]
    for recipe in here.values():
        yield _peer_step(recipe, device, size)
    # A compilation for each shape of the model.
    slow = here.pop("heavyball")
    for recipe in (*here.values(), *((slow,) if device.type == "cuda" else ())):
        make = functools.partial(updating, recipe, model, windows, device, size)
        yield Case(f"{model}, {recipe.name}", make, ours=False)
    # On a CPU its compilation takes minutes.
    for v in theirs() if device.type == "cuda" else ():
        if v.family == "torchao":
            yield _peer_step(Recipe(v.name, _peer(v.make), ours=False), device, size)


def _peer_step(recipe: Recipe, device: torch.device, size: Size) -> Case:
    make = functools.partial(stepping, recipe, _matrix(size.params), device, size)
    return Case(recipe.name, make, ours=False)


def _peer(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    return lambda groups, lr, betas: make(groups, lr, betas[1], 0)


CASES: dict[str, Cases] = {
    "steps": steps,
    "training": training,
    "many": many,
    "arithmetic": arithmetic,
    "functions": functions,
    "products": products,
    "peers": peers,
}


def run(name: str, device: torch.device, size: Size) -> Iterator[Row]:
    """Measure the cases of a section, each after the one before."""
    failed: set[str] = set()
    for case in CASES[name](device, size):
        # A peer that cannot step cannot train either.
        if any(case.name.endswith(f", {other}") for other in failed if not case.ours):
            continue
        for row in measured(case, device, size):
            if row.quantity in ("error", "left out"):
                failed.add(row.case)
            yield row
    _forget(device)
