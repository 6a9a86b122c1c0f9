"""A process's file in the folder of a run: a line for each thing that it learns, written at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import finding_out

FORMAT = "noclobber-process/1"
SUFFIX = ".noclobber"
FINDING = b'{"finding": "'
"""How the line of a finding begins. Then come two keys, so that equal findings of many processes are parsed once."""


class Journal:
    """Writes one process's file.

    It is opened for each line: a program may close every file that it does not know, and give its number to another.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.failed = ""
        """Why a line could not be written; empty if all were."""
        self._path = os.path.join(folder, name + SUFFIX)
        self._known: set[str] = set()
        self._counts: dict[str, list[int]] = {}
        """How often each finding was seen, and the last such number that was written."""
        self._calls_next = 1
        """The number of backward calls that is written next."""

    def write(self, **line: Any) -> None:
        """Append a line. A folder that is gone or full loses it, which `failed` says: the program must not notice."""
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                while data:
                    data = data[os.write(file, data) :]
            finally:
                os.close(file)
        except OSError as error:
            self.failed = error.strerror or str(error)

    def found(self, finding: Finding, count: int) -> None:
        """Write a finding the first time, and how often it was seen at 2, 4, 8 ... times."""
        same = _key(finding.identity())
        key = _key((same, finding.fields))
        numbers = self._counts.setdefault(same, [count, count])
        numbers[0] = count
        if key not in self._known:
            self._known.add(key)
            self.write(finding=key, same=same, count=count, shown=finding_out(finding))
        elif count >= 2 * numbers[1]:
            self._count(same)

    def checked(self, backwards: int, raised: int) -> None:
        """Write how many backward calls were checked, at 1, 2, 4, 8 ... of them."""
        if backwards + raised >= self._calls_next:
            self._calls_next = 2 * (backwards + raised)
            self.write(backwards=backwards, raised=raised)

    def counted(self) -> None:
        """Write the exact counts that are not written yet."""
        for same, (now, written) in list(self._counts.items()):
            if now != written:
                self._count(same)

    def _count(self, same: str) -> None:
        numbers = self._counts[same]
        numbers[1] = numbers[0]
        self.write(again=same, count=numbers[0])


def _key(parts: Iterable[object]) -> str:
    return hashlib.sha256(repr(tuple(parts)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
