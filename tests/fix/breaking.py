"""Sources with a finding each, in all the ways a file may be written: line ends, tabs, characters of several bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from noclobber.fix.edits.source import Source
from noclobber.model.reports.finding import Edit, Finding, Label, Role, Suggestion
from noclobber.model.source import Span

from .mending import clobber, event_of, span


@dataclass(frozen=True)
class Broken:
    """A source, the code of its finding, and the pieces of text that the labels are on."""

    code: str
    source: str
    about: dict[str, str]
    more: dict[str, Any] = field(default_factory=dict)

    def finding(self, path: Path, text: str, indent: str, **more: Any) -> Finding:
        """The finding in a text of this source; the lines are kept as a run keeps them."""
        lines = text.split("\n")
        labels = []
        for role, piece in self.about.items():
            place = span(text, piece.replace("    ", indent), str(path))
            kept = tuple(lines[place.line - 1 : place.end_line])
            labels.append(Label(_ROLES[role], place, role, role == "write", kept))
        event = event_of(self.code, clobber(**{key: value for key, value in self.more.items() if key != "advice"}))
        if "advice" in self.more:
            more = {"suggestions": (Suggestion(self.more["advice"]),), **more}
        return Finding(
            self.code, "a rule", "hint" if self.code == "NC901" else "error", "headline", tuple(labels), **more
        ).about(event)


_ROLES: dict[str, Role] = {"save": "save", "write": "write", "read": "read", "create": "create"}


def _broken(code: str, source: str, more: dict[str, Any] | None = None, **about: str) -> Broken:
    return Broken(code, dedent(source).strip("\n") + "\n", about, more or {})


BROKEN = {
    "add": _broken("NC101", 'def f(h, y):\n    日 = "日本語 𝄞"; h += y * 2  # é\n    return h\n', write="h += y * 2"),
    "several lines": _broken(
        "NC101",
        """
        def f(out, scale):
            keep = out.exp()
            out.mul_(
                scale,  # ü
            )
            return out
        """,
        write="out.mul_(\n        scale,  # ü\n    )",
    ),
    "parts": _broken(
        "NC101",
        """
        def f(x):
            h = x.sigmoid()
            h[:, 0] = 1.0
            h[:, 1] = 2.0
            return h
        """,
        {"field": "result", "op": "aten::fill_"},
        write="h[:, 1]",
        save="x.sigmoid()",
    ),
    "rows": _broken(
        "NC102",
        """
        def run(x, w):
            h = torch.zeros(len(x), 3)
            for t in range(1, len(h)):
                h[t] = torch.tanh(h[t - 1] @ w)
                h[t] += x[t]
            return h
        """,
        {"field": "self"},
        write="h[t]",
        save="h[t - 1] @ w",
    ),
    "flag": _broken(
        "NC101",
        """
        class Net(nn.Module):
            def __init__(self):
                self.åct = nn.LeakyReLU(0.2, inplace=True)

            def forward(self, x):
                return self.åct(x)
        """,
        {"op": "aten::leaky_relu_"},
        write="self.åct(x)",
    ),
    "step": _broken(
        "NC103",
        """
        for x in batches:
            loss_d = bce(d(g(x)), 0)
            loss_g = bce(d(g(x)), 1)
            loss_d.backward(retain_graph=True)
            opt_d.step()
            loss_g.backward()
            opt_g.step()
        """,
        {"kind": "parameter", "name": "d.weight", "op": "SGD.step"},
        write="opt_d.step()",
        save="d(g(x)), 1",
        read="loss_g.backward()",
    ),
    "leaf": _broken(
        "NC301",
        """
        w = torch.ones(3, requires_grad=True)
        b = torch.ones(3, requires_grad=True)
        (w * b).sum().backward()
        w -= 0.1 * w.grad
        b -= 0.1 * b.grad""",
        {"kind": "parameter", "op": "aten::sub_"},
        write="w -= 0.1 * w.grad",
    ),
    "shared line": _broken("NC101", "if late: h[0] = 1\n", write="h[0]"),
    "carried": _broken(
        "NC104",
        """
        state = None
        for x in batches:
            y, state = cell(x, state)
            y.sum().backward()""",
        {"advice": "detach what is carried"},
        save="cell(x, state)",
        read="y.sum().backward()",
    ),
    "nothing known": _broken("NC901", "h = use(x)\n", write="use(x)"),
}


def taken_by_the_letter(text: str, edits: list[Edit]) -> str:
    """What an editor makes of edits: it knows lines and columns, and puts each text in as it is, the last one first."""
    starts = [0, *(found.end() for found in re.finditer("\r\n|\r|\n", text))]
    for edit in reversed(edits):
        where: Span = edit.span
        start, stop = starts[where.line - 1] + where.column - 1, starts[where.end_line - 1] + where.end_column - 1
        text = text[:start] + edit.replacement + text[stop:]
    return text


def are_apart(edits: list[Edit]) -> bool:
    """Whether edits of one file are in order and no two of them touch."""
    ends = [((one.span.line, one.span.column), (one.span.end_line, one.span.end_column)) for one in edits]
    return all(a <= b for a, b in ends) and all(a[1] < b[0] for a, b in pairwise(ends))


def on_disk(path: Path) -> str:
    """A file's text with its own line ends."""
    return Source.read(str(path)).text
