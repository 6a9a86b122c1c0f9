"""Programs run somewhere: on a device, in one of the ways in which noclobber can be there, and what came of it."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import noclobber
from noclobber.observe.detectors.foreign_memory.unseen_writers import UnseenWriters


@contextlib.contextmanager
def beside_an_extension():
    """Watch where an extension that is built against torch may write, so that each save gets a fingerprint at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnseenWriters, "may_write", lambda self: True)
        with noclobber.watch() as seen:
            yield seen


Around = Callable[[], AbstractContextManager[Any]]
MODES: dict[str, Around] = {
    "bare": contextlib.nullcontext,
    "install": noclobber.install,
    "versions": lambda: noclobber.watch(contents=False),
    "contents": noclobber.watch,
    "beside an extension": beside_an_extension,
    "preserve": noclobber.preserve,
}
SEEING = ("versions", "contents", "beside an extension")


@dataclass
class Came:
    """What came of a program: the tensors that it returned as they are, its error, and what was found."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    error: BaseException | None = None
    findings: list[Any] = field(default_factory=list)
    unseen: tuple[str, ...] = ()
    lost: tuple[Any, ...] = ()

    @property
    def bits(self) -> list[tuple[Any, ...]]:
        """The tensors, to be compared to the last bit."""
        return [
            (one.shape, one.dtype, one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
            for one in self.tensors
        ]

    @property
    def words(self) -> str:
        """The type and the first line of the error, but for where the tensors are."""
        if self.error is None:
            return ""
        kind = "RuntimeError" if isinstance(self.error, noclobber.ClobberError) else type(self.error).__name__
        return f"{kind}: {_anywhere(str(self.error).partition(chr(10))[0])}"

    @property
    def story(self) -> list[tuple[Any, ...]]:
        """The findings as a person reads them, but for where the tensors are and which was told first."""
        return sorted(
            (
                one.code,
                _anywhere(one.message),
                tuple((label.role, label.span.line if label.span else None, label.text) for label in one.labels),
            )
            for one in self.findings
        )


def _anywhere(text: str) -> str:
    for name, plain in (
        ("shamFloatType", "torch.FloatTensor"),
        ("torch.cuda.", "torch."),
        ("MPSFloatType", "torch.FloatTensor"),
    ):
        text = text.replace(name, plain)
    return text


def run(program: Callable[[], Any], device: str, mode: str = "bare") -> Came:
    """Run a program with its tensors on a device, from the same random numbers each time."""
    came = Came()
    torch.manual_seed(0)
    random.seed(0)
    seen: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device(device), MODES[mode]() as seen:
                came.tensors = [one.detach().clone() for one in program()]
        except Exception as error:
            came.error = error
        if mode in SEEING:
            came.findings = list(seen.report.findings)
            came.unseen, came.lost = seen.report.coverage.unseen, seen.report.coverage.lost
    return came
