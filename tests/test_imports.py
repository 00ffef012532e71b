"""Where Python finds `mcf`: in a clone, beside one, installed, and where another project is `mcf`.

Each import runs in a process of its own, which sees torch and the other packages of this
environment, but no installed `mcf`: neither this checkout's editable install nor its .pth file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environments import packages_without_mcf

ROOT = Path(__file__).resolve().parents[1]
# Works only if every folder is found.
USE = "import mcf, mcf.kernels, mcf.optim; mcf.two_sum; mcf.optim.AdamW; mcf.kernels.BF16; "
WHERE = USE + "print(mcf.__file__, mcf.kernels.__file__, mcf.optim.__file__, sep='\\n')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages_without_mcf(tmp_path_factory.mktemp("environment") / "site-packages")


def _python(code: str, cwd: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` started in `cwd`, with the folders `path` in the place of site-packages."""
    # -S: no site-packages and no .pth files; -c puts the current folder first, as at a prompt.
    start = f"import sys; sys.path += {[str(each) for each in path]!r}; {code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", start], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def _installed(folder: Path) -> Path:
    """The package as a wheel lays it out."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mcf", folder / "mcf", ignore=ignore)
    for name in ("kernels", "optim"):
        shutil.copytree(ROOT / name, folder / "mcf" / name, ignore=ignore)
    return folder


def _metadata(site: Path, summary: str) -> None:
    """What pip leaves of a distribution called mcf."""
    (site / "mcf-0.9.0.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: mcf\nVersion: 0.9.0\nSummary: {summary}\n"
    (site / "mcf-0.9.0.dist-info" / "METADATA").write_text(text)


def _clone(folder: Path) -> Path:
    for name in ("__init__.py", "pyproject.toml"):
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for name in ("mcf", "kernels", "optim"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.slow
def test_in_the_folder_of_the_clone_with_another_copy_installed(site: Path, tmp_path: Path) -> None:
    # The current folder comes first, so all three are the clone's: never half of each.
    run = _python(WHERE, ROOT, _installed(tmp_path), site)
    assert run.returncode == 0, run.stderr
    found = [Path(line).resolve() for line in run.stdout.split()]
    assert found == [ROOT / folder / "__init__.py" for folder in ("mcf", "kernels", "optim")]


@pytest.mark.slow
def test_beside_a_clone_called_mcf(site: Path, tmp_path: Path) -> None:
    clone = _clone(tmp_path / "mcf")
    run = _python("from mcf.optim import CollageAdamW; " + WHERE, tmp_path, site)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.split()[0]) == clone / "mcf" / "__init__.py"


@pytest.mark.slow
def test_elsewhere_with_a_package_installed(site: Path, tmp_path: Path) -> None:
    installed = _installed(tmp_path / "installed")
    # Another project's top-level package `kernels` is none of ours.
    (installed / "kernels").mkdir()
    (installed / "kernels" / "__init__.py").write_text("raise RuntimeError('not ours')")
    # What this project was built as before it was called mcf-torch is no other project.
    _metadata(installed, "Multi-component floats for PyTorch: train in pure bf16")
    run = _python(WHERE + "; print(len(mcf.__path__))", tmp_path, installed, site)
    assert run.returncode == 0, run.stderr
    *found, length = run.stdout.split()
    assert found == [
        str(installed / "mcf" / folder / "__init__.py") for folder in ("", "kernels", "optim")
    ]
    assert length == "1"


def test_clone_of_another_name_is_no_package(tmp_path: Path) -> None:
    _clone(tmp_path / "multicomponent")
    run = _python("import multicomponent; multicomponent.two_sum", tmp_path)
    assert "'multicomponent' is the folder of a repository" in run.stderr
    assert "use `import mcf`" in run.stderr
    # Tools that only look (pytest does, at a folder with an __init__.py) are not disturbed.
    looked = _python("import multicomponent as m; getattr(m, 'setup_module', 0)", tmp_path)
    assert looked.returncode == 0, looked.stderr


def _other_project(site: Path) -> None:
    """The files of the distribution `mcf`, which pip writes over those of the same names."""
    (site / "mcf").mkdir(parents=True, exist_ok=True)
    (site / "mcf" / "__init__.py").write_text("ModifiedCausalForest = 1\n")
    _metadata(site, "Implements the Modified Causal Forest")


SHARED = (
    "cannot share an environment",
    "mcf 0.9.0",
    "Causal Forest",
    "pip uninstall mcf mcf-torch",
)


@pytest.mark.slow
def test_other_project_written_over_ours(site: Path, tmp_path: Path) -> None:
    installed = _installed(tmp_path / "installed")
    _other_project(installed)
    run = _python("from mcf.optim import CollageAdamW", tmp_path, installed, site)
    assert run.stderr.splitlines()[-1].startswith("ImportError: two projects"), run.stderr
    assert all(part in run.stderr for part in SHARED), run.stderr


def test_ours_written_over_the_other_project(tmp_path: Path) -> None:
    installed = _installed(tmp_path / "installed")
    ours = (installed / "mcf" / "__init__.py").read_text()
    _other_project(installed)
    (installed / "mcf" / "__init__.py").write_text(ours)
    run = _python("import mcf", tmp_path, installed)  # refused before torch is looked for
    assert run.stderr.splitlines()[-1].startswith("ImportError: two projects"), run.stderr
    assert all(part in run.stderr for part in SHARED), run.stderr


def test_other_project_beside_a_checkout(tmp_path: Path) -> None:
    _other_project(tmp_path / "other")
    run = _python("import mcf", ROOT, tmp_path / "other")
    assert all(part in run.stderr for part in SHARED), run.stderr


def test_other_project_removed_with_our_file(tmp_path: Path) -> None:
    installed = _installed(tmp_path / "installed")
    (installed / "mcf" / "__init__.py").unlink()
    run = _python("import mcf.kernels", tmp_path, installed)
    assert "--force-reinstall" in run.stderr.splitlines()[-1], run.stderr
