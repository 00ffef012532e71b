"""Command-line options of `examples/pretrain.py`."""

from __future__ import annotations

import argparse
import math
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pretraining import scale_options
from pretraining.arguments import Help, Parser, Unset, integer, real

STRATEGIES = ("plain", "8bit", "bf16_sr", "split16_sr", "plus", "master")
# Trained where they are named.
OTHERS = (
    "kahan", "light", "split16", "split16_8bit", "split8", "split8_sr", "split8_8bit", "stochastic",
    "4bit", "eco", "eco_stochastic", "fp32_states",
)  # fmt: skip

# Options that decide where results go and how often they are saved, but not what they are.
# All others must agree when a run is resumed.
_FREE_ON_RESUME = frozenset({"name", "out", "existing", "checkpoint_every"})

# Those of runs by several processes, see `scale_options`: of these, what decides the result.
_SCALE_FIXED = frozenset({"model", "reduce", "micro_batch"})

# What torch's and numpy's generators take.
_MOST_SEED = 2**64 - 1
# More threads than any machine of today has cores; far more are refused by the system, or end it.
_MOST_THREADS = 1024
# Bytes; what is put behind it (a date, a temporary file's name) stays below 255 with it.
_LONGEST_NAME = 150


@dataclass(frozen=True)
class Options:
    """The checked options; one field for each command-line flag, in the order of `--help`."""

    data: tuple[str, ...]
    val_data: tuple[str, ...]
    val_fraction: float
    max_bytes: int
    vocab_size: int | None
    layers: int
    width: int
    heads: int
    context: int
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    batch_size: int
    lr: float
    warmup: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    compute_dtype: str
    device: str
    threads: int
    name: str
    out: Path
    existing: str
    log_every: int
    eval_every: int
    eval_windows: int
    checkpoint_every: int
    model: str | None
    parallel: str
    shards: int | None
    tensor: int
    sequence_parallel: bool
    reduce: str
    micro_batch: int | None
    dry_run: bool
    devices: int | None

    @property
    def together(self) -> bool:
        """Whether one strategy is trained by the processes of torchrun, or by one in their way."""
        return (
            self.parallel != "none"
            or self.model is not None
            or self.reduce != "engine"
            or self.micro_batch is not None
        )

    @property
    def folder(self) -> Path:
        """The folder of this run, `<out>/<name>`."""
        return self.out / self.name

    def fixed(self) -> dict[str, Any]:
        """The options that decide the result, as plain JSON values."""
        kept = _SCALE_FIXED if self.together else frozenset()
        free = _FREE_ON_RESUME | (scale_options.FIELDS - kept)
        values = {key: value for key, value in asdict(self).items() if key not in free}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def flag(field: str) -> str:
    """Return the command-line spelling of an option's field name."""
    return "--" + field.replace("_", "-")


