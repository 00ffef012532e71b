"""The notebooks as pages of the site: their text, code, printed output and pictures."""

from __future__ import annotations

import base64
import json
from pathlib import Path


def files(folder: Path) -> dict[str, bytes]:
    """Return a page for each notebook, and the pictures of its outputs, by their names."""
    made: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = []
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(source)
                continue
            parts.append(f"```python\n{source}\n```")
            for output in cell["outputs"]:
                data = output.get("data", {})
                if "image/png" in data:
                    name = f"{path.stem}-{len(made)}.png"
                    made[f"notebooks/{name}"] = base64.b64decode("".join(data["image/png"]))
                    parts.append(f"![Plot of the cell above]({name})")
                else:
                    text = "".join(output.get("text", data.get("text/plain", "")))
                    parts.append(f"```text\n{text.rstrip()}\n```")
        title, rest = "\n\n".join(parts).split("\n", 1)
        where = f"*The notebook is `notebooks/{path.name}`; the tests run it.*"
        made[f"notebooks/{path.stem}.md"] = f"{title}\n\n{where}\n{rest}\n".encode()
    return made
