"""SARIF 2.1.0, the form that code scanning takes (OASIS, sarif-v2.1.0, 2020)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from noclobber.model.finding import Finding, Label, Severity
from noclobber.model.report import Report
from noclobber.model.source import Span
from noclobber.render.text import one_line

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "hint": "note"}


def sarif(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """One run with a result for each finding. Paths are relative to the current folder where they lie below it."""
    found = [*((one, None) for one in report.findings), *((one.finding, one) for one in report.suppressed)]
    rules = {one.code: one for one, _ in found}
    results = []
    for finding, suppressed in found:
        result = _result(finding, list(rules))
        if suppressed is not None:
            result["suppressions"] = [{"kind": suppressed.kind, "justification": suppressed.reason}]
        results.append(result)
    driver = {
        "name": "noclobber",
        "rules": [
            {
                "id": code,
                "name": one.rule,
                "shortDescription": {"text": f"{code} {one.rule}"},
                "help": {"text": f"noclobber explain {code}"},
            }
            for code, one in rules.items()
        ],
    }
    unseen = [{"level": "note", "message": {"text": f"not watched: {one_line(one)}"}} for one in report.coverage.unseen]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unseen}],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    primary = finding.primary
    text = "\n".join(_sentences(finding))
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVEL.get(finding.severity, "error"),
        "message": {"text": text},
        "partialFingerprints": {"noclobber/1": _fingerprint(finding)},
        "occurrenceCount": max(finding.count, 1),
    }
    if primary is not None:
        result["locations"] = [{"physicalLocation": _physical(primary.span)}]
        others = [one for one in finding.labels if one is not primary]
        result["relatedLocations"] = [_related(number, one) for number, one in enumerate(others, 1)]
    return result


def _sentences(finding: Finding) -> Iterable[str]:
    yield one_line(finding.message)
    yield from (f"note: {one_line(note)}" for note in finding.notes)
    yield from (f"help: {one_line(one.message)}" for one in finding.suggestions)


def _related(number: int, label: Label) -> dict[str, Any]:
    return {"id": number, "message": {"text": one_line(label.text)}, "physicalLocation": _physical(label.span)}


def _physical(span: Span) -> dict[str, Any]:
    region = {
        "startLine": max(span.line, 1),
        "startColumn": max(span.column, 1),
        "endLine": max(span.end_line, span.line, 1),
        "endColumn": max(span.end_column, 1),
    }
    return {"artifactLocation": {"uri": _uri(span.path)}, "region": region}


def _uri(path: str) -> str:
    here = os.getcwd()
    if os.path.isabs(path):
        if path.startswith(here + os.sep):
            path = path[len(here) + 1 :]
        else:
            return "file://" + quote(PurePath(path).as_posix(), errors="replace")
    return quote(PurePath(path).as_posix(), errors="replace")


def _fingerprint(finding: Finding) -> str:
    """The same as long as the code, the file and the text of the line are."""
    primary = finding.primary
    where = (PurePath(primary.span.path).name, *(line.strip() for line in primary.source)) if primary else ()
    return hashlib.sha256("\0".join((finding.code, *where)).encode("utf-8", "replace")).hexdigest()[:32]
