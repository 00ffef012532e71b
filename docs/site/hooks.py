"""Add to the pages of docs/ what only the site has, and typeset what pages write as text.

The site adds the pages of the root, the reference, the notebooks and a table of functions. Pages
link to files of the repository as code hosts show them. Such links lead to the same page of the
site, or to a copy of the file; those to folders become text. Formulas become MathML and powers
superscripts when the site is built, so that readers load nothing for them.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))

import notebook_pages
import reference
from function_table import table
from reference import public as public

ROOT = Path(__file__).resolve().parents[2]
# Pages of the root, and what they are called here.
PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
# Pages that readers do not search for.
UNSEARCHED = ("decisions.md", "changelog.md")
MINUS = "\N{MINUS SIGN}"
# Assets of the site, which every page loads.
ASSETS = ("site.css", "filter.js")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
# A paragraph of a docstring with assignments.
_STEPS = re.compile(r"<p>([^<]*&lt;-[^<]*)</p>")
_CODE = re.compile(r"(<(?:code|pre|math)\b.*?</(?:code|pre|math)>|<[^>]*>)", re.DOTALL)
# Markdown reads two powers of Python, u**2 and u**3, as bold text between them.
_BOLD = re.compile(r"(?<=\w)<strong>(.*?)</strong>(?=[\w(|-])", re.DOTALL)
_POWER = re.compile(r"(\w|[\])])(?:\^|\*\*)(\([^()<]*\)|\|\w+\||-?\d+\.\d+|-?\w+)")
_LINK = re.compile(r"(\[[^\[\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Link the header to the repository, once it has a public address."""
    text = (ROOT / "pyproject.toml").read_text()
    address = re.findall(r'^repository = "(.*)"$', text, re.MULTILINE)[0]
    if address:
        config.repo_url, config.repo_name = address, "Repository"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages and the reference, and what pages link to."""
    made = {page: (ROOT / name).read_text() for name, page in PAGES.items()}
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
    for name in ASSETS:
        content = (ROOT / "docs" / "site" / name).read_bytes()
        files.append(File.generated(config, name, content=content))
    for name, content in notebook_pages.files(ROOT / "notebooks").items():
        if name.endswith(".md"):
            content = in_site(content.decode(), "notebooks", name, linked).encode()
        files.append(File.generated(config, name, content=content))
    for name in sorted(linked):
        files.append(File.generated(config, f"files/{name}", content=(ROOT / name).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page of docs/ to the site's pages."""
    if page.file.src_uri in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    if page.file.generated_by:
        return sessions(markdown)
    if page.file.src_uri == "functions.md":
        page.meta["hide"] = ["toc"]
        markdown = table(markdown, ROOT / "docs" / "results" / "functions.csv")
    return in_site(sessions(markdown), folder_of(page.file.src_uri), page.file.src_uri, set())


def on_page_content(text: str, page: Any, config: Any, files: Files) -> str:
    """Typeset the formulas and powers of a page."""
    text = _STEPS.sub(_lines, text)
    return powers(_FORMULA.sub(lambda m: mathml(*m.group(1, 2)), text))


def sessions(markdown: str) -> str:
    """Mark sessions as such: their prompts and outputs are not copied with them."""
    return markdown.replace("```python\n>>> ", "```pycon\n>>> ")


def _lines(match: re.Match[str]) -> str:
    """Return a paragraph of assignments with a line for each; `m^` has its hat."""
    said = re.sub(r"(\w)\^(?![\w(-])", "\\1\N{COMBINING CIRCUMFLEX ACCENT}", match[1])
    said = said.replace("&lt;-", "\N{LEFTWARDS ARROW}").replace("\n", " ")
    return f'<p class="steps">{re.sub(r"; +", "<br>", said)}</p>'


def mathml(tag: str, source: str) -> str:
    """Return a formula in LaTeX, which arithmatex has marked, as MathML."""
    formula = html.unescape(source.strip()[2:-2])
    return str(latex2mathml.converter.convert(formula, "block" if tag == "div" else "inline"))


def powers(text: str) -> str:
    """Return HTML whose powers, 2^-53, are superscripts outside code, formulas and tags."""
    parts = _CODE.split(_BOLD.sub(r"**\1**", text))
    parts[::2] = [_POWER.sub(_raised, part) for part in parts[::2]]
    return "".join(parts)


def _raised(match: re.Match[str]) -> str:
    exponent = match[2][1:-1] if match[2].startswith("(") else match[2]
    return f"{match[1]}<sup>{exponent.replace('-', MINUS)}</sup>"


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
        if posixpath.basename(label[1:-1].strip("`")) == posixpath.basename(target):
            label = f"[{title(at)}]"
        if at in PAGES:
            there = PAGES[at]
        elif at.startswith("docs/"):
            there = at.removeprefix("docs/")
        elif at.endswith(".ipynb"):
            there = at.replace(".ipynb", ".md")
        elif (ROOT / at).is_file():
            linked.add(at)
            there = f"files/{at}"
        elif (ROOT / at).is_dir():
            return label[1:-1]
        else:
            return match[0]
        return f"{label}({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(lead, text)
