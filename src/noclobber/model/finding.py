"""Finding: one problem and its places in the source. Renderers and `fix` read it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from noclobber.model.source import Site, Span, cell_of, source_line

Role = Literal["write", "save", "read", "create", "inside"]
Severity = Literal["error", "warning", "hint"]


@dataclass(frozen=True, slots=True)
class Label:
    """A span with a few words. `text` is lowercase, without a full stop; exactly one label of a finding is primary.

    `source` holds the text of the lines `span.line` to `span.end_line` as they were when the program ran.
    """

    role: Role
    span: Span
    text: str
    primary: bool = False
    source: tuple[str, ...] = ()


def label(role: Role, site: Site, text: str, *, primary: bool = False) -> Label:
    """Resolve a site to a label, keeping the source text that it points into."""
    span = site.span()
    lines = tuple(source_line(span.path, number) for number in range(span.line, span.end_line + 1))
    return Label(role, span, text, primary, lines)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace a span by a text."""

    span: Span
    replacement: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to do. `message` is an imperative without a full stop ("write out of place").

    `edits` are a change that is sound by construction: it can be applied as it stands. Most help is words alone.
    """

    message: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` "NC101", `rule` "stale-save"; `message` stands alone as a headline. `count` says how often it was seen.

    `processes` holds the ids of the processes that saw it, where the program ran in several.
    """

    code: str
    rule: str
    severity: Severity
    message: str
    labels: tuple[Label, ...]
    tensor: dict[str, Any] | None = None
    save: dict[str, Any] | None = None
    writes: tuple[dict[str, Any], ...] = ()
    count: int = 1
    notes: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = field(default=())
    processes: tuple[str, ...] = ()
    hint: dict[str, Any] | None = None
    """Of a hint: "bytes" that the peak falls by, "peak", and how the operator is asked for ("op", "argument", "how",
    "called"). All of it is empty or 0 where it does not apply."""

    def __repr__(self) -> str:
        """One line, for a console: all of it would be a page."""
        span = self.primary.span if self.primary else None
        where = f" at line {span.line} of {cell_of(span.path) or span.path}" if span is not None else ""
        return f"<{self.severity} {self.code} [{self.rule}]{where}: {self.message}>"

    @property
    def primary(self) -> Label | None:
        """The label that is shown if only one can be."""
        return next((one for one in self.labels if one.primary), self.labels[0] if self.labels else None)

    def identity(self) -> tuple[object, ...]:
        """Equal findings are one finding with a count: same rule, same write, same save."""
        return (self.code, *((one.role, one.span) for one in self.labels if one.role in ("write", "save", "create")))

    def with_field_of(self, other: Finding) -> Finding:
        """Return this finding, with the field of an equal finding that the same line saves."""
        known = self.save["fields"] if self.save else []
        if not self.save or not other.save or other.save["field"] in known:
            return self
        return replace(self, save={**self.save, "fields": [*known, other.save["field"]]})

    def repeated(self, times: int) -> Finding:
        """The same finding seen `times` times in all."""
        return replace(self, count=times)
