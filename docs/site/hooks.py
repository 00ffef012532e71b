"""What the site has beside the pages of docs/: README and others of the root, and the reference.

Pages link to files of the repository as code hosts show them. Such links lead to the same page of
the site, or to a copy of the file; those to folders become text.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Pages of the root, and what they are called here.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
REFERENCE = {
    "api/mcf.md": ("mcf", "mcf/__init__.py", ()),
    "api/optim.md": ("mcf.optim", "optim/__init__.py", ("optimizer.LowPrecisionOptimizer",)),
    "api/nn.md": ("mcf.nn", "mcf/nn/__init__.py", ()),
}
_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def public(source: str) -> dict[str, str]:
    """The names that a module makes public (`from a import b as b`), and where they are from."""
    return {
        alias.name: f"{node.module}.{alias.name}"
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module not in ("mcf", "torch.linalg")
        for alias in node.names
        if alias.asname == alias.name and not alias.name.startswith("_")
    }


def reference(module: str, source: Path, more: Sequence[str]) -> str:
    """A page with the docstring of each public name of a module, and of `more`."""
    names = public(source.read_text())
    # A function that is called as the package that holds it is found by its own place.
    paths = {n: p if (source.parent / n).is_dir() else f"{module}.{n}" for n, p in names.items()}
    listed = [paths[n] for n in sorted(names, key=str.lower)]
    listed += [f"{module}.{name}" for name in more]
    return f"# {module}\n\n" + "\n".join(f"::: {path}\n" for path in listed)


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages and the reference, and what pages link to."""
    made = {page: (ROOT / name).read_text() for name, page in PAGES.items()}
    made |= {p: reference(m, ROOT / s, x) for p, (m, s, x) in REFERENCE.items()}
    linked: set[str] = set()
    for page, text in made.items():
        # Pages of the root come from there, the others are nowhere.
        files.append(File.generated(config, page, content=in_site(text, "", page, linked)))
    for file in files.documentation_pages():
        if file.src_uri not in made:
            text = Path(str(file.abs_src_path)).read_text()
            in_site(text, folder_of(file.src_uri), file.src_uri, linked)
    for name in sorted(linked):
        files.append(File.generated(config, f"files/{name}", content=(ROOT / name).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page of docs/ to the site's pages."""
    if page.file.generated_by:
        return markdown
    return in_site(markdown, folder_of(page.file.src_uri), page.file.src_uri, set())


def folder_of(page: str) -> str:
    """Where in the repository a page of docs/ lies, by its name in the site."""
    return posixpath.dirname(f"docs/{page}")


def in_site(text: str, folder: str, page: str, linked: set[str]) -> str:
    """A page's text with links that hold in the site.

    Args:
        text: of the page.
        folder: in which it lies in the repository.
        page: its name in the site.
        linked: takes the files of the repository that need a copy.
    """

    def lead(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        at = posixpath.normpath(posixpath.join(folder, target))
        if at in PAGES:
            there = PAGES[at]
        elif at.startswith("docs/"):
            there = at.removeprefix("docs/")
        elif (ROOT / at).is_file():
            linked.add(at)
            there = f"files/{at}"
        elif (ROOT / at).is_dir():
            return label[1:-1]
        else:
            return match[0]
        return f"{label}({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(lead, text)
