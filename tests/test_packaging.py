"""What is shipped: every package of the three folders, typed, under the one name `mcf`.

Fails when a package is missing from `tool.setuptools.packages`, when `mcf.__version__` and
pyproject.toml disagree, when a py.typed is missing, when a wheel holds anything beside what git
tracks of `mcf`, or when a file that the tests need is not in an sdist.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import types
import unittest.mock
import zipfile
from pathlib import Path

import pytest

import mcf

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"mcf": "mcf", "kernels": "mcf.kernels", "optim": "mcf.optim"}


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def _listed_packages() -> set[str]:
    # tomllib is only in Python 3.11 and later; the list is plain enough to read without it.
    (block,) = re.findall(r"^packages = \[(.*?)\]", _pyproject(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"([\w.]+)"', block))


def _present_packages() -> dict[str, Path]:
    """Import name -> folder, for every folder with an __init__.py."""
    present = {}
    for folder, name in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            present[".".join((name, *inside))] = init.parent
    return present


def test_every_package_is_listed() -> None:
    assert set(_present_packages()) == _listed_packages()


def test_every_package_imports_from_this_checkout() -> None:
    for name, folder in _present_packages().items():
        if name == "mcf.kernels.triton":
            pytest.importorskip("triton", reason="the GPU executor: triton is for Linux only")
        module = importlib.import_module(name)
        assert module.__file__ is not None
        assert Path(module.__file__).resolve().parent == folder, name


def test_modules_stand_in_packages() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} lacks an __init__.py"


def test_version_has_one_value() -> None:
    (declared,) = re.findall(r'^version = "(.*)"', _pyproject(), re.MULTILINE)
    assert mcf.__version__ == declared
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [declared]
    licence, words, about = (
        re.findall(rf"^{key} = (.*)$", _pyproject(), re.MULTILINE)[0]
        for key in ("license", "keywords", "description")
    )
    listed = "".join(f"\n  - {word}" for word in json.loads(words))
    assert f"\nlicense: {json.loads(licence)}\nkeywords:{listed}\nreferences:" in citation
    assert f"\nabstract: {about}\n" in citation
    for page, before in (("README.md", "version "), ("docs/index.md", "version ")):
        assert f"{before}{declared}" in (ROOT / page).read_text(encoding="utf-8")
    assert f"site_name: mcf {declared}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_links_of_the_description_hold_on_an_index() -> None:
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    text = "![a picture](docs/a.png) [a page](docs/a.md#b) [a site](https://x.org/)"
    assert setup["description"](text, "") == " a page [a site](https://x.org/)"
    assert setup["description"](text, "https://h/o/n") == (
        "![a picture](https://h/o/n/raw/HEAD/docs/a.png) "
        "[a page](https://h/o/n/blob/HEAD/docs/a.md#b) [a site](https://x.org/)"
    )
    assert setup["links"]("") == {}
    assert setup["links"]("https://h/o/n")["Repository"] == "https://h/o/n"


@pytest.mark.parametrize("folder", FOLDERS)
def test_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


def _tracked() -> list[str]:
    """Every file of this checkout that git tracks; of an unpacked sdist, every file it holds."""
    if not (ROOT / ".git").exists():
        return (ROOT / "mcf_torch.egg-info" / "SOURCES.txt").read_text().splitlines()
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # A file may be deleted and the deletion not committed.
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def _copy_of_checkout(folder: Path, *, git: bool) -> Path:
    """The tracked files in a folder of their own: setuptools leaves its folders in the source."""
    for name in _tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    if git:
        if shutil.which("git") is None:
            pytest.skip("git says which files belong to a checkout")
        # What the copy's git tracks is what is in its index; nothing needs to be committed.
        for command in (["git", "init", "-q"], ["git", "add", "-A"]):
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


def _build(what: str, source: Path, out: Path) -> Path:
    """`what`, a wheel or an sdist, of the tree `source`, by this environment's setuptools."""
    code = f"from setuptools import build_meta as b; print(b.build_{what}({str(out)!r}))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return out / run.stdout.splitlines()[-1]


