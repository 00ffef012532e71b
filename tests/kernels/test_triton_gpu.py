"""Triton's kernels give the bits of the reference: on a GPU, and in Triton's interpreter on a CPU.

Every kernel the library can make runs on inputs that hold every kind of number (subnormals, zeros
of both signs, infinities, NaN), on tensors that start anywhere in their storage, with sizes on both
sides of a block; what it stores must have the bits of the torch executor on a CPU. The interpreter
runs other roundings than a GPU (tests/kernels/test_triton_compile.py reads the GPU's machine code),
but the same formulas, loads, masks and stores.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from mcf.elementary.format import computing_in
from mcf.elementary.tables import table
from mcf.kernels import operators, registry
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import BF16, FORMATS, Format
from mcf.kernels.torch.reference import EXECUTOR as REFERENCE
from tests.helpers import assert_same_bits
from tests.helpers.adversarial import specials
from tests.helpers.draws import bell
from tests.helpers.gpu_waits import no_waiting
from tests.kernels.kernel_table import all_kernels, representative

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from mcf.kernels.triton import gpu, launching
from mcf.kernels.triton.element_kernels import BLOCK
from tests.helpers.everyday import everyday

KERNELS = all_kernels()
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

DEVICES = [
    pytest.param("cpu", id="interpreted"),
    pytest.param("cuda", id="gpu", marks=pytest.mark.gpu),
]
either_device = pytest.mark.parametrize("device", DEVICES)


@dataclasses.dataclass
class Draw:
    """A seeded source of inputs."""

    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def bits(self, n: int, fmt: Format) -> Tensor:
        """Any bits: all exponents alike, so mostly numbers near neither end, and some NaN."""
        assert fmt.dtype is not None
        kind = INTEGERS[fmt.dtype.itemsize]
        info = torch.iinfo(kind)
        whole = torch.randint(info.min, info.max, (n,), generator=self.generator, dtype=kind)
        return whole.view(fmt.dtype)

    def everything(self, n: int, fmt: Format) -> Tensor:
        """Any bits, ordinary numbers, and the special ones, mixed."""
        edges = specials(fmt)
        chosen = edges[torch.randint(len(edges), (n,), generator=self.generator)]
        normal = bell(n, self.generator, fmt.dtype)
        kind = torch.randint(3, (n,), generator=self.generator)
        return torch.where(kind == 0, self.bits(n, fmt), torch.where(kind == 1, normal, chosen))

    def scalars(self, spec: Elementwise) -> Tensor:
        """Ordinary ones: the bits must agree for any."""
        shape = (1, len(spec.scalars))
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def row(self, spec: Elementwise, n: int) -> list[Tensor]:
        """Tensors of n numbers; of an even number where a field packs two into an element."""
        n += n % 2 if spec.packed else 0
        # Tables are in the format of the registers.
        with computing_in(spec.arithmetic):
            return [self.tensor(f, n) for f in spec.fields]

    def tensor(self, field: Field, n: int) -> Tensor:
        if field.table:
            with computing_in(field.format):
                return table(field.name, torch.device("cpu"))
        # A uniform field has one number for all elements, others may have one for each block.
        return self.everything(1 if field.uniform else n // field.format.packed, field.format)


def at_offset(t: Tensor, offset: int, device: str) -> Tensor:
    """A copy that starts `offset` elements into its storage."""
    room = torch.empty(t.numel() + offset, dtype=t.dtype, device=device)
    room[offset:] = t.flatten()
    return room[offset:].view(t.shape)


def compare(
    spec: Elementwise, row: list[Tensor], scalars: Tensor, device: str, offsets: list[int]
) -> None:
    """Run on the reference and on the device; the written tensors must have the same bits."""
    expected = [t.clone() for t in row]
    actual = [at_offset(t, o, device) for t, o in zip(row, offsets, strict=True)]
    REFERENCE.run(spec, [expected], scalars)
    gpu.EXECUTOR.run(spec, [actual], scalars)
    for field, e, a in zip(spec.fields, expected, actual, strict=True):
        assert_same_bits(a.cpu(), e, f"{spec.name}, {field.name}, {len(e)} elements")


@pytest.mark.sampled(every=90)
@pytest.mark.parametrize(
    "name",
    everyday(KERNELS, representative),
)
def test_bits(name: str) -> None:
    spec = KERNELS[name]
    draw = Draw(len(name))
    row = draw.row(spec, BLOCK + 1)
    compare(spec, row, draw.scalars(spec), "cpu", [0] * len(spec.fields))


def compare_many(spec: Elementwise, sizes: list[int], draw: Draw, device: str, offset: int) -> None:
    """One launch for tensors of all sizes has the bits of the reference; scalars of each row.

    Without an offset a row starts where allocations do, at multiples of 16 bytes. With one, each
    tensor of a row starts elsewhere.
    """
    rows = [draw.row(spec, n) for n in sizes]
    scalars = torch.cat([draw.scalars(spec) for _ in sizes])
    actual = [
        [at_offset(t, offset * (1 + k % 3 * 4), device) for k, t in enumerate(row)] for row in rows
    ]
    REFERENCE.run(spec, rows, scalars)
    gpu.EXECUTOR.run(spec, actual, scalars)
    for expected, found in zip(rows, actual, strict=True):
        for field, e, a in zip(spec.fields, expected, found, strict=True):
            assert_same_bits(a.cpu(), e, f"{spec.name}, {field.name}, {len(e)} elements")


# With metrics a kernel has the same formula, and sums: those of test_sums. A long formula takes
# seconds to compile.
_NIGHTLY = {n for n in KERNELS if n.endswith("_metrics") and n.removesuffix("_metrics") in KERNELS}
_NIGHTLY.update([n for n in KERNELS if KERNELS[n].long][1::2])


@pytest.mark.gpu
@pytest.mark.sampled(every=90)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] if n in _NIGHTLY else []) for n in KERNELS],
)
def test_bits_on_a_gpu(name: str) -> None:
    """The kernel of one row on aligned tensors, and that of many rows on others."""
    spec = KERNELS[name]
    draw = Draw(len(name))
    sizes = [1, BLOCK - 1, BLOCK, BLOCK + 1, 16 * BLOCK]
    for n in sizes:
        compare(spec, draw.row(spec, n), draw.scalars(spec), "cuda", [0] * len(spec.fields))
    # A long formula has the same accesses wherever a tensor begins.
    if not spec.long:
        compare_many(spec, sizes, draw, "cuda", 1)


MANY = [
    "adamw_plus_bf16_wide",
    "adamw_master_bf16_wide",
    "adamw_plain_fp64_wide",
    "two_sum_fp16",
    "hypot_22_fp64",
]


@pytest.mark.sampled(every=3)
@either_device
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", MANY)
def test_many_tensors(name: str, offset: int, device: str) -> None:
    compare_many(KERNELS[name], [BLOCK + 1, 0, 1, BLOCK, 7], Draw(offset), device, offset)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, int]]]:
    """The number of programs and the constants of each launch."""
    found: list[tuple[int, dict[str, int]]] = []
    launch = launching.launch

    def recorded(
        device: Any, build: Any, programs: int, *rest: Any, few: bool = False, **constants: int
    ) -> None:
        found.append((programs, constants))
        launch(device, build, programs, *rest, few=few, **constants)

    monkeypatch.setattr(launching, "launch", recorded)
    return found


@pytest.mark.parametrize(("offset", "alignment"), [(0, 16), (1, 1)])
def test_many_tensors_are_one_launch(
    offset: int, alignment: int, launches: list[tuple[int, dict[str, int]]]
) -> None:
    """The hint of 16 bytes is given where it is true and only there."""
    spec = KERNELS["adamw_plus_bf16_wide"]
    draw = Draw(1)
    rows = [
        [at_offset(t, offset, "cpu") for t in draw.row(spec, n)] for n in (0, BLOCK + 1, 5, BLOCK)
    ]
    gpu.EXECUTOR.run(spec, rows, torch.zeros(4, len(spec.scalars), dtype=torch.float64))
    assert launches == [(4, {"ALIGNMENT": alignment})]


def test_one_row_off_leaves_the_others_wide(launches: list[tuple[int, dict[str, int]]]) -> None:
    """Rows at multiples of 16 bytes in one launch, the others in a second: same bits, same sums."""
    spec = KERNELS["adamw_plus_bf16_wide_metrics"]
    draw = Draw(2)
    sizes = [BLOCK + 1, 3, 0, 2 * BLOCK, 5]
    rows = [draw.row(spec, n) for n in sizes]
    scalars = torch.cat([draw.scalars(spec) for _ in sizes])
    offsets = [0, 1, 0, 0, 3]
    mixed = [[at_offset(t, o, "cpu") for t in row] for o, row in zip(offsets, rows, strict=True)]
    every = [[at_offset(t, 0, "cpu") for t in row] for row in rows]
    expected = gpu.EXECUTOR.run(spec, every, scalars)
    assert launches == [(6, {"ALIGNMENT": 16})]
    launches.clear()
    found = gpu.EXECUTOR.run(spec, mixed, scalars)
    assert launches == [(4, {"ALIGNMENT": 16}), (2, {"ALIGNMENT": 1})]
    assert_same_bits(found, expected)
    for one, other in zip(mixed, every, strict=True):
        for x, y in zip(one, other, strict=True):
            assert_same_bits(x, y)


@either_device
def test_offsets(device: str) -> None:
    spec = KERNELS["adamw_plus_bf16_wide"]
    draw = Draw(0)
    row, scalars = draw.row(spec, BLOCK + 9), draw.scalars(spec)
    for offset in (1, 2, 4, 8):
        offsets = [offset * (k % 2) for k in range(len(row))]
        compare(spec, row, scalars, device, offsets)


@either_device
def test_zeros_keep_their_signs(device: str) -> None:
    """All pairs of signed zeros, and an update that is one."""
    zeros = torch.tensor([0.0, -0.0])
    for fmt in FORMATS.values():
        a, b = (t.flatten().to(fmt.dtype) for t in torch.meshgrid(zeros, zeros, indexing="ij"))
        for operation in operators.TRANSFORMS:
            spec = operators.kernel(operation, fmt)
            row = [(a, b)[k % 2].clone() for k in range(len(spec.fields))]
            compare(spec, row, torch.zeros(1, 0, dtype=torch.float64), device, [0] * len(row))
        for name in (f"adamw_plain_{fmt.name}_wide", f"sgd_plain_{fmt.name}_wide"):
            spec = KERNELS[name]
            # A learning rate and a decay of 0 make the update a zero.
            scalars = torch.zeros(1, len(spec.scalars), dtype=torch.float64)
            scalars[0, spec.scalars.index("grad_scale")] = 1
            for sign in (1.0, -1.0):
                row = [torch.full((4,), sign, dtype=f.format.dtype) for f in spec.fields]
                row[0] = a.clone()
                compare(spec, row, scalars, device, [0] * len(row))


@either_device
def test_products_around_the_smallest_numbers(device: str) -> None:
    """bf16 products from below float32's smallest number to the normal range."""
    n = 8 * BLOCK
    draw = Draw(7)
    exponents = torch.randint(-84, -66, (2, n), generator=draw.generator)
    mantissas = torch.randint(128, 256, (2, n), generator=draw.generator)
    a, b = torch.ldexp(mantissas.double(), exponents).to(torch.bfloat16)
    spec = operators.kernel(operators.TWO_PROD, BF16)
    row = [a, b, torch.zeros_like(a), torch.zeros_like(a)]
    compare(spec, row, torch.zeros(1, 0, dtype=torch.float64), device, [0] * 4)


