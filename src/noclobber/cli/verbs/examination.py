"""What works here: versions, the ways of seeing, and a small program whose silent error must be found."""

from __future__ import annotations

import platform
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noclobber.model.reports.error import UnsupportedTorch
from noclobber.model.version import installed
from noclobber.processes.member import is_pytorch
from noclobber.render.text import filled, visible
from noclobber.session.session import Session

OPTIONAL = ("numpy", "pytest", "pytest-xdist", "lightning", "accelerate", "transformers", "ipython")
"""Packages that noclobber works with where they are installed."""
_PTH = "noclobber-processes.pth"
"""The file by which a new Python of a watched program takes part."""


@dataclass(slots=True)
class Examination:
    """What was found out: `rows` are a name and what is said of it, `works` says whether errors are found here."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    works: bool = False

    def text(self, width: int | None = None) -> str:
        """One screen of text; what a bug report needs. Lines break between words at `width` cells, None for nowhere."""
        most, lines = max(len(name) for name, _ in self.rows) + 2, []
        for name, said in self.rows:
            lines += filled(visible(said), width, first=f"{name:<{most}}", below=" " * most)
        return "".join(f"{line.rstrip()}\n" for line in lines)


def examine() -> Examination:
    """Look at this environment. Nothing is changed, and nothing stays armed."""
    done = Examination()
    rows = done.rows
    rows.append(("noclobber", installed("noclobber") or "run from its source"))
    rows.append(("python", f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}"))
    rows.append(("", sys.executable))
    rows += _torch(done)
    rows.append(("children", _children()))
    known = {name: installed(name) for name in OPTIONAL}
    rows.append(("optional", ", ".join(f"{name} {found}" for name, found in known.items() if found) or "nothing"))
    if missing := [name for name, found in known.items() if not found]:
        rows.append(("", f"not installed: {', '.join(missing)}"))
    return done


def _torch(done: Examination) -> Iterator[tuple[str, str]]:
    """Say what torch is here, and what can be seen with it."""
    try:
        import torch
    except (Exception, SystemExit) as failure:
        yield "torch", f"cannot be imported: {type(failure).__name__}: {failure}"
        return
    if not is_pytorch():
        yield "torch", f"`torch` at {next(iter(getattr(torch, '__path__', ())), torch.__file__)} is not PyTorch"
        return
    yield "torch", f"{torch.__version__}, {Path(torch.__file__).parent}"
    try:
        yield from (("", said) for said in _devices(torch))
        yield from _seeing(done)
    except Exception as failure:
        done.works = False
        yield "watching", f"does not work: {type(failure).__name__}: {failure}"


def _devices(torch: Any) -> Iterator[str]:
    if torch.cuda.is_available():
        yield f"cuda {torch.version.cuda}: {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    if torch.backends.mps.is_available():
        yield "mps"


def _seeing(done: Examination) -> Iterator[tuple[str, str]]:
    """Watch a small program with a silent error, and say what was found and what could not be watched."""
    session = Session(contents=True)
    try:
        session.start()
    except UnsupportedTorch as reason:
        yield "watching", f"does not work: {reason}"
        return
    from noclobber.observe.arming.recorder import SEEN
    from noclobber.observe.native import bridge

    try:
        _silent_error()
    finally:
        session.stop()
    coverage = session.coverage()
    codes = [one.code for one in session.findings]
    done.works = codes == ["NC201"]
    if done.works or not codes:
        yield "a silent error", "is found" if done.works else "is not found"
    else:
        yield "a silent error", f"is NC201, and what was found is {', '.join(codes)}"
    yield "writes", f"by {coverage.writes}"
    yield "native part", bridge.why_not() or "takes the usual saves and writes"
    lost = coverage.lost
    broken = {one.way for one in lost} & {one.name for one in SEEN}
    yield "ways of seeing", f"{len(SEEN) - len(broken)} of {len(SEEN)} work"
    for one in lost:
        yield "", f"{one.way}: {one.why}"
    for note in coverage.notes:
        yield "note", note


def _silent_error() -> None:
    import torch

    with warnings.catch_warnings(action="ignore"), torch.enable_grad():
        leaf = torch.ones(3, requires_grad=True)
        kept = leaf.exp()
        kept.data.mul_(2)
        torch.autograd.backward([kept.sum()])


def _children() -> str:
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    if any((Path(folder) / _PTH).exists() for folder in folders if folder):
        return "forked ones and new Pythons are watched"
    return (
        f"forked ones are watched; new Pythons are not, because `{_PTH}` is not installed: install noclobber with pip"
    )
