"""JUnit XML: a test case for each finding, for systems that show the results of tests."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from noclobber.model.reports.report import Report
from noclobber.render.formats import terminal
from noclobber.render.judged import beside, failure, nothing_found, unchecked, unwatched
from noclobber.render.text import from_root, one_line, place, repository, visible

RIGHT = "no in-place write breaks a gradient"
"""The case of a report without findings."""
_NOT_XML = re.compile("[^\t\n\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """One suite. Errors are failures, warnings and hints are cases with their text as output; nothing found, one case
    that passes and says what was checked. A program that failed without an error of noclobber's is an error, and one
    that was not watched, or ran no backward, is skipped."""
    cases, root = [], repository()
    for finding in report.findings:
        primary = finding.primary
        where = place(primary.span) if primary is not None else "a place that is not known"
        title = f"{one_line(finding.code)} {one_line(finding.rule)} at {where}"
        file = visible(from_root(primary.span.path, root)) if primary is not None else ""
        text = escape(terminal.window(finding))
        message = quoteattr(one_line(finding.message))
        if finding.severity == "error":
            inner = f"<failure type={quoteattr(one_line(finding.code))} message={message}>{text}</failure>"
        else:
            inner = f"<system-out>{text}</system-out>"
        cases.append(_case(title, inner, file=file))
    ended = "" if report.count("error") else failure(report)
    why = unwatched(report) or unchecked(report)
    said = "" if report.findings or why else f"<system-out>{escape(nothing_found(report))}</system-out>"
    if ended:
        error = f'<error type="exit status" message={quoteattr(ended)}/>'
        cases.append(_case("the program ends well", error + said))
    if why:
        name = "the program is watched" if unwatched(report) else RIGHT
        cases.append(_case(name, f"<skipped message={quoteattr(why)}/>"))
    elif said and not ended:
        cases.append(_case(RIGHT, said))
    counts = f'failures="{report.count("error")}" errors="{bool(ended):d}" skipped="{bool(why):d}"'
    head = f'<testsuite name="noclobber" tests="{len(cases)}" {counts}>'
    body = "".join(cases)
    if unseen := "".join(f"{kind}: {text}\n" for kind, text in beside(report) if kind == "not watched"):
        body += f"    <system-out>{escape(unseen)}</system-out>\n"
    text = f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n  {head}\n{body}  </testsuite>\n</testsuites>\n'
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _case(name: str, inner: str, **more: str) -> str:
    about = "".join(f" {key}={quoteattr(value)}" for key, value in {"name": name, **more}.items())
    return f'    <testcase classname="noclobber"{about}>{inner}</testcase>\n'
