"""Findings made from snippets of a source, and the sources that their candidates make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent
from typing import Any, Literal

from noclobber.fix.edits.source import Source
from noclobber.mend.cures import candidates
from noclobber.model.reports.finding import Cause, Finding, Label, Role
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Carried, Kind, Optimizer, Read, Refusal, Save, Tensor, Write
from noclobber.model.seen.hints import InPlaceCall
from noclobber.model.seen.silent import Drift, Event, GradientWrite, LostHook, Overwritten, Undeclared, Untracked
from noclobber.model.source import Site, Span, told_site

Unchecked = Literal["", "hooks", "packed", "ctx", "policy"]

PATH = "/nowhere/train.py"


def span(source: str, snippet: str, path: str = PATH) -> Span:
    """Where a snippet first stands in a source."""
    start = source.index(snippet)
    before, inside = source[:start], snippet.split("\n")
    line, column = before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1
    end = len(inside[-1]) + (column if len(inside) == 1 else 1)
    return Span(path, line, column, line + len(inside) - 1, end)


def finding(
    code: str,
    source: str,
    *,
    field: str = "",
    op: str = "aten::add_",
    kind: Kind = "tensor",
    name: str = "",
    cause: Cause | None = None,
    unchecked: Unchecked = "",
    carried: Sequence[Carried] = (),
    optimizers: Sequence[Optimizer] = (),
    **labels: str,
) -> Finding:
    """A finding of a code whose labels stand at snippets: `write="h += 1"`. The states that are `carried` are all."""
    roles: dict[str, Role] = {"save": "save", "write": "write", "freed": "read", "read": "read", "create": "create"}
    made = tuple(Label(roles[role], span(source, text), "", role == "write") for role, text in labels.items())
    sites = [told_site(span(source, labels["write"]))] if "write" in labels else []
    happened = clobber(field=field, op=op, kind=kind, name=name, unchecked=unchecked, sites=sites)
    event = event_of(code, happened)
    if carried and isinstance(event, (Clobber, Refusal)):
        site = told_site(span(source, labels["read"]))
        scoped = tuple(replace(one, scopes=(site,)) for one in carried)
        event = replace(event, carried=scoped, are_all_carried=True)
        event = replace(event, read=Read("", site)) if isinstance(event, Clobber) else replace(event, site=site)
    if optimizers and isinstance(event, Clobber):
        event = replace(event, optimizers=tuple(optimizers))
    return Finding(code, "a rule", "error", "", made, cause=cause).about(event)


def event_of(code: str, happened: Clobber) -> Event:
    """What a rule of this code is about."""
    read, tensor = happened.read, happened.save.tensor
    write = next(iter(happened.writes), Write(""))
    if code[2] == "3" or code == "NC104":
        return Refusal("", write.site, write.op, tensor)
    made: dict[str, Event] = {
        "NC901": InPlaceCall("", told_site(Span(PATH, 1, 1, 1, 1)), tensor, 0, 0, 0, saved=False, times=1),
        "NC205": Drift(None, happened.save, happened.writes, read),
        "NC206": GradientWrite(write, "hook", "", read),
        "NC207": Undeclared("", write, None),
        "NC208": Untracked(write, "no_grad", tensor, read),
        "NC209": Overwritten(tensor, write, read),
        "NC210": LostHook(tensor, None, write, read),
    }
    return made.get(code, happened)


def clobber(
    *,
    field: str = "",
    op: str = "aten::add_",
    kind: Kind = "tensor",
    name: str = "",
    unchecked: Unchecked = "",
    sites: Sequence[Site | None] = (None,),
) -> Clobber:
    """A save and its writes."""
    save = Save("", field, Tensor(name=name or None, kind=kind), 0, unchecked=unchecked)
    return Clobber(save, tuple(Write(op, site) for site in sites), Read(""), 0)


def mended(code: str, source: str, **about: Any) -> list[str]:
    """The source after each candidate, in their order."""
    source = dedent(source).strip("\n") + "\n"
    files = {PATH: source}
    found = candidates(finding(code, source, **about), lambda path: _read(files, path))
    return [Source(PATH, source, "utf-8").edited(one.edits).text for one in found]


def changes(code: str, source: str, **about: Any) -> list[str]:
    """The lines that each candidate puts in, one text each, without their indentation."""
    before = [one.strip() for one in dedent(source).split("\n")]
    found = []
    for text in mended(code, source, **about):
        left = list(before)
        new = []
        for line in (one.strip() for one in text.split("\n")):
            if line in left:
                left.remove(line)
            else:
                new.append(line)
        found.append("\n".join(new))
    return found


def _read(files: dict[str, str], path: str) -> str:
    if path not in files:
        raise FileNotFoundError(path)
    return files[path]
