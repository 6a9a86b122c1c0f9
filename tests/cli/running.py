"""Runs a program under `python` and under `noclobber run`, and compares what a person could notice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests import served

NEVER = "noclobber: nothing to watch: torch was never imported\n"
PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "noclobber", "run"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    stdout: str
    stderr: str
    status: int


def call(
    command: Sequence[str],
    folder: Path,
    stdin: str | None = "",
    env: Mapping[str, str] | None = None,
    merged: bool = False,
) -> Ended:
    """Run a command to its end. `merged` sends stderr where stdout goes, so that their order shows."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, **(env or {})},
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        check=False,
    )
    return Ended(without_addresses(done.stdout), without_addresses(done.stderr or ""), done.returncode)


def noclobber(
    words: Sequence[str], folder: Path, stdin: str | None = "", env: Mapping[str, str] | None = None
) -> Ended:
    """Run `noclobber WORDS...` where torch has been imported."""
    done = served.run(["-m", "noclobber", *words], folder, stdin, {**ENVIRONMENT, **(env or {})})
    return Ended(without_addresses(done.stdout), without_addresses(done.stderr), done.returncode)


def fresh(words: Sequence[str], folder: Path, stdin: str | None = "", env: Mapping[str, str] | None = None) -> Ended:
    """Run `noclobber WORDS...` in a Python that has imported nothing."""
    return call([sys.executable, "-m", "noclobber", *words], folder, stdin, env)


def without_addresses(text: str) -> str:
    """Object addresses and counts of references, which differ from run to run, made equal."""
    return re.sub(r"0x[0-9a-f]{6,}|(?<=refcount : )\d+", "0x", text)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, indented as it suits the test, into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")


def assert_same(
    folder: Path,
    words: Sequence[str],
    *,
    footer: str = NEVER,
    stdin: str = "",
    options: Sequence[str] = (),
    merged: bool = False,
) -> Ended:
    """Run `words` under `python` and under `noclobber run`; all must be equal but for the footer. The former's end."""
    bare = call([*PYTHON, *options, *words], folder, stdin, merged=merged)
    ours = call([sys.executable, *options, "-m", "noclobber", "run", *words], folder, stdin, merged=merged)
    told, expected = (ours.stdout, bare.stdout) if merged else (ours.stderr, bare.stderr)
    assert told == expected + footer
    assert merged or ours.stdout == bare.stdout
    assert ours.status == bare.status
    return bare