@pytest.mark.sampled(every=12)
@either_device
@pytest.mark.parametrize(
    "name",
    everyday([n for n in KERNELS if re.search(r"(plus|master)\w*_metrics", n)], representative),
)
def test_sums(name: str, device: str) -> None:
    """Sums over ordinary numbers; the executors add in different orders, in float64."""
    spec = KERNELS[name]
    draw = Draw(3)
    rows = []
    for n in (5, 3 * BLOCK + 1):
        row = [bell(n, draw.generator) for _ in spec.fields]
        rows.append(
            [(t.abs() + 0.5).to(f.format.dtype) for t, f in zip(row, spec.fields, strict=True)]
        )
    scalars = torch.cat([draw.scalars(spec), draw.scalars(spec)])
    expected = REFERENCE.run(spec, [[t.clone() for t in row] for row in rows], scalars)
    actual = gpu.EXECUTOR.run(
        spec, [[t.to(device, copy=True) for t in row] for row in rows], scalars
    )
    assert expected is not None
    assert actual is not None
    assert actual.device.type == device
    assert actual.shape == expected.shape == (2, spec.sum_count)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-9, atol=0)


@either_device
def test_no_elements(device: str) -> None:
    spec = KERNELS["adamw_plus_bf16_wide_metrics"]
    row = [torch.empty(0, dtype=f.format.dtype, device=device) for f in spec.fields]
    sums = gpu.EXECUTOR.run(spec, [row], Draw(0).scalars(spec))
    assert sums is not None
    assert sums.tolist() == [[0.0] * spec.sum_count]


