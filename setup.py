"""Build what git tracks and nothing else, with a description whose links lead to the repository.

Everything that can be declared is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def tracked() -> set[Path] | None:
    """The files of this checkout that git tracks; None where there is no git (an sdist, say)."""
    # A checkout of its own, not a copy somewhere inside another repository.
    if not (ROOT / ".git").exists():
        return None
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name}


class BuildTracked(build_py):
    """`build_py` without strays: no untracked module, no leftover of an earlier build."""

    def run(self) -> None:
        """Build into an empty folder: what build/lib holds already would get into the wheel."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """As setuptools finds them, less those that git does not track."""
        found = super().find_package_modules(package, package_dir)
        known = tracked()
        if known is None:
            return found
        strays = [path for _, _, path in found if (ROOT / path).resolve() not in known]
        for path in strays:
            self.warn(f"left out, because git does not track it: {path}")
        return [entry for entry in found if entry[2] not in strays]


def repository() -> str:
    """Return the public address of the repository; empty while there is none."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'^repository = "(.*)"$', text, re.MULTILINE)[0]


def description(text: str, address: str) -> str:
    """Return README with links that hold on a package index: absolute, or none.

    Args:
        text: of README.
        address: of the repository; where it is empty, links to files become their labels.
    """

    def lead(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if "://" in target:
            return match[0]
        if not address:
            return "" if picture else label
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lead, text)


def links(address: str) -> dict[str, str]:
    """Return the links that a package index shows."""
    changes = f"{address}/blob/HEAD/CHANGELOG.md"
    return {"Repository": address, "Changelog": changes} if address else {}


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildTracked},
        long_description=description(
            (ROOT / "README.md").read_text(encoding="utf-8"), repository()
        ),
        long_description_content_type="text/markdown",
        project_urls=links(repository()),
    )
