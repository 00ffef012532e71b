"""Pinned packages: exact, the same in constraints.txt and requirements.lock, for every Python.

Fails when a pin is not exact, when a constraint was changed and `make lock` was not run, when a
locked package has no hash, or when a dependency of pyproject.toml has no pin on some Python.
"""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}
# The extra `peers` is not locked: these are built from source, or only on some machines.
PEERS = {"heavyball", "numpy-quaddtype", "opt-einsum", "xprec"}


def _lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@cache
def _locked() -> dict[Requirement, list[str]]:
    """Requirement -> its hashes."""
    locked = {}
    for line in _lines("requirements.lock"):
        requirement, *hashes = line.split("--hash=")
        locked[Requirement(requirement)] = [each.strip() for each in hashes]
    return locked


def _pins(requirements: list[Requirement], python: str, system: str) -> dict[str, str]:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_system": system,
        "sys_platform": PLATFORMS[system],
        "platform_machine": "AMD64" if system == "Windows" else "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "extra": "",
    }
    active = [each for each in requirements if not each.marker or each.marker.evaluate(environment)]
    pins = {each.name: str(each.specifier) for each in active}
    assert len(pins) == len(active), "a package has two pins"
    return pins


def test_every_constraint_is_exact() -> None:
    for line in _lines("constraints.txt"):
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+(; [a-z_]+ (>=|<|==) '[\w.]+')?", line), line


def test_every_locked_file_has_hashes() -> None:
    for requirement, hashes in _locked().items():
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize("system", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_lock_agrees_with_constraints(python: str, system: str) -> None:
    constraints = _pins([Requirement(line) for line in _lines("constraints.txt")], python, system)
    locked = _pins(list(_locked()), python, system)
    for name, version in constraints.items():
        if name not in PEERS:
            assert locked.get(name) == version, f"{name}: run `make lock`"
    # What the lock holds besides is what torch's Linux wheels need on GPUs.
    beside = {name for name in locked if name not in constraints}
    assert all(name.startswith(("nvidia-", "cuda-")) for name in beside), beside
    assert system == "Linux" or not beside


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_pinned(python: str) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (dependencies,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    extras = re.findall(r"^(?:test|lint|examples|bench|proofs) = \[(.*?)\]", text, re.MULTILINE)
    assert len(extras) == 5
    pins = _pins(list(_locked()), python, "Linux")
    for quoted in re.findall(r'"(.*?)"', "".join((dependencies, *extras))):
        requirement = Requirement(quoted)
        version = pins[requirement.name].removeprefix("==")
        assert requirement.specifier.contains(version), (quoted, version)


def test_every_promised_python_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where it is run: its folder has what it imports.
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    script = runpy.run_path(str(ROOT / ".ci" / "versions"), run_name="versions")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    (least,) = re.findall(r'^requires-python = ">=(.*)"', text, re.MULTILINE)
    assert promised[0] == least
    assert set(promised) <= set(script["PYTHONS"])
    assert set(promised) <= set(PYTHONS)
    # What it installs can be shown, and the tests it runs are there.
    lines = ["numpy==2.4.6", "torch==2.13.0", "triton==3.7.1 ; sys_platform == 'linux'", ""]
    shown = script["versions"](lines)
    assert shown == {"torch": "2.13.0", "numba": "-", "triton": "3.7.1", "numpy": "2.4.6"}
    assert [test for test in script["TESTS"] if not (ROOT / test).exists()] == []
