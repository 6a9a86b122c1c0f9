"""Report: findings, what was and was not watched, and the program; JSON in and out, versioned."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from noclobber.model.plain import WrongSpan, WrongType, built, named, some_of, span_out
from noclobber.model.reports.finding import Finding
from noclobber.model.reports.ledger import Ledger, ledger_out
from noclobber.model.reports.page import Page
from noclobber.model.reports.process import Process
from noclobber.model.seen.events import Tensor, Write
from noclobber.model.seen.hints import Hint, InPlaceCall
from noclobber.model.source import Site

FORMAT = "noclobber-report/1"
Made = TypeVar("Made")
MOST_DIGITS = 300
"""Digits of a number. Python computes with more, but no float holds them, and it prints no more than 4300."""


class ReportError(ValueError):
    """A text that is not a report of this version."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A part of noclobber that this release of PyTorch does not support, or that failed while the program ran.

    `internal`: noclobber itself is at fault, and `trace` is its traceback, where NOCLOBBER_DEBUG is set.
    """

    way: str
    why: str
    internal: bool = False
    trace: str = ""


WITHOUT_BYTES = "the bytes of saves that have none to read (meta, subclasses)"
COMPILED = "the inside of compiled regions"


def unseen_in_words(what: str, count: int) -> str:
    """ "the inside of compiled regions (37 compiled frames)", "writes to tensors without a storage (3 times)"."""
    return f"{what} ({count} {'compiled frames' if what == COMPILED else 'times'})" if count > 1 else what


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the run could see. `unseen` lists in words what it could not see, and so never calls clean. `notes` say what
    else a reader must know."""

    writes: str = "dispatch key"
    saves: bool = True
    contents: bool = False
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    backwards: int = 0
    """The backward calls that were checked to their end. Calls inside of another one are parts of it."""
    raised: int = 0
    """The backward calls that were checked until they raised an error."""
    fake: bool = False
    """Whether tensors had no values (`--fake`)."""

    def __post_init__(self) -> None:
        if min(self.backwards, self.raised) < 0:
            raise ValueError("a number of backward calls is below 0")

    @property
    def not_watched(self) -> tuple[str, ...]:
        """All that was not seen, in words: also where noclobber itself failed."""
        lost = (f"{one.way}: {f'noclobber failed there ({one.why})' if one.internal else one.why}" for one in self.lost)
        return (*self.unseen, *lost)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that does not count, by a comment in the source, a baseline or what was selected, and the reason.

    The kinds are named as in SARIF.
    """

    finding: Finding
    kind: Literal["inSource", "external"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a renderer needs. `program` holds "argv", "status", "torch" and "python"; `processes`, the first one
    and its children."""

    findings: tuple[Finding, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    program: dict[str, Any] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()
    ledger: Ledger | None = None
    """Who kept the most bytes for backward in the first process, if that was asked for."""
    suppressed: tuple[Suppressed, ...] = ()
    pages: tuple[Page, ...] = ()
    """The pages of rules, for a format that brings them along. They are no part of the JSON."""

    def count(self, severity: str) -> int:
        """How many different findings have a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_json(self) -> str:
        """The report as a JSON document, ending in a newline."""
        document = {
            "format": FORMAT,
            "findings": [finding_out(finding) for finding in self.findings],
            "coverage": coverage_out(self.coverage),
            "program": self.program,
            "processes": [asdict(process) for process in self.processes],
        }
        if self.suppressed:
            document["suppressed"] = [
                {"kind": one.kind, "reason": one.reason, "finding": finding_out(one.finding)} for one in self.suppressed
            ]
        if self.ledger is not None:
            document["ledger"] = ledger_out(self.ledger)
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Report:
        """Read a report back. Raises ReportError where the text is not one, or of another version."""
        document = json_in(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            found = document.get("format") if isinstance(document, dict) else None
            held = f"of format `{found}`" if isinstance(found, str) else "something else"
            raise ReportError(f"expected a document of format `{FORMAT}`, but this is {held}")
        report = checked(Report, {**document, "pages": []})
        if missing := [name for name in ("findings", "coverage", "program") if name not in document]:
            raise ReportError(f"damaged report: `{missing[0]}` is missing somewhere")
        return report


def json_in(text: str | bytes) -> Any:
    """Return what a JSON text holds. Raises ReportError, also where a number is none that JSON has."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not JSON: {error}") from None
    except RecursionError:
        raise ReportError("not a report: lists or objects in it are nested too deeply") from None