@pytest.mark.gpu
def test_run_does_not_wait_for_the_device() -> None:
    spec = KERNELS["adamw_plus_bf16_wide_metrics"]
    draw = Draw(1)
    rows = [[t.cuda() for t in draw.row(spec, 5000)] for _ in range(3)]
    scalars = torch.cat([draw.scalars(spec) for _ in rows])
    gpu.EXECUTOR.run(spec, rows, scalars)
    torch.cuda.synchronize()
    with no_waiting():
        gpu.EXECUTOR.run(spec, rows, scalars)


@pytest.mark.gpu
def test_tensors_on_another_device_than_the_current_one() -> None:
    """Trivial with one device; with more the kernel must start on the tensors' device."""
    device = f"cuda:{torch.cuda.device_count() - 1}"
    spec = KERNELS["two_sum_bf16"]
    with torch.cuda.device(0):
        compare(
            spec, Draw(2).row(spec, 5000), torch.zeros(1, 0, dtype=torch.float64), device, [0] * 4
        )


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_31_elements() -> None:
    """Across 2**31 elements, where 32-bit offsets would end: 17 GB in four tensors."""
    n = (1 << 31) + 3 * BLOCK + 5
    a = torch.full((n,), 1.0, dtype=torch.bfloat16, device="cuda")
    b = torch.full((n,), 2.0**-9, dtype=torch.bfloat16, device="cuda")
    b[-5:] = torch.tensor([2.0**-k for k in range(10, 15)], dtype=torch.bfloat16)
    with registry.executor("triton"):
        s, e = torch.ops.mcf.two_sum(a, b)
    assert torch.equal(e, b)
    assert torch.equal(s, a)
