"""Tables, constants and whole numbers: cached in files, rounded from integers, read in formulas.

*Exact*. Caught mutants: what is left after the first component, from a denominator that is no power
of two, taken for one; another addend of whole numbers, and a limit beyond what is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mcf.elementary import fixed, formula_recording, tables
from mcf.elementary.format import computing_in
from mcf.elementary.tables import Components, rows
from mcf.elementary.working import integer
from mcf.kernels import FP32, FP64, cache_files
from mcf.kernels.formats import Format

pytestmark = pytest.mark.skipif(not cache_files.available(), reason="no owners of files here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MCF_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loops"


class Maker:
    """Makes a table and counts how often."""

    def __init__(self, made: Tensor) -> None:
        self.made, self.calls = made, 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return self.made


@pytest.mark.parametrize("name", ["exp_chunks", "turn_limbs"])
def test_the_same_numbers_come_back(folder: Path, name: str) -> None:
    maker = Maker(tables._makers[name]())
    first, second = tables.kept(name, maker), tables.kept(name, maker)
    assert maker.calls == 1
    assert second.dtype == maker.made.dtype
    for found in (first, second):
        assert found.is_contiguous()
        assert torch.equal(found.view(torch.int64), maker.made.contiguous().view(torch.int64))


def test_signs_and_order_come_back(folder: Path) -> None:
    made = torch.tensor([[-0.0, 2.0**-1074], [1.0, -3.0], [2.0**1023, 0.0]], dtype=torch.float64).T
    for _ in range(2):
        found = tables.kept("signs", lambda: made)
        assert torch.equal(found.view(torch.int64), made.contiguous().view(torch.int64))


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"?", lambda b: b""])
def test_a_damaged_file_is_made_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    maker = Maker(torch.tensor([1.5, 2.5], dtype=torch.float64))
    tables.kept("numbers", maker)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert tables.kept("numbers", maker).tolist() == [1.5, 2.5]
    assert maker.calls == 2
    assert tables.kept("numbers", maker).tolist() == [1.5, 2.5]
    assert maker.calls == 2


def test_other_files_make_other_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker(torch.tensor([1.5], dtype=torch.float64))
    tables.kept("numbers", maker)
    monkeypatch.setattr(tables, "_at_import", "of other files")
    tables.kept("numbers", maker)
    # Nor is anything kept: the files are not those that were imported.
    tables.kept("numbers", maker)
    assert maker.calls == 3
    assert len(list(folder.iterdir())) == 1


def test_nothing_is_kept_where_there_is_no_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCF_CACHE_DIR", "0")
    maker = Maker(torch.tensor([1.5], dtype=torch.float64))
    for _ in range(2):
        tables.kept("numbers", maker)
    assert maker.calls == 2
    assert not folder.exists()


def defined(x: Fraction, count: int) -> tuple[float, ...]:
    out = []
    for _ in range(count):
        out.append(float(x))
        x -= Fraction(out[-1])
    return tuple(out)


QUOTIENTS = [
    *((0, 1), (1, 1), (-1, 3), (10, 15), (2**1000 + 1, 2**1000 * 7), (1, 3 * 2**1060)),
    *((fixed.ln2(), fixed.ONE), (-fixed.pi() * 999, fixed.ONE), (fixed.pi(), fixed.ln10())),
    *((12 * fixed.ln2(), 8 * fixed.ONE), (3**600, 2**900), (7, 2**1074), (2**1023, 1)),
]


@pytest.mark.parametrize("k", range(len(QUOTIENTS)))
def test_components_of_quotients(k: int) -> None:
    top, bottom = QUOTIENTS[k]
    expected = defined(Fraction(top, bottom), 5)
    assert fixed.parts(top, bottom, 5) == expected


def test_what_a_table_leaves_out_the_formula_does_not() -> None:
    """Conversions count what hardly any number needs, as formulas do; the kernel counted it too."""

    def compute(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        made = rows([Fraction(k, 97) for k in range(1, 97)])
        torch.ops.mcf.convert(list(made.unbind()), torch.float32, len(made))
        return (given[0][0] + 1.0,)

    found = formula_recording.formula("sum", compute, ("x",), FP32, (1,), FP32)
    assert not found.partial
    assert found.results == 1


@pytest.mark.parametrize(("fmt", "bits"), [(FP64, 50), (FP32, 21)], ids=["fp64", "fp32"])
def test_whole_numbers(fmt: Format, bits: int) -> None:
    ends = [s * ((1 << k) + d) for k in range(bits) for s in (1, -1) for d in (-1, 0, 1)]
    values = torch.tensor([*ends, 1 << bits, -(1 << bits)], dtype=torch.int64)
    with computing_in(fmt):
        found = integer(values.to(fmt.dtype))
    assert found.dtype == torch.int64
    assert torch.equal(found, values)
    negative = torch.tensor([-0.0], dtype=fmt.dtype)
    assert integer(negative).item() == 0
