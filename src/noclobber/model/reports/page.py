"""The page of a rule: what `noclobber explain CODE` prints, and its parts for what shows it elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent

from noclobber.model.reports.finding import Severity

PROGRAMS = ("Example", "Instead")
"""The parts of a page that are code."""


@dataclass(frozen=True, slots=True)
class Page:
    """`text` begins with a line `CODE name: headline`; its parts follow, each with its name above."""

    code: str
    name: str
    severity: Severity
    text: str

    @property
    def headline(self) -> str:
        """What the rule is about, in one line."""
        return self.title.removeprefix(f"{self.code} {self.name}: ")

    @property
    def summary(self) -> str:
        """What happens, on one line."""
        return " ".join(dict(self.parts()).get("What happens", self.headline).partition("\n\n")[0].split())

    @property
    def markdown(self) -> str:
        """The page as Markdown."""
        found = [f"# {self.title}", f"Severity: {self.severity}."]
        for name, body in self.parts():
            found += [f"## {name}", f"```python\n{body}\n```" if name in PROGRAMS else body]
        return "\n\n".join(found) + "\n"

    @property
    def title(self) -> str:
        """The code, the name and the headline, in one line."""
        return self.text.partition("\n")[0]

    def parts(self) -> list[tuple[str, str]]:
        """Return the parts: the name of each, and its text."""
        below = self.text.partition("\n")[2].strip()
        parts = re.split(r"^(?=\S)", below, flags=re.MULTILINE)[1:]  # the first one ends before the first character
        return [(name, dedent(body).strip()) for name, _, body in (part.partition("\n") for part in parts)]
