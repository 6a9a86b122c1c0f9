"""Rows and sentences of a report as HTML. All that a program wrote is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from noclobber.render.window.snippet import Row

_QUOTED = re.compile("`([^`]+)`")


def painted(rows: Iterable[Row], looks: Mapping[str, str]) -> str:
    """Return rows as lines; `looks` are the attributes that a style has."""
    return "".join(f"{''.join(_span(text, looks.get(style, '')) for style, text in row).rstrip()}\n" for row in rows)


def _span(text: str, look: str) -> str:
    return f"<span {look}>{escape(text)}</span>" if look and text.strip() else escape(text)


def table(heads: Mapping[str, str], rows: Iterable[Sequence[str]], *, caption: str = "", look: str = "") -> str:
    """Return a table; `heads` are the names of its columns, each with the class of its cells. The cells are HTML."""
    looks = [f" class='{kind}'" if kind else "" for kind in heads.values()]
    head = "".join(f"<th scope='col'{kind}>{name}</th>" for name, kind in zip(heads, looks, strict=True))
    body = ""
    for row in rows:
        cells = (f"<td{kind}>{cell}</td>" for cell, kind in zip(row, looks, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    above = f"<caption>{caption}</caption>" if caption else ""
    named = f" class='{look}'" if look else ""
    return f"<table{named}>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def sentence(text: str) -> str:
    """Return words, with what stands between backticks as code."""
    return _QUOTED.sub(r"<code>\1</code>", escape(text))


def prose(text: str) -> str:
    """Return paragraphs and lists, as the pages of rules have them."""
    found = []
    for block in text.split("\n\n"):
        first, *items = re.split(r"^- ", block, flags=re.MULTILINE)
        found += [f"<p>{sentence(first)}</p>"] if first.strip() else []
        found += [f"<ul>{''.join(f'<li>{sentence(one)}</li>' for one in items)}</ul>"] if items else []
    return "".join(found)
