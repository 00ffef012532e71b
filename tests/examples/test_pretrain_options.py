"""Bad options and bad data: one line on stderr that names the option, exit code 2."""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pretraining import console, files, model, sources
from pretraining.options import build_parser, parse

from tests.examples.tiny import EXAMPLES


def refused(capsys: pytest.CaptureFixture[str], pretrain, *arguments: str) -> str:
    """Run, demand code 2 and one line on stderr, and return that line."""
    try:
        code, _ = pretrain(*arguments)
    except SystemExit as stop:
        code = stop.code
    output = capsys.readouterr()
    assert code == 2
    assert output.err.count("\n") == 1
    assert output.err.startswith("pretrain.py: error: ")
    return output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategies", "fp8"], "--strategies: invalid choice: 'fp8'"),
        (["--strategies", "plus", "plus"], "--strategies: plus plus names one twice"),
        (["--seeds", "1", "1"], "--seeds: 1 1 names one twice"),
        (["--seeds", "-1"], "--seeds: '-1' is not a whole number from 0 to 18446744073709551615"),
        (["--steps", "0"], "--steps: '0' is not a whole number from 1 to"),
        (["--steps", "many"], "--steps: 'many' is not a whole number from 1 to"),
        (["--lr", "-1"], "--lr: '-1' is not a number in [0, 100)"),
        (["--lr", "nan"], "--lr: 'nan' is not a number"),
        (["--beta2", "1"], "--beta2: '1' is not a number in [0, 1)"),
        (["--val-fraction", "0"], "--val-fraction: '0' is not a number in (0, 1)"),
        (["--heads", "3"], "--heads: 3 does not divide --width 16"),
        (["--warmup", "8"], "--warmup: 8 is more than --steps 7"),
        (["--compute-dtype", "float16"], "--compute-dtype: invalid choice: 'float16'"),
        (["--name", "a/b"], "--name: 'a/b' is not a folder name"),
        (["--name", ".."], "--name: '..' is not a folder name"),
        (["--name", ""], "--name: '' is not a folder name"),
        (["--name", "a\nb\x1b[31m"], "is not a folder name"),
        (["--name", "x" * 300], "--name: 'xxxxxxxxxxxxxxxxxxxx...' is longer than 150 bytes"),
        (["--name", "ü" * 76], "is longer than 150 bytes"),
        (["--out", "a\0b"], "is not a folder's path"),
        (["--out", "x" * 300], "--out: cannot write xxx"),
        (
            ["--seeds", str(2**64)],
            "--seeds: '18446744073709551616' is not a whole number from 0 to",
        ),
        (["--seeds", "9" * 5000], "is not a whole number from 0 to"),
        (["--threads", "1000000"], "--threads: '1000000' is not a whole number from 1 to 1024"),
        (["--threads", "0"], "--threads: '0' is not a whole number from 1 to 1024"),
        (["--vocab-size", "65537"], "--vocab-size: '65537' is not a whole number from 1 to 65536"),
        (["--layers", "1000000000000"], "parameters needs"),
        (["--width", "1000000000000"], "parameters needs"),
        (["--batch-size", "1000000000000"], "parameters needs"),
        (["--data", "a\0b"], "--data: no file matches a"),
        (["--data", "x" * 300], "--data: no file matches xxx"),
        (["--data", "/dev/zero"], "cannot read /dev/zero: it is a character device, not a regular"),
        (["--\x1b[2J\nx"], "unrecognized arguments: --\\x1b[2J\\nx"),
        (["--clip", "0"], "--clip: '0' is not a number in (0, inf)"),
        (["--sedes", "1"], "unrecognized arguments: --sedes 1"),
        (["--step", "1"], "unrecognized arguments: --step 1"),
        (["--vocab-size", "300"], "--vocab-size: is for .bin files"),
        (["--eps", "1e-42", "--compute-dtype", "bfloat16"], "plain: Invalid epsilon value"),
        (["--context", "4000"], "too short for one window of --context 4000 + 1 tokens"),
        (["--data", "nowhere/*.txt"], "--data: no file matches nowhere/*.txt"),
        (["--data", "."], "--data: . is a folder; name its files, such as ./**/*.txt"),
    ],
)
def test_wrong_option(pretrain, capsys, arguments: list[str], words: str):
    assert words in refused(capsys, pretrain, *arguments)


def test_val_data_needs_data(capsys):
    from pretrain import main

    with pytest.raises(SystemExit) as stop:
        main(["--val-data", "x"])
    assert stop.value.code == 2
    assert "--val-data: needs --data" in capsys.readouterr().err


def test_bad_text_files(pretrain, capsys, texts: Path):
    (texts / "empty.txt").touch()
    assert "empty.txt is empty" in refused(capsys, pretrain)
    (texts / "empty.txt").unlink()
    (texts / "dangling.txt").symlink_to(texts / "gone")
    assert "dangling.txt: No such file" in refused(capsys, pretrain)
    one = str(texts / "00.txt")
    assert "add --val-data" in refused(capsys, pretrain, "--data", one)


