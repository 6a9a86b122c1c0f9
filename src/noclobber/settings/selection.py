"""Which findings count: by code, by file, by a comment on the line, and by a baseline of what was there before."""

from __future__ import annotations

import io
import json
import os
import re
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from noclobber.model.reports.finding import Finding
from noclobber.model.reports.report import Report, Suppressed
from noclobber.model.units import counted
from noclobber.render.text import real, shown_path
from noclobber.rules import catalogue, rule_of
from noclobber.settings.meant import like
from noclobber.settings.reading import Unreadable, text_of

FORMAT = "noclobber-baseline/1"
MOST_TIMES = 10**9
"""How often one finding may stand in a baseline."""
_COMMENT = re.compile(r"#\s*noclobber:\s*ignore\[([^\]]*)\][ \t]*(.*)")
_MEANT = re.compile(r"#\s*noclobber:.*")
_FORM = "`# noclobber: ignore[NC208] reason`"
FAIL_ON = {"error": ("error",), "warning": ("error", "warning"), "never": ()}
"""What `--fail-on` takes, and the severities that then end a command with status 1."""
_KEYS = {"select": list, "ignore": list, "per-file-ignores": dict, "baseline": str, "fail-on": str}
_KINDS = {list: "a list", dict: "a table", str: "text"}
_KNOWN, _IGNORED, _NOT_SELECTED, _IN_FILE = "in the baseline", "ignored", "not selected", "ignored in their file"
"""The reasons of findings that no comment keeps out."""


