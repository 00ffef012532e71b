"""What the scripts of the papers share: options, results and figures, models, texts."""

import sys
from pathlib import Path

# The harness of the benchmarks and the parts of the pretraining example are next to this folder.
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]