def _name(text: str) -> str:
    if not re.fullmatch(r"\w[\w.+-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a folder name of letters, digits and _ . + -"
        )
    if len(os.fsencode(text)) > _LONGEST_NAME:
        raise argparse.ArgumentTypeError(
            f"{text[:20] + '...'!r} is longer than {_LONGEST_NAME} bytes"
        )
    return text


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder's path")
    return Path(text)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; every option has its default in the help text."""
    parser = Parser(
        prog="pretrain.py",
        allow_abbrev=False,
        formatter_class=Help,
        description=(
            "Train the same small GPT in bf16 once under each precision strategy of the optimizer "
            "(same initial weights, same batches) and compare: a table, summary.csv, loss.png and "
            "edq.png under <out>/<name>. Without --data it trains on the Python standard "
            "library's own sources."
        ),
    )
    # One or two lines an option read better than the formatter's six.
    # fmt: off
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data", nargs="+", metavar="GLOB", default=[],
        help="text files, one token per byte, or .bin files of uint16 tokens, memory-mapped; "
        "** descends into folders; without it: the Python standard library",
    )
    data.add_argument(
        "--val-data", nargs="+", metavar="GLOB", default=[],
        help="validation files; without it, a part of --data's files is set aside, chosen by hash",
    )
    data.add_argument(
        "--val-fraction", type=real(0, 1, open_low=True), default=0.1, metavar="X",
        help="share of the files set aside for validation",
    )
    data.add_argument(
        "--max-bytes", type=integer(1), default=64_000_000, metavar="N",
        help="read at most N bytes of text, in the files' sorted order, of --data and as many of "
        "--val-data (.bin is not limited)",
    )
    data.add_argument(
        "--vocab-size", type=integer(1, 2**16), metavar="N",
        help="number of different tokens in .bin files; without it: the largest token + 1",
    )
    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=integer(1), default=Unset(4), metavar="N", help="blocks")
    model.add_argument(
        "--width", type=integer(1), default=Unset(128), metavar="N",
        help="size of the residual stream",
    )
    model.add_argument(
        "--heads", type=integer(1), default=Unset(4), metavar="N",
        help="attention heads; divides width",
    )
    model.add_argument(
        "--context", type=integer(1), default=Unset(64), metavar="N", help="tokens the model sees"
    )
    train = parser.add_argument_group("training")
    train.add_argument(
        "--strategies", nargs="+", choices=(*STRATEGIES, *OTHERS), default=list(STRATEGIES),
        metavar="NAME", help="precision strategies to compare, also " + ", ".join(OTHERS),
    )
    train.add_argument(
        "--seeds", nargs="+", type=integer(0, _MOST_SEED), default=[0], metavar="N",
        help="each seed draws initial weights and batches; several give a mean and a spread",
    )
    train.add_argument("--steps", type=integer(1), default=3000, metavar="N", help="updates")
    train.add_argument(
        "--batch-size", type=integer(1), default=4, metavar="N", help="windows of text per update"
    )
    train.add_argument(
        "--lr", type=real(0, 100), default=1e-3, metavar="X",
        help="highest learning rate; falls to a tenth of it on a half cosine",
    )
    train.add_argument(
        "--warmup", type=integer(0), metavar="N",
        help="updates in which the learning rate rises linearly; without it: a tenth of them",
    )
    train.add_argument(
        "--beta1", type=real(0, 1), default=0.9, metavar="X", help="decay of the first moment"
    )
    train.add_argument(
        "--beta2", type=real(0, 1), default=0.999, metavar="X", help="decay of the second moment"
    )
    train.add_argument(
        "--eps", type=real(0, 1), default=1e-8, metavar="X", help="AdamW's epsilon"
    )
    train.add_argument(
        "--weight-decay", type=real(0, 100), default=0.1, metavar="X",
        help="decoupled weight decay of the matrices (the norm layers have none)",
    )
    train.add_argument(
        "--clip", type=real(0, math.inf, open_low=True), default=1.0, metavar="X",
        help="largest norm of the whole gradient; a larger one is scaled down to it",
    )
    train.add_argument(
        "--compute-dtype", choices=("float32", "bfloat16"), default="float32",
        help="arithmetic inside the optimizer's step; bfloat16 is the Collage paper's, for plain, "
        "kahan, light and plus (the others always compute in float32)",
    )
    train.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes a GPU where there is one; a CPU upcasts the bf16 weights in the forward "
        "pass, a GPU runs natively in bf16",
    )
    train.add_argument(
        "--threads", type=integer(1, _MOST_THREADS), default=1, metavar="N",
        help="CPU threads; the same bits need the same number. One is fastest for a model this "
        "small, and the only safe choice on a machine that does something else too",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--name", type=_name, default="pretrain", help="folder of this run")
    output.add_argument(
        "--out", type=_folder, default=Path("runs"), metavar="FOLDER", help="where runs are kept"
    )
    output.add_argument(
        "--resume", dest="existing", action="store_const", const="resume", default="refuse",
        help="go on with an interrupted run of this name, to the same bits; starts it if there is "
        "none, shows the table again if it is finished",
    )
    output.add_argument(
        "--overwrite", dest="existing", action="store_const", const="overwrite", default="refuse",
        help="begin again where there is an earlier run of this name, which is kept under a dated "
        "name; of --resume and --overwrite the last one counts",
    )
    output.add_argument(
        "--log-every", type=integer(1), default=1, metavar="N", help="updates per metrics line"
    )
    output.add_argument(
        "--eval-every", type=integer(1), metavar="N",
        help="updates per validation (default: 250, a quarter of the run if that is fewer)",
    )
    output.add_argument(
        "--eval-windows", type=integer(1), default=512, metavar="N",
        help="windows of text in a validation, evenly spaced over the validation files",
    )
    output.add_argument(
        "--checkpoint-every", type=integer(1), default=250, metavar="N",
        help="updates per checkpoint; the last two of each training are kept",
    )
    # fmt: on
    scale_options.add(parser)
    return parser


def parse(argv: list[str] | None = None) -> Options:
    """Parse and check `argv` (default: the process's own arguments).

    Raises:
        SystemExit: with code 2 after one line on stderr when an option is wrong; with code 0
            after `--help`.
    """
    parser = build_parser()
    values = vars(parser.parse_args(argv))
    scale_options.resolve(parser, values)
    for key in ("data", "val_data", "strategies", "seeds"):
        values[key] = tuple(values[key])
    if values["warmup"] is None:
        values["warmup"] = values["steps"] // 10
    if values["eval_every"] is None:
        # A curve of the loss needs some points in a short run, too.
        values["eval_every"] = max(1, min(250, values["steps"] // 4))
    options = Options(**{field.name: values[field.name] for field in fields(Options)})
    if options.width % options.heads:
        parser.error(f"argument --heads: {options.heads} does not divide --width {options.width}")
    if options.warmup > options.steps:
        parser.error(f"argument --warmup: {options.warmup} is more than --steps {options.steps}")
    for key in ("strategies", "seeds"):
        chosen = getattr(options, key)
        if len(set(chosen)) < len(chosen):
            parser.error(f"argument {flag(key)}: {' '.join(map(str, chosen))} names one twice")
    scale_options.check(parser, options)
    if options.val_data and not options.data:
        parser.error("argument --val-data: needs --data")
    return options
