"""The catalogue: every rule of this folder, found by walking it. A rule is one module; it knows no other.

A rule module holds
- its docstring: the page that `noclobber explain CODE` prints, with a bad and a good example;
- `CODE`, `NAME`, `SEVERITY`;
- `MESSAGES`: patterns of PyTorch's error texts that this rule explains, of this and older releases (may be empty);
- `find(event) -> Finding | None`: pure; None where the event is not its business.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from noclobber.model.finding import Finding, Severity
from noclobber.model.silent import Event


class Rule(Protocol):
    """What a rule module provides."""

    __doc__: str | None
    CODE: str
    NAME: str
    SEVERITY: Severity
    MESSAGES: Sequence[re.Pattern[str]]

    def find(self, event: Event) -> Finding | None:
        """The finding for an event, None where another rule must speak."""
        ...


@cache
def catalogue() -> tuple[Rule, ...]:
    """Every rule, in the order of its code. NC399, which takes what no other rule takes, comes last among refusals."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("nc")]
    rules: list[Rule] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(sorted(rules, key=lambda rule: rule.CODE))


def explain(event: Event) -> Finding | None:
    """The first rule's word on an event; None where no rule knows it (an error that is not about writing in place)."""
    for rule in catalogue():
        finding = rule.find(event)
        if finding is not None:
            return finding
    return None


def rule_of(code: str) -> Rule | None:
    """The rule of a code ("NC101", any case) or a name ("stale-save")."""
    return next((rule for rule in catalogue() if code.upper() == rule.CODE or code.lower() == rule.NAME), None)


def rule_of_message(text: str) -> Rule | None:
    """The rule whose patterns recognise an error text, which may be a whole traceback."""
    return next((rule for rule in catalogue() if any(pattern.search(text) for pattern in rule.MESSAGES)), None)