def _no_number(name: str) -> float:
    raise ReportError(f"not JSON: `{name}` is not a number")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ReportError("not a report: a number in it is too large")
    return number


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ReportError("not a report: a number in it is too large")
    return int(digits)


def checked(kind: type[Made], data: Any) -> Made:
    """Return the record that plain data hold. Raises ReportError."""
    try:
        made: Made = built(kind, data)
    except KeyError as error:
        raise ReportError(f"damaged report: `{error.args[0]}` is missing somewhere") from None
    except (WrongType, WrongSpan) as error:
        raise ReportError(f"damaged report: {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise ReportError("damaged report: a part of it is not as noclobber builds it") from None
    return made


def coverage_out(coverage: Coverage) -> dict[str, Any]:
    return {
        **some_of(coverage, "writes", "saves", "contents", "unseen", "notes"),
        "lost": list(map(lost_out, coverage.lost)),
        **some_of(coverage, "backwards", "raised"),
        **({"fake": True} if coverage.fake else {}),
    }


def lost_out(lost: Lost) -> dict[str, Any]:
    """Return as plain data what was lost, without its traceback."""
    return some_of(lost, "way", "why", "internal")


def finding_out(finding: Finding) -> dict[str, Any]:
    return {
        **some_of(finding, "code", "rule", "severity", "message"),
        "labels": [
            {**some_of(one, "role", "primary"), **span_out(one.span), "text": one.text, "source": list(one.source)}
            for one in finding.labels
        ],
        "tensor": _tensor_out(finding),
        "save": _save_out(finding),
        "writes": [_write_out(one) for one in finding.writes],
        "cause": None if finding.cause is None else finding.cause.value,
        "event": named(finding.event),
        "fields": list(finding.fields),
        "names": list(finding.names),
        "modules": list(finding.modules),
        "calls": [_place_out(one) for one in finding.calls],
        "count": finding.count,
        "processes": list(finding.processes),
        "notes": list(finding.notes),
        "suggestions": [
            {
                "message": one.message,
                "applicability": "sound" if one.edits else "words",
                "cure": None if one.cure is None else one.cure.value,
                "edits": [{**span_out(edit.span), "replacement": edit.replacement} for edit in one.edits],
            }
            for one in finding.suggestions
        ],
        **({"hint": _hint_out(finding.event)} if isinstance(finding.event, Hint) else {}),
    }


def _tensor_out(finding: Finding) -> dict[str, Any] | None:
    tensor = finding.tensor
    if tensor is None or tensor == Tensor():
        return None
    about = some_of(tensor, "name", "kind", "dtype", "device")
    return {**about, "shape": list(tensor.shape), "bytes": tensor.nbytes}


def _save_out(finding: Finding) -> dict[str, Any] | None:
    if finding.save is None:
        return None
    return {**some_of(finding.save, "node", "field", "version", "unchecked"), "fields": list(finding.fields)}


def _write_out(write: Write) -> dict[str, Any]:
    return {
        **some_of(write, "op", "via", "version_before", "version_after", "overlaps", "untracked"),
        "optimizer": write.step.optimizer if write.step else None,
        **_place_out(write.site),
    }


def _place_out(site: Site | None) -> dict[str, Any]:
    return some_of(site.span(), "path", "line") if site is not None else {"path": None, "line": None}


def _hint_out(hint: Hint) -> dict[str, Any]:
    """`bytes` is how far the peak would fall, or by how much it is lower than out of place."""
    if isinstance(hint, InPlaceCall):
        return {"op": hint.op, "bytes": 0 if hint.copied else hint.rise}
    return some_of(hint, "op", "bytes", "peak", "alone")
