"""What decides a run's bits: digests of options and data, and versions of all that computes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import torch

import mcf
import mcf.kernels
import mcf.optim


def digest(content: Any) -> str:
    """SHA-256 of a JSON value in its canonical spelling: keys sorted, ASCII, no spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """Return a JSON text of `content` and its digest."""
    return json.dumps({**content, "sha256": digest(content)}, indent=1) + "\n"


def unsealed(text: bytes) -> dict[str, Any]:
    """Return what `sealed` was given.

    Raises:
        ValueError: where it is not JSON, not a dictionary, or not as it was written.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is not JSON of a sane depth") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or "sha256" not in content:
        raise ValueError("it has no checksum")
    if content.pop("sha256") != digest(content):
        raise ValueError("its checksum does not fit")
    return content


def versions(device: torch.device) -> dict[str, str]:
    """Return the names and versions of what computes; where all agree, so do the bits."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "numba": importlib.metadata.version("numba"),
        "mcf": f"{mcf.__version__} (sources {_sources()})",
        "processor": _processor(device),
    }


def differences(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """Say what is not as it was, an entry each."""
    return [
        f"{key} was {then.get(key, 'unknown')} and is {now[key]}"
        for key in now
        if then.get(key) != now[key]
    ]


def _sources() -> str:
    """Eight hexadecimal digits that change with the library's code between two releases."""
    found = {}
    for package in (mcf, mcf.kernels, mcf.optim):
        root = Path(package.__path__[0])
        for path in root.rglob("*.py"):
            # The three may stand side by side or one in the other; a file's import name is one.
            name = "/".join((package.__name__.replace(".", "/"), *path.relative_to(root).parts))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digest(found)[:8]


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