class SelectionError(ValueError):
    """A setting, an option or a baseline that cannot be used. Its text is one line."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What counts: codes that begin with one of `select`, if there are any, and with none of `ignore`.

    `per_file` has the codes that do not count in the files of a pattern, which begins at `root`. `baseline` is the path
    of a file; empty for none. `fail_on` is a key of `FAIL_ON`.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: str = ""
    per_file: dict[str, tuple[str, ...]] = field(default_factory=dict)
    root: str = ""
    fail_on: str = "error"

    def has(self, code: str) -> bool:
        """Return True if findings of a code count."""
        return not self.why_not(code)

    def why_not(self, code: str) -> str:
        """Return why findings of a code do not count; empty if they do."""
        if code.startswith(self.ignore):
            return _IGNORED
        return _NOT_SELECTED if self.select and not code.startswith(self.select) else ""

    def has_in_file(self, finding: Finding) -> bool:
        """Return True if findings of a code count in the file of this one."""
        if finding.primary is None:
            return True
        path = real(finding.primary.span.path)
        return not any(
            finding.code.startswith(ignored) and _matches(path, pattern, self.root)
            for pattern, ignored in self.per_file.items()
        )

    def is_severe(self, finding: Finding) -> bool:
        """Return True if a finding makes a command end with status 1."""
        return finding.severity in FAIL_ON[self.fail_on]

    def fails(self, report: Report) -> bool:
        """Return True if a finding of a report does."""
        return any(map(self.is_severe, report.findings))


def _matches(path: str, pattern: str, root: str) -> bool:
    """Return True if a pattern is that of a file, by its name or by its path; `!` before it means all other files.

    As in ruff, `*` also stands for folders, and `**/` for none too.
    """
    wanted = pattern.removeprefix("!")
    whole = os.path.join(root, wanted)
    found = fnmatchcase(os.path.basename(path), wanted) or any(
        fnmatchcase(path, one) for one in (whole, whole.replace("**/", ""))
    )
    return found != pattern.startswith("!")


def codes(text: str | Sequence[str], where: str) -> tuple[str, ...]:
    """Return codes and beginnings of codes ("NC2"), from a list or from a text with commas. Raises SelectionError.

    Names of rules ("untracked-write") stand for their codes; small letters do too.
    """
    parts = (
        [part.strip() for part in text.strip().removesuffix(",").split(",")] if isinstance(text, str) else list(text)
    )
    found = []
    for part in parts:
        code = _beginning(part) if isinstance(part, str) else None
        if code is None:
            meant = like(str(part), (name for one in catalogue() for name in (one.code, one.name)))
            raise SelectionError(
                f"{where}: '{part}' is neither a code such as NC208 nor the beginning of one such as NC2{meant}"
            )
        found.append(code)
    return tuple(found)


def _beginning(name: str) -> str | None:
    """Return the code, or the beginning of codes, that a name stands for; None if there is no such rule."""
    rule = rule_of(name)
    code = rule.code if rule is not None else name.upper()
    return code if code.startswith("NC") and any(one.code.startswith(code) for one in catalogue()) else None


def from_project(folder: str) -> Selection:
    """Return what `[tool.noclobber]` in the nearest pyproject.toml says. Raises SelectionError."""
    here = Path(folder).absolute()
    path = next((one for above in (here, *here.parents) if (one := above / "pyproject.toml").is_file()), None)
    if path is None:
        return Selection()
    try:
        table = _table(path)
    except Unreadable as reason:
        raise SelectionError(f"cannot read `{shown_path(str(path))}`: {reason}") from None
    where = f"[tool.noclobber] of {shown_path(str(path))}"
    if not isinstance(table, dict) or (unknown := [key for key in table if key not in _KEYS]):
        what = f"`{unknown[0]}` is unknown" if isinstance(table, dict) else "it is not a table"
        raise SelectionError(f"{where}: {what}; there are {', '.join(_KEYS)}")
    for key, value in table.items():
        if not isinstance(value, _KEYS[key]):
            raise SelectionError(f"{where}: `{key}` is not {_KINDS[_KEYS[key]]}")
    per_file = table.get("per-file-ignores", {})
    if wrong := [pattern for pattern, ignored in per_file.items() if not isinstance(ignored, list)]:
        raise SelectionError(f"{where}: `per-file-ignores` of '{wrong[0]}' is not a list")
    if (fail_on := table.get("fail-on", "error")) not in FAIL_ON:
        raise SelectionError(f"{where}: `fail-on` is '{fail_on}'; there are {', '.join(FAIL_ON)}")
    return Selection(
        codes(table.get("select", []), where),
        codes(table.get("ignore", []), where),
        str(path.parent / table["baseline"]) if table.get("baseline") else "",
        {pattern: codes(ignored, where) for pattern, ignored in per_file.items()},
        os.path.realpath(path.parent),
        fail_on,
    )


def _table(path: Path) -> Any:
    """Return [tool.noclobber] of a file; empty if it has none. Raises Unreadable."""
    if not path.stat().st_size:
        return {}
    try:
        tool = tomllib.loads(text_of(str(path), "pyproject.toml")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"not TOML: {error}") from None
    except RecursionError:
        raise Unreadable("lists or tables in it are nested too deeply") from None
    except ValueError as error:  # Python reads no whole number of more than 4300 digits
        raise error if isinstance(error, Unreadable) else Unreadable("a number in it is too large") from None
    if not isinstance(tool, dict):
        raise Unreadable("`tool` is not a table")
    return tool.get("noclobber", {})


def selected(report: Report, selection: Selection, *, must_exist: bool = True) -> Report:
    """Return the report with what counts; all else is among `suppressed`.

    Raises SelectionError where the baseline cannot be read.
    """
    written = read_baseline(selection.baseline, must_exist=must_exist) if selection.baseline else Counter()
    known = Counter({key: count for key, count in written.items() if selection.has(key[0])})
    left, out = [], list(report.suppressed)
    for finding in report.findings:
        if why := selection.why_not(finding.code):
            out.append(Suppressed(finding, "external", why))
        elif (reason := _commented(finding)) is not None:
            out.append(Suppressed(finding, "inSource", reason))
        elif not selection.has_in_file(finding):
            out.append(Suppressed(finding, "external", _IN_FILE))
        elif selection.baseline and known[key := _key(finding, selection.baseline)] > 0:
            known[key] -= 1
            out.append(Suppressed(finding, "external", _KNOWN))
        else:
            left.append(finding)
    notes = report.coverage.notes
    if gone := sum(known.values()):
        what = f"{counted(gone, 'finding')} of the baseline did not show up"
        notes = (*notes, f"{what}; `--update-baseline` takes {'them' if gone != 1 else 'it'} out")
    coverage = replace(report.coverage, notes=notes)
    return replace(report, findings=tuple(left), suppressed=tuple(out), coverage=coverage)


def _commented(finding: Finding) -> str | None:
    """Return the reason of a comment that keeps a finding out; empty if it gives none, None if there is no comment."""
    lines = finding.primary.source if finding.primary is not None else ()
    comments: list[str] = []
    try:
        comments += (comment for _, comment in _comments("\n".join(lines).lstrip()))
    except (tokenize.TokenError, SyntaxError):  # the lines begin or end inside a string
        comments += lines
    for found in (found for comment in comments for found in _COMMENT.finditer(comment)):
        if any(finding.code.startswith(one) for name in _listed(found) if (one := _beginning(name))):
            return found[2].strip()
    return None


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a text that may be for noclobber, with their lines. Raises TokenError and SyntaxError."""
    if "noclobber:" in text:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def unused(report: Report, selection: Selection, paths: Iterable[str]) -> tuple[str, ...]:
    """Return in words the comments in some files that kept nothing out in this run, though their codes count.

    Comments that look like one, and cannot be understood, are among them.
    """
    used = defaultdict[tuple[str, int], set[str]](set)
    for one in report.suppressed:
        if one.kind == "inSource" and (primary := one.finding.primary) is not None:
            for line in range(primary.span.line, primary.span.end_line + 1):
                used[real(primary.span.path), line].add(one.finding.code)
    found = []
    for path in sorted(set(paths)):
        at = real(path)
        for line, comment in _comments_of(path):
            there = f"{shown_path(path)}:{line}"
            understood = _COMMENT.match(comment)
            if understood is None:
                found.append(f"`{comment}` at {there} is not understood; write {_FORM}")
            for name in _listed(understood) if understood is not None else ():
                code = _beginning(name)
                if code is None:
                    found.append(f"`{comment}` at {there}: there is no rule {name or '``'}")
                    continue
                meant = {one.code for one in catalogue() if one.code.startswith(code) and selection.has(one.code)}
                if meant and not meant & used[at, line]:
                    found.append(f"`noclobber: ignore[{name}]` at {there} kept nothing out in this run")
    return tuple(found)


