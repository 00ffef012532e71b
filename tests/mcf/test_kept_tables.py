"""Tables of elementary functions in the cache of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mcf.elementary import tables
from mcf.kernels import cache_files

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
