"""Pages to look things up, made from the code: the options of each command, and the names that a program uses."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import noclobber
from noclobber.blocks.installing import Installed
from noclobber.cli import command_line
from noclobber.model.reports.finding import Edit, Finding, Label, Suggestion
from noclobber.model.reports.kept import Kept
from noclobber.model.reports.ledger import Entry, Ledger
from noclobber.model.reports.probe import Operand, Probe
from noclobber.model.reports.process import Process
from noclobber.model.reports.report import Coverage, Report
from noclobber.model.source import Span

PUBLIC = [getattr(noclobber, name) for name in noclobber.__all__]
ERRORS = [one for one in PUBLIC if isinstance(one, type) and issubclass(one, Exception)]
CALLS = [*(one for one in PUBLIC if one not in ERRORS), Installed]
RECORDS = (
    Report, Finding, Label, Span, Suggestion, Edit, Coverage, Process, Ledger, Entry, Kept, Probe, Operand,
)  # fmt: skip


def options_page() -> str:
    """Return the options of each command, as its parser knows them."""
    _, verbs = command_line()
    return "".join(_verb(name, one) for name, one in verbs.choices.items())


def _verb(name: str, known: argparse.ArgumentParser) -> str:
    known.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    words = " ".join(known.format_usage().removeprefix("usage: ").split())
    usage = textwrap.fill(words, 96, subsequent_indent="    ", break_on_hyphens=False)
    rows = [(_spelled(one), one.help or "") for one in known._actions if one.dest != "help"]
    about = f"## noclobber {name}\n\n{_text(known.description or '')}\n\n```text\n{usage}\n```\n\n"
    return about + _table(("option", "what it does"), rows)


def _spelled(option: argparse.Action) -> str:
    value = option.metavar or (option.dest.upper() if option.nargs != 0 else "")
    return ", ".join(f"`{f'{one} {value}'.rstrip()}`" for one in option.option_strings or ("",)).replace("` ", "`")


def _text(words: str) -> str:
    return " ".join(words.replace("<", "&lt;").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(map(_text, one))} |\n" for one in lines) + "\n"


def names_page() -> str:
    """Return the names that a program uses, with types, and the records that they give."""
    parts = [_call(one) for one in CALLS]
    parts += [f"## {one.__name__}\n\n{_base(one)}{inspect.getdoc(one)}\n\n" for one in ERRORS]
    return "".join([*parts, *map(_record, RECORDS)])


def _base(one: type) -> str:
    return f"A `{one.__bases__[0].__name__}`. "


def _call(one: Any) -> str:
    """A function or a class that is called, with its attributes and methods."""
    head = f"## {one.__name__}\n\n"
    head += f"```python\n{_signature(one)}\n```\n\n" if one is not Installed else ""
    head += f"{inspect.getdoc(one)}\n\n"
    return head + _table(("attribute", "type", "what it is"), _attributes(one)) if isinstance(one, type) else head


def _signature(one: Any) -> str:
    known = inspect.signature(one)
    given, may_be_by_place = [], True
    for part in known.parameters.values():
        if part.kind is part.POSITIONAL_ONLY:  # the function that a decorator without parentheses is put on
            continue
        if part.kind is part.KEYWORD_ONLY and may_be_by_place:
            given.append("*")
        may_be_by_place = part.kind is part.POSITIONAL_OR_KEYWORD
        stars = {part.VAR_POSITIONAL: "*", part.VAR_KEYWORD: "**"}.get(part.kind, "")
        default = "" if part.default is part.empty else f" = {part.default!r}"
        given.append(f"{stars}{part.name}: {part.annotation}{default}")
    returned = "" if isinstance(one, type) else f" -> {known.return_annotation}"
    lines = "".join(f"\n    {part}," for part in given) + "\n" if len(given) > 3 else ", ".join(given)
    return _type(f"noclobber.{one.__name__}({lines}){returned}")


def _type(text: object) -> str:
    """Return a type as a reader knows it."""
    return str(text).replace("Printed", "").replace("OnWrite", 'Literal["record", "raise"]')


def _attributes(one: type) -> Iterator[tuple[str, str, str]]:
    """Yield the properties and methods that have no underscore: name, type and the first paragraph of their words."""
    for name in dir(one):
        held = inspect.getattr_static(one, name)
        if name.startswith("_") or not (isinstance(held, property) or inspect.isfunction(held)):
            continue
        function = held.fget if isinstance(held, property) else held
        known = inspect.signature(function)
        given = "" if isinstance(held, property) else f"({', '.join(list(known.parameters)[1:])})"
        first = (inspect.getdoc(function) or "").partition("\n\n")[0]
        yield f"`{name}{given}`", f"`{_type(known.return_annotation)}`", first


def _record(one: type) -> str:
    """A record: its fields with their types, and the properties that are computed from them."""
    words = _words_of_fields(one)
    rows = [(f"`{each.name}`", f"`{each.type}`", words.get(each.name, "")) for each in dataclasses.fields(one)]
    return f"## {one.__name__}\n\n{inspect.getdoc(one)}\n\n" + _table(
        ("attribute", "type", "what it is"), [*rows, *_attributes(one)]
    )


def _words_of_fields(one: type) -> dict[str, str]:
    """Return what the source says below a field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: inspect.cleandoc(said.value.value)
        for field, said in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str)
    }  # fmt: skip
