"""What the site has beside the pages of docs/: README and others of the root, and the reference.

Pages link to files of the repository as code hosts show them. Such links lead to the same page of
the site, or to a copy of the file; those to folders become text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))

import reference
from reference import public as public

ROOT = Path(__file__).resolve().parents[2]
# Pages of the root, and what they are called here.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
# Pages that readers do not search for.
UNSEARCHED = ("decisions.md", "changelog.md")
# Buttons of the landing page.
DOORS = "[Train](#train){ .md-button .md-button--primary } [Compute](#compute){ .md-button }"
# Names in tables do not break.
STYLE = "td code { white-space: nowrap; }\n"
_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages and the reference, and what pages link to."""
    made = {page: (ROOT / name).read_text() for name, page in PAGES.items()}
    made["index.md"] = made["index.md"].replace("\n> ", f"\n{DOORS}\n\n> ", 1)
    made |= {p: reference.page(m, ROOT / s, x) for p, (m, s, x) in reference.PAGES.items()}
    made["api/linalg.md"] = reference.linalg()
    linked: set[str] = set()
    for page, text in made.items():
        # Pages of the root come from there, the others are nowhere.
        files.append(File.generated(config, page, content=in_site(text, "", page, linked)))
    for file in files.documentation_pages():
        if file.src_uri not in made:
            text = Path(str(file.abs_src_path)).read_text()
            in_site(text, folder_of(file.src_uri), file.src_uri, linked)
    files.append(File.generated(config, "site.css", content=STYLE))
    for name in sorted(linked):
        files.append(File.generated(config, f"files/{name}", content=(ROOT / name).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page of docs/ to the site's pages."""
    if page.file.src_uri in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    if page.file.generated_by:
        return markdown
    return in_site(markdown, folder_of(page.file.src_uri), page.file.src_uri, set())


def folder_of(page: str) -> str:
    """Where in the repository a page of docs/ lies, by its name in the site."""
    return posixpath.dirname(f"docs/{page}")


def title(page: str) -> str:
    """Return the heading of a page of the repository up to its colon, or the page's own name."""
    found = re.match(r"# ([^:\n]+)", (ROOT / page).read_text()) if page.endswith(".md") else None
    return found[1] if found else posixpath.basename(page)


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
        if label[1:-1] == posixpath.basename(target):
            label = f"[{title(at)}]"
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
