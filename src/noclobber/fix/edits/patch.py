"""A patch in the making: the files that it touches, as they were and as they are now."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from noclobber.fix.edits.source import Misfit, Source
from noclobber.model.reports.finding import Edit, Finding, Label
from noclobber.model.source import Owner, Span, owner_of
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

    def undoing(self, before: Patch, after: Patch) -> list[Edit]:
        """Return the edits that take from this patch what led from `before` to `after`, on the way to it. Raises Misfit
        where a later change touches the same lines."""
        edits: list[Edit] = []
        for path in after.after:
            old, then, now = (one.read(path).split("\n") for one in (before, after, self))
            kept = difflib.SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
            for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, then, autojunk=False).get_opcodes():
                if tag == "equal":
                    continue
                moved = next((one.b - one.a for one in kept if one.a <= j1 and j2 <= one.a + one.size), None)
                if moved is None:
                    raise Misfit("a later change is to the same lines")
                text = "".join(f"{line}\n" for line in old[i1:i2])
                edits.append(Edit(Span(path, j1 + moved + 1, 1, j2 + moved + 1, 1), text))
        return edits

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

    def key(self) -> tuple[tuple[str, str], ...]:
        """Equal for patches that do the same; empty where they do nothing."""
        files = ((path, source.text) for path, source in self.after.items())
        return tuple(sorted(one for one in files if one[1] != self.before[one[0]].text))


def fitted(finding: Finding) -> Finding:
    """Return a finding whose edits can be applied to the files literally; words alone where a file is not as it was
    when the program ran, or is a library's. Code that came from no file keeps its edits."""
    is_current = all(map(_is_current, finding.labels))

    def fitting(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        if all(one.span.path.startswith("<") for one in edits):
            return edits
        if not is_current or not all(is_own(one.span.path) for one in edits):
            return ()
        with suppress(OSError, Misfit):
            files = Patch().edited(edits).before.items()
            by_file = [
                (source, [one for one in edits if os.path.realpath(one.span.path) == path]) for path, source in files
            ]
            return tuple(edit for source, some in by_file for edit in source.exact(some))
        return ()

    return replace(finding, suggestions=tuple(replace(one, edits=fitting(one.edits)) for one in finding.suggestions))


def is_fixable(finding: Finding) -> bool:
    """Return True if the line to blame is in a file of the program's own, which is as it was when the program ran."""
    label = finding.primary
    return label is not None and is_own(label.span.path) and bool(label.source) and _is_current(label)


def is_own(path: str) -> bool:
    """Return True for a file of the program's own, also behind links."""
    return owner_of(path) is Owner.USER and owner_of(os.path.realpath(path)) is Owner.USER


def _is_current(label: Label) -> bool:
    """Return True if the file has the lines that a label points into. Code that came from no file cannot change."""
    span = label.span
    if span.path.startswith("<") or not any(label.source):
        return True
    try:
        lines = Source.read(span.path).plain.split("\n")
    except (OSError, ValueError):
        return False
    return tuple(lines[span.line - 1 : span.end_line]) == label.source


def line_before(old: str, new: str, line: int) -> int | None:
    """Return the line of `old` that is unchanged as this line of `new`; None if there is none."""
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    for tag, i1, _, j1, j2 in matcher.get_opcodes():
        if j1 < line <= j2:
            return i1 + line - j1 if tag == "equal" else None
    return None