def _expected_in_wheel() -> set[str]:
    expected = set()
    for file in _tracked():
        folder, _, inside = file.partition("/")
        if folder in FOLDERS and file.endswith((".py", "py.typed")):
            expected.add(f"{FOLDERS[folder].replace('.', '/')}/{inside}")
    return expected


def _modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_what_git_tracks_and_no_strays(tmp_path: Path) -> None:
    source = _copy_of_checkout(tmp_path / "source", git=True)
    for stray in (
        "mcf/scratch.py",
        "kernels/numba/scratch.py",
        "optim/.#adamw.py",
        # Leftovers of builds, of a module and of a package that are gone.
        "build/lib/mcf/gone.py",
        "build/lib/mcf/gone/__init__.py",
    ):
        (source / stray).parent.mkdir(parents=True, exist_ok=True)
        (source / stray).write_text("raise RuntimeError('a stray was imported')\n")
    wheel = _build("wheel", source, tmp_path)
    assert _modules(wheel) == _expected_in_wheel()
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = archive.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in said
    assert "# mcf: multi-component floats for PyTorch" in said
    assert all("://" in link for link in re.findall(r"\]\(([^)\s]+)\)", said))


@pytest.mark.slow
def test_wheel_of_a_copy_inside_another_repository(tmp_path: Path) -> None:
    # git answers there too, for the outer repository, which tracks nothing of it.
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, timeout=60)
    source = _copy_of_checkout(tmp_path / "vendored", git=False)
    assert _modules(_build("wheel", source, tmp_path)) == _expected_in_wheel()


@pytest.mark.slow
def test_sdist_holds_everything_that_is_tracked(tmp_path: Path) -> None:
    source = _copy_of_checkout(tmp_path / "source", git=True)
    sdist = _build("sdist", source, tmp_path)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        # Older Pythons have neither the filter nor the warning of its absence.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "unpacked")
    assert set(_tracked()) - held == set()
    # The wheel of the sdist is the wheel of the checkout.
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert _modules(_build("wheel", unpacked, tmp_path)) == _expected_in_wheel()


@pytest.mark.slow
def test_dist_has_the_same_bytes_wherever_it_is_built(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is built of a commit")
    loader = importlib.machinery.SourceFileLoader("dist", str(ROOT / ".ci" / "dist"))
    with unittest.mock.patch.object(sys, "path", [str(ROOT / ".ci"), *sys.path]):
        module = types.ModuleType("dist")
        module.__file__ = loader.path
        loader.exec_module(module)
    first = module.build(tmp_path / "here", {}, 0o022)
    again = module.build(tmp_path / "a folder" / "elsewhere", module.ELSEWHERE, 0o077)
    names = sorted(path.name for path in first.iterdir())
    assert len(names) == 2
    assert names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (again / name).read_bytes(), name


def test_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = (ROOT / ".github" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f'version: "{mcf.__version__}"' in recipe
    (python,) = re.findall(r'^requires-python = ">=(.*)"', _pyproject(), re.MULTILINE)
    assert f'python_min: "{python}"' in recipe
    (build,) = re.findall(r'^requires = \["(\w+)>=(.*)"\]', _pyproject(), re.MULTILINE)
    (block,) = re.findall(r"^dependencies = \[(.*?)\]", _pyproject(), re.MULTILINE | re.DOTALL)
    # triton comes with conda's pytorch for GPUs.
    needed = [pair for pair in re.findall(r'"(\w+)>=([\d.]+)', block) if pair[0] != "triton"]
    assert {name for name, _ in needed} == {"torch", "numpy", "numba"}
    for name, version in (build, *needed):
        assert f"- {'pytorch' if name == 'torch' else name} >={version}\n" in recipe
