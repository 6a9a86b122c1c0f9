"""SARIF 2.1.0, the form that code scanning takes (OASIS, sarif-v2.1.0, 2020)."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from noclobber.model.reports.finding import Finding, Severity
from noclobber.model.reports.page import Page
from noclobber.model.reports.report import Report
from noclobber.model.source import Span
from noclobber.model.version import installed
from noclobber.render.judged import beside, failed, failure, nothing_found, unchecked, unwatched
from noclobber.render.text import bytes_of, from_root, one_line, repository

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "hint": "note"}


def sarif(report: Report) -> str:
    """One run with a result for each finding that counts: code scanning would open an alert for a suppressed one too.

    Paths are relative to the root of the git repository around the current folder, or else to this folder.
    """
    root = repository()
    rules = {one.code: one for one in report.findings}
    equal: Counter[tuple[str, ...]] = Counter()
    results = []
    for finding in report.findings:
        key = _key(finding, root)
        equal[key] += 1
        results.append(_result(finding, list(rules), root, _fingerprint(*key, str(equal[key]))))
    driver: dict[str, Any] = {"name": "noclobber"}
    if version := installed("noclobber"):
        driver["version"] = version
    pages = {one.code: one for one in report.pages}
    driver["rules"] = [_rule(one, pages.get(one.code)) for one in rules.values()]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [_invocation(report)],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _rule(finding: Finding, page: Page | None) -> dict[str, Any]:
    """What the rule of a finding is about. A report of another release may have a rule that has no page here."""
    if page is None:
        return {"id": finding.code, "name": finding.rule, "shortDescription": {"text": one_line(finding.rule)}}
    return {
        "id": finding.code,
        "name": finding.rule,
        "shortDescription": {"text": page.headline},
        "fullDescription": {"text": page.summary},
        "help": {"text": page.text, "markdown": page.markdown},
        "defaultConfiguration": {"level": _LEVEL[page.severity]},
    }


def _invocation(report: Report) -> dict[str, Any]:
    """How the program ended, what was checked and what not, and what else a reader must know."""
    notes = [("note", text if kind == "note" else f"{kind}: {text}") for kind, text in beside(report)]
    if why := unwatched(report) or unchecked(report):
        notes.insert(0, ("warning", why))
    elif not report.findings:
        notes.insert(0, ("note", nothing_found(report)))
    ended = failure(report)
    invocation: dict[str, Any] = {"executionSuccessful": not ended}
    if status := failed(report):
        invocation["exitCode"] = status
    if ended:
        notes.insert(0, ("error", ended))
    invocation["toolExecutionNotifications"] = [{"level": level, "message": {"text": text}} for level, text in notes]
    return invocation


def _result(finding: Finding, codes: list[str], root: str, fingerprint: str) -> dict[str, Any]:
    primary = finding.primary
    text = "\n".join(_sentences(finding))
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVEL.get(finding.severity, "error"),
        "message": {"text": text},
        "partialFingerprints": {"noclobber/1": fingerprint},
        "occurrenceCount": max(finding.count, 1),
    }
    if primary is not None:
        result["locations"] = [{"physicalLocation": _physical(primary.span, root)}]
        others = [one for one in finding.labels if one is not primary]
        result["relatedLocations"] = [
            {"id": number, "message": {"text": one_line(one.text)}, "physicalLocation": _physical(one.span, root)}
            for number, one in enumerate(others, 1)
        ]
    return result


def _sentences(finding: Finding) -> Iterable[str]:
    yield one_line(finding.message)
    yield from (f"note: {one_line(note)}" for note in finding.notes)
    yield from (f"help: {one_line(one.message)}" for one in finding.suggestions)


def _physical(span: Span, root: str) -> dict[str, Any]:
    region = {
        "startLine": max(span.line, 1),
        "startColumn": max(span.column, 1),
        "endLine": max(span.end_line, span.line, 1),
        "endColumn": max(span.end_column, 1),
    }
    return {"artifactLocation": {"uri": _uri(span.path, root)}, "region": region}


def _uri(path: str, root: str) -> str:
    where = from_root(path, root)
    windows = PureWindowsPath(where)
    if windows.is_absolute() and not where.startswith("/"):  # in a report that was made on Windows
        whole = windows.as_posix()
        return ("file:" if whole.startswith("//") else "file:///") + quote(bytes_of(whole), safe="/:")
    return ("file://" if os.path.isabs(where) else "") + quote(bytes_of(PurePath(where).as_posix()))


def _key(finding: Finding, root: str) -> tuple[str, ...]:
    """What stays the same if other lines move: the code, the file, the text of the line."""
    primary = finding.primary
    if primary is None:
        return (finding.code,)
    return (finding.code, from_root(primary.span.path, root), *(line.strip() for line in primary.source))


def _fingerprint(*key: str) -> str:
    return hashlib.sha256("\0".join(key).encode("utf-8", "replace")).hexdigest()[:32]
