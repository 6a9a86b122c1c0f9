"""JUnit XML: a test case for each finding, for systems that show the results of tests."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from noclobber.model.report import Report
from noclobber.render.judged import failed, unwatched
from noclobber.render.text import one_line, place, shown_path

_NOT_XML = re.compile("[^\t\n\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """One suite. Errors are failures, warnings and hints are cases with their text as output; nothing found, one case
    that passes. A program that failed without an error of noclobber's is an error, and one that was not watched is
    skipped."""
    from noclobber.render import terminal

    cases = []
    for finding in report.findings:
        primary = finding.primary
        where = place(primary.span) if primary is not None else "a place that is not known"
        title = quoteattr(f"{one_line(finding.code)} {one_line(finding.rule)} at {where}")
        file = quoteattr(shown_path(primary.span.path) if primary is not None else "")
        text = escape(terminal.window(finding, width=width))
        message = quoteattr(one_line(finding.message))
        if finding.severity == "error":
            inner = f"<failure type={quoteattr(one_line(finding.code))} message={message}>{text}</failure>"
        else:
            inner = f"<system-out>{text}</system-out>"
        cases.append(f"    <testcase classname={quoteattr('noclobber')} name={title} file={file}>{inner}</testcase>\n")
    status = 0 if report.count("error") else failed(report)
    if status:
        message = quoteattr(f"the program ended with exit status {status}")
        cases.append(_case("the program ends well", f'<error type="exit status" message={message}/>'))
    if why := unwatched(report):
        cases.append(_case("the program is watched", f"<skipped message={quoteattr(why)}/>"))
    if not cases:
        cases.append('    <testcase classname="noclobber" name="no in-place write breaks a gradient"/>\n')
    counts = f'failures="{report.count("error")}" errors="{bool(status):d}" skipped="{bool(why):d}"'
    head = f'<testsuite name="noclobber" tests="{len(cases)}" {counts}>'
    body = "".join(cases)
    if report.coverage.unseen:
        unseen = "".join(f"not watched: {one_line(one)}\n" for one in report.coverage.unseen)
        body += f"    <system-out>{escape(unseen)}</system-out>\n"
    text = f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n  {head}\n{body}  </testsuite>\n</testsuites>\n'
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _case(name: str, inner: str) -> str:
    return f'    <testcase classname="noclobber" name={quoteattr(name)}>{inner}</testcase>\n'
