"""What a person, a file or another package names comes to a terminal without what acts on it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import served

from .running import ENVIRONMENT, fresh, write

EVIL = b"h\n\x1b[31m\xe2\x80\xae\xff"
SHOWN = "h␊␛[31m\\u202e\\xff"
STALE = """
    import torch
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y += 1  # \x1b[31m
    y.sum().backward()
    """


def ours(words: list[bytes], folder: Path) -> tuple[int, str, bytes]:
    done = served.run(["-m", "noclobber", *map(os.fsdecode, words)], folder, env=ENVIRONMENT)
    return done.returncode, done.stderr, os.fsencode(done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([b"report", EVIL], f"cannot read `{SHOWN}`: No such file or directory"),
        ([b"fix", EVIL], f"cannot open `{SHOWN}`: No such file or directory"),
        ([b"run", b"-o", EVIL + b"/x", b"a.py"], f"cannot write `{SHOWN}/x`: there is no folder `"),
        ([b"explain", EVIL], f"no rule `{SHOWN}`, and no operator"),
        ([b"run", b"--" + EVIL, b"a.py"], f"unrecognized arguments: --{SHOWN}"),
        ([b"run", b"--select", EVIL, b"a.py"], "--select: 'h␊␛[31m\\u202e\\xff' is neither a code"),
        ([b"run", b"--baseline", EVIL, b"a.py"], f"there is no baseline `{SHOWN}`"),
    ],
    ids=lambda one: one[0].decode() if isinstance(one, list) else "",
)
def test_an_error_line(tmp_path: Path, words: list[bytes], said: str) -> None:
    write(tmp_path, {"a.py": "print('ran')"})
    status, stderr, stdout = ours(words, tmp_path)
    assert f"error: {said}" in stderr.splitlines()[-1]
    assert "\x1b" not in stderr
    assert (status, stdout) == (2, b"")


def test_a_key_of_the_project_and_where_a_report_is(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": ""})
    assert ours([b"run", b"-o", EVIL, b"a.py"], tmp_path)[1].endswith(f"; the report is in {SHOWN}\n")
    write(tmp_path, {"pyproject.toml": '[tool.noclobber]\n"\\u001b[31m" = 1\n'})
    assert "`␛[31m` is unknown" in ours([b"run", b"a.py"], tmp_path)[1]


def test_a_value_of_many_kilobytes_is_cut(tmp_path: Path) -> None:
    for words in ([b"report", b"x" * 100_000], [b"explain", b"x" * 100_000], [b"run", b"--" + b"x" * 100_000]):
        status, stderr, _ = ours(words, tmp_path)
        assert status == 2
        assert len(stderr.splitlines()[-1]) < 500
        assert " ... xxx" in stderr


def test_the_screen_of_doctor(tmp_path: Path) -> None:
    write(tmp_path, {"torch.py": "raise ImportError('no\\n\\x1b[31m\\u202e')"})
    ended = fresh(["doctor"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert "cannot be imported: ImportError: no␊␛[31m\\u202e\n" in ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
def test_fix_of_a_file_with_such_a_name(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": STALE})
    path = tmp_path / os.fsdecode(b"h\n\x1b[31m\xff.py")
    os.rename(tmp_path / "a.py", path)
    status, stderr, patch = ours([b"fix", os.fsencode(path.name)], tmp_path)
    assert status == 0
    assert patch.startswith(b'--- "a/h\\n\\033[31m\\377.py"\n+++ "b/h\\n\\033[31m\\377.py"\n')
    assert b"-y += 1  # \x1b[31m\n" in patch, "a patch keeps the bytes of the file"
    assert stderr.startswith("NC101 h␊␛[31m\\xff.py:4: in-place write")
    assert stderr.endswith("\nnext: noclobber fix --write $'h\\x0a\\x1b[31m\\xff.py'\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, check=True)
    assert b"y = y + 1  # \x1b[31m\n" in path.read_bytes()

    write(tmp_path, {"a.py": STALE})
    outer, inner = pty.openpty()
    plain = {**ENVIRONMENT, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "noclobber", "fix", "a.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=plain, stdout=inner, stderr=inner)
    os.close(inner)
    shown = b""
    while True:
        try:
            shown += os.read(outer, 65536)
        except OSError:
            break
    process.wait()
    assert b"\x1b" not in shown
    assert "-y += 1  # ␛[31m\r\n".encode() in shown


def test_a_patch_of_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    text = "# coding: latin-1\nimport torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1  # é\n"
    (tmp_path / "a.py").write_bytes((text + "y.sum().backward()\n").encode("latin-1"))
    _, _, patch = ours([b"fix", b"a.py"], tmp_path)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, check=True)
    assert "y = y + 1  # é\n".encode("latin-1") in (tmp_path / "a.py").read_bytes()