def test_bad_token_files(pretrain, capsys, tmp_path: Path, texts: Path):
    good, bad = tmp_path / "good.bin", tmp_path / "bad.bin"
    np.arange(100, dtype="<u2").tofile(good)
    both = ["--data", str(good), str(bad)]
    bad.write_bytes(b"")
    assert "bad.bin is empty" in refused(capsys, pretrain, *both)
    bad.write_bytes(b"abc")
    assert "3 bytes, not a whole number of uint16 tokens" in refused(capsys, pretrain, *both)
    np.arange(101, dtype="<u2").tofile(bad)
    small = refused(capsys, pretrain, *both, "--vocab-size=100")
    assert "bad.bin holds token 100, not below 100" in small
    mixed = refused(capsys, pretrain, "--data", str(good), str(texts / "00.txt"))
    assert "cannot be mixed" in mixed


@pytest.mark.parametrize("suffix", [".txt", ".bin"])
def test_data_that_is_no_regular_file(pretrain, capsys, tmp_path: Path, suffix: str):
    """Nothing waits for the other end of a pipe, and nothing reads without end."""
    path = tmp_path / f"x{suffix}"
    both = ["--data", str(path), "--val-data", str(path)]
    os.mkfifo(path)
    assert "it is a pipe, not a regular file" in refused(capsys, pretrain, *both)
    path.unlink()
    path.symlink_to(path.name)
    assert "Too many levels of symbolic links" in refused(capsys, pretrain, *both)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "it is a character device" in refused(capsys, pretrain, *both)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert "it is a socket, not a regular file" in refused(capsys, pretrain, *both)


def test_unreadable_data(pretrain, capsys, texts: Path, monkeypatch):
    """Root reads everything, so the system's answer is made up."""

    def fail(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "open_regular", fail)
    assert "00.txt: Permission denied" in refused(capsys, pretrain)


def test_names_of_files_do_not_write_to_the_terminal(pretrain, capsys, texts: Path):
    """Control characters in a file's name are shown, not obeyed; a name need not be UTF-8."""
    for name in (b"a\x1b[2J\n.txt", b"\xff\xfe.txt"):
        path = Path(os.fsdecode(os.fsencode(texts) + b"/" + name))
        path.touch()
        line = refused(capsys, pretrain)
        assert "is empty" in line
        assert line.rstrip("\n").isprintable()
        path.unlink()


def test_links_in_circles(pretrain, capsys, texts: Path, monkeypatch):
    """Two links to the folder above make 2^40 names of a file."""
    for name in ("up", "again"):
        (texts / "below").mkdir(exist_ok=True)
        (texts / "below" / name).symlink_to(texts)
    monkeypatch.setattr(sources, "_MOST_NAMES", 1000)
    text = refused(capsys, pretrain, "--data", f"{texts}/**/*.txt")
    assert "matches more than 1,000 names; is there a link to a folder above it?" in text


def test_unusable_output_folder(pretrain, capsys, texts: Path):
    out = texts / "00.txt"
    assert f"--out: cannot write {out}/tiny" in refused(capsys, pretrain, f"--out={out}")


def test_cuda_where_there_is_none(pretrain, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "--device: cuda is not available" in refused(capsys, pretrain, "--device=cuda")


def test_lack_of_memory_is_one_line(pretrain, capsys, monkeypatch):
    """The system may refuse memory that the estimate lets pass."""

    def build(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\nat line 3")

    monkeypatch.setattr(model, "build", build)
    assert pretrain()[0] == 1
    error = capsys.readouterr().err
    assert error.startswith("pretrain.py: error: not enough memory: [enforce fail]")
    assert error.count("\n") == 1


def test_help_for_a_reader_that_goes(monkeypatch, capsys):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["--help"])
    assert stop.value.code == 0
    assert console.lost() == "Broken pipe"
    assert capsys.readouterr().err == ""


def test_help_explains_every_option():
    parser = build_parser()
    text = parser.format_help()
    for action in parser._actions:
        assert action.help
        assert len(action.help) > 5
        assert action.option_strings[-1] in text
    assert "None" not in text
    assert "[]" not in text


def test_as_a_command_it_answers_bad_data_without_a_traceback():
    """The real process: exit code, nothing on stdout, and the answer comes before torch loads."""
    script = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(EXAMPLES / "pretrain.py"), "--data", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "pretrain.py: error: --data: no file matches nowhere\n"


def test_default_validations_of_short_and_long_runs() -> None:
    steps = {1: 1, 60: 15, 999: 249, 3000: 250}
    assert {n: parse([f"--steps={n}"]).eval_every for n in steps} == steps
    assert parse(["--steps=60", "--eval-every=7"]).eval_every == 7
