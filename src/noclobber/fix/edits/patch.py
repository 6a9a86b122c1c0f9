"""A patch in the making: the files that it touches, as they were and as they are now."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from noclobber.fix.edits.source import Misfit, Source, changed_lines
from noclobber.model.finding import Edit, Finding
from noclobber.syntax.compiling import compiled


@dataclass(frozen=True, slots=True)
class Patch:
    """`before` and `after` by real path; the same paths in both."""

    before: Mapping[str, Source] = field(default_factory=dict)
    after: Mapping[str, Source] = field(default_factory=dict)

    def read(self, path: str) -> str:
        """A file's text as it is under this patch, with plain line ends. Raises OSError and Misfit."""
        return self._source(path).plain

    def _source(self, path: str) -> Source:
        real = os.path.realpath(path)
        return self.after[real] if real in self.after else Source.read(real)

    def edited(self, edits: Iterable[Edit]) -> Patch:
        """Return this patch with more edits of the patched files. Raises Misfit if they do not fit or do nothing."""
        before, after = dict(self.before), dict(self.after)
        by_path: dict[str, list[Edit]] = {}
        for edit in edits:
            by_path.setdefault(os.path.realpath(edit.span.path), []).append(edit)
        for path, some in by_path.items():
            source = self._source(path)
            before.setdefault(path, source)
            after[path] = source.edited(some)
            try:
                compiled(after[path].plain, path)
            except (SyntaxError, ValueError) as error:
                raise Misfit(f"the patched file is not valid Python: {error}") from None
        if all(after[path].text == self._source(path).text for path in by_path):
            raise Misfit("the edits change nothing")
        return Patch(before, after)

    def unpatched(self, finding: Finding) -> Finding:
        """Return a finding of the patched program with its line number in the unpatched file."""
        primary = finding.primary
        path = os.path.realpath(primary.span.path) if primary is not None else ""
        if primary is None or path not in self.after:
            return finding
        span = primary.span
        line = line_before(self.before[path].plain, self.after[path].plain, span.line)
        if line is None:
            return finding
        there = replace(primary, span=replace(span, line=line, end_line=line + span.end_line - span.line))
        return replace(finding, labels=tuple(there if one is primary else one for one in finding.labels))

    @property
    def served(self) -> dict[str, bytes]:
        """The bytes of the patched files. Raises Misfit where an encoding has none."""
        return {path: source.data for path, source in self.after.items()}

    @property
    def lines(self) -> int:
        """How many lines it touches."""
        return sum(changed_lines(self.before[path], self.after[path]) for path in self.after)

    def key(self) -> tuple[tuple[str, str], ...]:
        """Equal for patches that do the same."""
        return tuple(sorted((path, source.text) for path, source in self.after.items()))


def line_before(old: str, new: str, line: int) -> int | None:
    """Return the line of `old` that is unchanged as this line of `new`; None if there is none."""
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    for tag, i1, _, j1, j2 in matcher.get_opcodes():
        if j1 < line <= j2:
            return i1 + line - j1 if tag == "equal" else None
    return None
