"""Finding: one problem and its places in the source. Renderers and `fix` read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import MOST_MODULES, Refusal, Save, Tensor, Write
from noclobber.model.seen.hints import InPlaceCall, Opportunity
from noclobber.model.seen.silent import Drift, Event, GradientWrite, SharedGradient, Undeclared
from noclobber.model.source import Site, Span, cell_of, source_line

Role = Literal["write", "save", "read", "create", "inside"]
Severity = Literal["error", "warning", "hint"]

PUT_BACK = (
    "the tensor has its saved values at backward, so the gradient would be right; "
    "PyTorch raises because the version changed"
)
"""How the note ends for a clobber that is `restored`."""


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
    return label_at(role, site.span(), text, primary=primary)


def label_at(role: Role, span: Span, text: str, *, primary: bool = False) -> Label:
    lines = tuple(source_line(span.path, number) for number in range(span.line, span.end_line + 1))
    return Label(role, span, text, primary, lines)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace a span by a text."""

    span: Span
    replacement: str


class Cure(Enum):
    """What a suggestion does, whatever its words."""

    OUT_OF_PLACE = "bind a new tensor"
    CLONE_FIRST = "copy before the write"
    CLONE_FOR_READER = "copy for the reader"
    CLONE_ARGUMENT = "copy for a function that writes"
    CLONE_VALUE = "copy what is read"
    FLAG = "switch a flag"
    MODE = "no_grad in place of inference_mode"
    NO_GRAD = "write under no_grad"
    LATER = "move behind the backward"
    OWN_ROWS = "memory for each sample"
    RUN_ONCE = "call a region without checkpoint"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to do. `message` is an imperative without a full stop ("write out of place").

    `edits` are a change that is sound by construction: it can be applied as it stands. Most help is words alone.
    """

    message: str
    edits: tuple[Edit, ...] = ()
    cure: Cure | None = None


class Cause(Enum):
    """Why something happened, beyond what its record says."""

    BUILT_ONCE = "built once"
    """The graph was built before the loop whose turns each go backward through it."""
    CARRIED = "carried"
    """A tensor of an earlier iteration carries its graph into this one."""
    SHARED = "shared"
    """Two backwards go through the same part of a graph."""
    HOOKED = "hooked"
    """The module whose output is written has a full backward hook."""
    MOVED = "moved"
    """A plain value that a checkpointed region reads has changed."""
    SELF_OVERLAP = "self-overlap"
    """Elements of the written tensor share memory."""
    READS_TARGET = "reads target"
    """The operation reads the memory that it writes."""
    UNMAPPED = "unmapped"
    """The written tensor exists once for all samples of a `vmap`."""


MOST_NAMES = 5
"""Tensors whose names are kept where one line writes several; the last one counts as "others"."""


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
    event: Event | None = None
    """What happened, as it was recorded. Whoever decides what to do about a finding reads this, and no words."""
    cause: Cause | None = None
    """Why it happened, where that is more than the event says."""
    fields: tuple[str, ...] = ()
    """What the line saves that was overwritten, of this finding and of equal ones."""
    names: tuple[str, ...] = ()
    """The names of the tensors that this finding and equal ones are about, at most `MOST_NAMES`; the last of so many
    stands for all others."""
    count: int = 1
    notes: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    processes: tuple[str, ...] = ()

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

    @property
    def save(self) -> Save | None:
        """The save that was spoilt; None where the finding is about none, or it is not known."""
        if isinstance(self.event, Clobber):
            return self.event.save
        return self.event.save if isinstance(self.event, Drift) and not self.event.raised else None

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that the finding is about."""
        if isinstance(self.event, (Clobber, Drift)):
            return self.event.save.tensor
        if isinstance(self.event, (GradientWrite, SharedGradient, Undeclared)):
            return self.event.write.tensor
        return self.event.tensor if self.event is not None else None

    @property
    def writes(self) -> tuple[Write, ...]:
        """The writes that are known, in the order of time."""
        event = self.event
        if isinstance(event, (Clobber, Drift)):
            return event.writes
        if isinstance(event, (Opportunity, InPlaceCall)):
            return (Write(event.op, event.write, tensor=event.tensor),)
        return () if event is None or isinstance(event, Refusal) else (event.write,)

    @property
    def _scenes(self) -> tuple[Write | Refusal, ...]:
        """What has `modules` and `calls`: the writes, or the refused one."""
        return (self.event,) if isinstance(self.event, Refusal) else self.writes

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which it was written: "net.blocks.0.act"; at most `MOST_MODULES`, the last for all others."""
        return tuple(dict.fromkeys(module for one in self._scenes for module in one.modules))[:MOST_MODULES]

    @property
    def calls(self) -> tuple[Site, ...]:
        """The calls from the program's first line to the one that wrote, as in `Write`: to the line that is shown, if
        they are known."""
        shown = self.primary.span if self.primary is not None else None
        known = [one for one in reversed(self._scenes) if one.calls]
        blamed = [one for one in known if one.site is not None and one.site.span() == shown]
        return next((one.calls for one in blamed + known), ())

    def about(self, event: Event) -> Finding:
        """Return the finding with what it is about."""
        found = replace(self, event=event)
        fields = (found.save.field,) if found.save is not None else ()
        names = (found.tensor.name,) if found.tensor is not None and found.tensor.name else ()
        return replace(found, fields=fields, names=names)

    def with_facts_of(self, other: Finding) -> Finding:
        """Return this finding, with what an equal one is about: another field that the line saves, another tensor. It
        counts for both.

        That the saved values were put back is said only if it holds for both.
        """
        found = self
        if any(note.endswith(PUT_BACK) and note not in other.notes for note in self.notes):
            found = replace(found, notes=tuple(note for note in self.notes if not note.endswith(PUT_BACK)))
        fields = tuple(dict.fromkeys((*self.fields, *other.fields)))
        names = tuple(dict.fromkeys((*self.names, *other.names)))[:MOST_NAMES] if self.names else ()
        return replace(found, fields=fields, names=names, count=self.count + other.count)

    @property
    def seen(self) -> str:
        """How often it was seen, in words: "seen 3 times at these lines, shown once"; empty for once."""
        if self.count < 2:
            return ""
        names = [f"`{name}`" for name in self.names]
        if len(names) < 2:
            return f"seen {self.count} times at these lines, shown once"
        last = names.pop() if len(names) < MOST_NAMES else "others"
        names = names[: MOST_NAMES - 1]
        return f"seen {self.count} times at these lines, for {', '.join(names)} and {last}; shown once"


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which they were first seen, equal ones as one that counts them."""
    found: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        key = one.identity()
        found[key] = found[key].with_facts_of(one) if key in found else one
    return tuple(found.values())