def _listed(comment: re.Match[str]) -> list[str]:
    return [one.strip() for one in comment[1].split(",")]


def _comments_of(path: str) -> Iterator[tuple[int, str]]:
    with suppress(OSError, SyntaxError, ValueError, tokenize.TokenError), tokenize.open(path) as file:
        for line, comment in _comments(file.read()):
            if found := _MEANT.search(comment):
                yield line, found[0]


# -- the baseline ----------------------------------------------------------------------------------------------------


def baseline_of(report: Report, selection: Selection) -> tuple[str, str]:
    """Return the text of a baseline of all that counts now, or that the old baseline kept out; and what it holds.

    Entries of the old baseline that are not selected stay. Raises SelectionError where it cannot be read.
    """
    path = selection.baseline
    findings = [*report.findings, *(one.finding for one in report.suppressed if one.reason == _KNOWN)]
    keys = Counter(_key(one, path) for one in findings)
    old = read_baseline(path, must_exist=False)
    keys.update({key: count for key, count in old.items() if not selection.has(key[0])})
    entries = [
        {"code": code, "path": where, "source": source, "count": count}
        for (code, where, source), count in sorted(keys.items())
    ]
    words = f"{counted(keys.total(), 'finding')}: {(keys - old).total()} new, {(old - keys).total()} taken out"
    return json.dumps({"format": FORMAT, "findings": entries}, indent=2, ensure_ascii=False) + "\n", words


def _key(finding: Finding, baseline: str) -> tuple[str, str, str]:
    """What stays the same if lines are added above: the code, the file from the folder of the baseline, the text."""
    primary = finding.primary
    if primary is None:
        return finding.code, "", finding.message
    folder = os.path.dirname(os.path.realpath(baseline))
    path = primary.span.path
    if os.path.isabs(path) or os.path.exists(path):
        whole = real(path)
        path = os.path.relpath(whole, folder) if whole.startswith(folder + os.sep) else whole
    return finding.code, PurePath(path).as_posix(), "\n".join(line.strip() for line in primary.source)


def read_baseline(path: str, *, must_exist: bool) -> Counter[tuple[str, str, str]]:
    """Return how often each finding stands in a baseline; none where it is missing and need not exist. Raises
    SelectionError where it cannot be read."""
    if not os.path.exists(path):
        if must_exist:
            raise SelectionError(
                f"there is no baseline `{shown_path(path)}`; `noclobber run --update-baseline` makes it"
            )
        return Counter()
    try:
        document: Any = json.loads(text_of(path, "baseline"))
        if document["format"] != FORMAT:
            raise ValueError(document["format"])
        return Counter({_entry(one): one["count"] for one in document["findings"]})
    except Unreadable as reason:
        raise SelectionError(f"cannot read the baseline `{shown_path(path)}`: {reason}") from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise SelectionError(f"`{shown_path(path)}` is not a baseline that `--update-baseline` has written") from None


def _entry(one: dict[str, Any]) -> tuple[str, str, str]:
    """Return what an entry of a baseline is known by. Raises KeyError, TypeError and ValueError if it is damaged."""
    key, count = (one["code"], one["path"], one["source"]), one["count"]
    if not all(isinstance(part, str) for part in key) or type(count) is not int or not 0 < count <= MOST_TIMES:
        raise ValueError(key)
    return key
