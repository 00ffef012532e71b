"""The pages of the documentation lead somewhere, and all of them are in the site (`make docs`)."""

from __future__ import annotations

import importlib
import operator
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
NEEDS = "mkdocs and latex2mathml are installed by make docs, in its environment"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As code hosts and the site make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", h.lower()) for h in headings]
    return {h.strip().replace(" ", "-") for h in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lost = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def test_every_page_is_in_the_site() -> None:
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    site = ROOT / "docs" / "site"
    text = (site / "hooks.py").read_text() + (site / "reference.py").read_text()
    # Pages of the root by their names here, and the reference.
    made = re.findall(r'"\w+\.md": "(\w+\.md)"', text) + re.findall(r'"(api/\w+\.md)"', text)
    made += [f"notebooks/{path.stem}.md" for path in ROOT.glob("notebooks/*.ipynb")]
    docs = ROOT / "docs"
    written = [p.relative_to(docs).as_posix() for p in docs.glob("**/*.md")]
    assert sorted(listed) == sorted([*made, *written])


def test_the_reference_documents_the_public_objects() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))
    count = 0
    for module, source, more in site["PAGES"].values():
        for name in (*site["public"]((ROOT / source).read_text()), *more):
            shown = pkgutil.resolve_name(site["path"](module, name))
            assert shown is operator.attrgetter(name)(importlib.import_module(module))
            count += 1
        text = site["page"](module, ROOT / source, more)
        # No group is the rest: a table before the docstrings names each object once.
        assert all(" | |" not in line for line in text.splitlines())
        assert " at 0x" not in text
        assert len(re.findall(r"^::: ", text, re.MULTILINE)) == len(
            re.findall(r"^\| \[", text, re.MULTILINE)
        )
    assert count > 150


def test_the_links_of_the_site() -> None:
    """What `make docs` makes of links to the repository, and the names of the reference."""
    pytest.importorskip("mkdocs", reason=NEEDS)
    site = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
    linked: set[str] = set()
    page = (
        "a [b](../README.md#two-commands) [c](../optim/optimizer.py) [d](../benchmarks) [e](x.md)"
    )
    assert site["in_site"](page, "docs", "tensor.md", linked) == (
        "a [b](overview.md#two-commands) [c](files/optim/optimizer.py) d [e](x.md)"
    )
    page = "[gpu.md](gpu.md) [Graphics](gpu.md)"
    assert site["in_site"](page, "docs", "tensor.md", set()) == "[GPUs](gpu.md) [Graphics](gpu.md)"
    assert linked == {"optim/optimizer.py"}
    page = "[b](../../README.md) [c](../../optim/optimizer.py) [e](../images/x.png)"
    assert site["in_site"](page, site["folder_of"]("papers/x.md"), "papers/x.md", linked) == (
        "[b](../overview.md) [c](../files/optim/optimizer.py) [e](../images/x.png)"
    )
    page = "[f](../../notebooks/tour.ipynb)"
    assert site["in_site"](page, "docs/tutorials", "tutorials/x.md", set()) == (
        "[f](../notebooks/tour.md)"
    )
    names = site["public"]((ROOT / "optim" / "__init__.py").read_text())
    assert names["AdamW"] == "mcf.optim.rules.adamw.AdamW"
    assert "_STRATEGIES" not in names


def test_typeset_powers_and_formulas() -> None:
    """Code stays as it is; what pages write as 2^-53 and $u^2$ does not."""
    pytest.importorskip("latex2mathml", reason=NEEDS)
    site = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
    assert site["powers"]("5 u^2, 2^-53, x^(a + 1) <code>u^2</code>") == (
        "5 u<sup>2</sup>, 2<sup>\N{MINUS SIGN}53</sup>, x<sup>a + 1</sup> <code>u^2</code>"
    )
    assert site["powers"]("u<strong>n + u</strong>2") == "u<sup>n</sup> + u<sup>2</sup>"
    made = site["on_page_content"]("<p>m &lt;- b1 m; p &lt;- p - m^</p>", None, None, None)
    assert made == '<p class="steps">m \u2190 b1 m<br>p \u2190 p - m\u0302</p>'
    page = r'<p><span class="arithmatex">\(u^2 &lt; 1\)</span></p>'
    made = site["on_page_content"](page, None, None, None)
    assert "<math" in made
    assert "<msup>" in made
    assert "arithmatex" not in made
    assert site["sessions"]("```python\n>>> 1\n") == "```pycon\n>>> 1\n"


def test_every_function_has_a_row() -> None:
    """The site's table has the page's names, and the facts are of functions on the page."""
    site = runpy.run_path(str(ROOT / "docs" / "site" / "function_table.py"))
    page = (ROOT / "docs" / "functions.md").read_text()
    made = site["table"](page, ROOT / "docs" / "results" / "functions.csv")
    listed = page.split("## Supported")[1].split("## Refused")[0].count("`") // 2
    assert len(re.findall(r"^\| `", made.split("## Refused")[0], re.MULTILINE)) == listed > 600
    assert "| `exp` | all | yes | 1 u^2 | yes | kernels |" in made
    assert re.search(r"\| `transpose` \| all \| yes \|  \| yes \| PyTorch \|", made)
